"""Depth in both shapes, as far as the server's context reaches."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from lanes.bench import context
from lanes.bench.cells import CellResult
from lanes.bench.plan import Cell, Plan
from lanes.bench.probe import measure
from lanes.bench.stream import Stream
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

pytestmark = pytest.mark.usefixtures("patient")

QUICK = {"pp": 128, "tg": 8, "passes": 2, "warmups": 0, "depth_shape": ("ctx", "suffix")}


def probe(server: ScriptedServer, **plan: Any) -> tuple[CellResult, ...]:
    endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
    return measure(endpoint, Plan(**(QUICK | plan)))


def test_one_depth_in_two_shapes() -> None:
    with ScriptedServer(Script(ttft_s=0.02, gap_s=0.002, prefix_cache=True)) as server:
        context, suffix = probe(server, depth=1024)
    assert (context.shape, context.pp, context.status) == ("ctx", 0, "ok"), context.reason
    assert context.metrics["prompt_tokens"].median == pytest.approx(1024, abs=4)
    assert context.metrics["cached_tokens"].median < 20
    assert (suffix.shape, suffix.pp, suffix.status) == ("suffix", 128, "ok"), suffix.reason
    assert suffix.metrics["prompt_tokens"].median == pytest.approx(1152, abs=6)
    assert suffix.metrics["cached_tokens"].median == pytest.approx(1024, abs=30)
    # The whole depth is credited to the prefill of one, and none of it to that of the other.
    ratio = context.metrics["prefill_tps"].median / suffix.metrics["prefill_tps"].median
    assert ratio == pytest.approx(1024 / 128, rel=0.5)


def test_what_does_not_fit_into_the_context_is_skipped_where_the_server_tells_it() -> None:
    with ScriptedServer(Script(prefix_cache=True), context=700) as server:
        cells = probe(server, depth=(512, 1024))
        asked = len(server.answers)
    assert [c.status for c in cells] == ["ok", "ok", "skipped", "skipped"], [c.reason for c in cells]
    assert cells[2].reason == "it needs 1,032 tokens, and the server's context has 700"
    assert cells[3].reason == "it needs 1,160 tokens, and the server's context has 700"
    assert max(a.prompt_tokens for a in server.answers) < 700 and asked == len(server.answers)


@pytest.mark.parametrize("load", [{}, {"load": "closed", "requests": 4}])
def test_where_it_does_not_the_first_refusal_tells_it(load: dict[str, Any]) -> None:
    with ScriptedServer(Script(prefix_cache=True), context=700, tells_context=False) as server:
        cells = probe(server, depth=(512, 1024, 2048), **load)
        refused = sum(a.prompt_tokens > 700 for a in server.answers)
    assert [c.status for c in cells] == ["ok", "ok"] + ["skipped"] * 4, [c.reason for c in cells]
    assert (cells[2].reason or "").startswith(
        "it needs 1,032 tokens, and of 1,032 the server answered HTTP 400: This model's maximum context "
        "length is 700 tokens"
    )
    assert (cells[5].reason or "").startswith("it needs 2,184 tokens, and of 1,032 the server answered")
    assert refused <= 10, "deeper cells are not tried"


def test_a_refusal_for_another_reason_is_no_context() -> None:
    def script(number: int, body: Any) -> Script:
        return Script(status=400, message="no such voice") if body["max_tokens"] > 1 else Script()

    with ScriptedServer(script) as server:
        cells = probe(server, depth=512, depth_shape=("ctx",))
    assert cells[0].status == "invalid" and "no such voice" in (cells[0].reason or "")


class _Answers(BaseHTTPRequestHandler):
    """Answers GET with what the test put there; else it is not found."""

    known: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        found = self.known.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@pytest.mark.parametrize(
    ("known", "tokens"),
    [
        ({"/v1/models": {"data": [{"id": "other"}, {"id": "m", "max_model_len": 4096}]}}, 4096),
        ({"/v1/models": {"data": [{"id": "m"}]}, "/props": {"default_generation_settings": {"n_ctx": 8192}}}, 8192),
        ({"/v1/models": {"data": [{"id": "m", "max_model_len": "long"}]}, "/props": [1]}, None),
        ({"/v1/models": {"data": None}, "/props": {"default_generation_settings": 3}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_where_servers_tell_their_context(known: dict[str, Any], tokens: int | None) -> None:
    handler = type("Handler", (_Answers,), {"known": known})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        found = context.ask(Endpoint(url=f"http://127.0.0.1:{server.server_port}", model="m"))
        server.shutdown()
    assert found.tokens == tokens
    assert context.ask(Endpoint(url="http://127.0.0.1:9", model="m")).lacks(Cell(pp=9, tg=9)) is None


@pytest.mark.parametrize(
    ("said", "overflows"),
    [
        ("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens", True),
        ("the request exceeds the available context size, try increasing it", True),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", True),
        ("Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).", True),
        ("Unrecognized request argument: seed", False),
        ("max_tokens must be at least 1", False),
    ],
)
def test_how_servers_say_that_a_prompt_is_too_long(said: str, overflows: bool) -> None:
    stream = Stream(t0_ns=0, status=400, failure="status", error=f"the server answered HTTP 400: {said}")
    reason = context.Context().refused(Cell(pp=5000, tg=10), stream)
    assert (reason is not None) is overflows
