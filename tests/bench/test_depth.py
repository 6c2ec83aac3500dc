"""Depth in both shapes, as far as the server's context reaches."""

from __future__ import annotations

from typing import Any

import pytest
from lanes.bench.cells import CellResult
from lanes.bench.plan import Plan
from lanes.bench.probe import measure
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

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
