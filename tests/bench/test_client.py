"""One streamed request over a real socket, held against what the server really sent."""

from __future__ import annotations

import asyncio
import gc
import ssl
import statistics
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lanes.bench.client import Client
from lanes.bench.http import ResponseReader
from lanes.bench.measures import decode_tps, first_delta, ttft_s
from lanes.bench.plan import Limits
from lanes.bench.requests import Form
from lanes.bench.smoke import smoke
from lanes.bench.stream import Stream
from lanes.bench.tape import Tape
from lanes.bench.transport import Connection
from lanes.errors import LaneError, UsageError
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

CERTIFICATE = Path(__file__).parent / "data" / "localhost.pem"
BRIEF = Limits(connect_s=5, first_byte_s=2, stall_s=0.4)


def chat(server: ScriptedServer, tokens: int = 24, limits: Limits | None = None, **dialect: Any) -> Stream:
    endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(**dialect))

    async def one() -> Stream:
        client = Client(endpoint, limits)
        return await client.chat(Form(endpoint=endpoint, seed=1).body("hello there", tokens))

    return asyncio.run(one())


SAME_TIMES = {
    "plain": {},
    "an empty role chunk long before the first token": {"role": "early"},
    "a role chunk with the first token": {"role": "late"},
    "four tokens a delta": {"tokens_per_delta": 4},
    "a fat first delta": {"first_delta": 8, "usage": "every"},
    "usage on every chunk": {"usage": "every"},
    "reasoning only": {"reasoning": 1000},
    "tool call only": {"tool_call": True},
    "CRLF, comments and tiny packets": {"line_end": "\r\n", "comments": True, "packet": 5},
    "late usage": {"tail_s": 0.2},
    "everything merged at the end": {"tail_at_once": True},
    "ended by the connection": {"chunked": False},
    "no [DONE]": {"done": False},
}


@pytest.mark.parametrize("habit", SAME_TIMES)
def test_habits_that_leave_the_timing_alone_leave_the_figures_alone(habit: str) -> None:
    script = Script(ttft_s=0.06, gap_s=0.01, **SAME_TIMES[habit])
    with ScriptedServer(script) as server:
        stream = chat(server)
    sent = server.answers[0].sent
    assert stream.ok and stream.completion_tokens == 24
    assert len(stream.token_arrivals) == len(sent)
    late = [
        (stream.t0_ns + a.at_ns - ns) / 1e6 for a, (ns, _) in zip(stream.token_arrivals, sent, strict=True)
    ]
    assert -1 < statistics.median(late) < 5
    assert ttft_s(stream) == pytest.approx((sent[0][0] - stream.t0_ns) / 1e9, abs=0.02)
    # The server's own rate over the same interval; k1 as the server knows it.
    k1 = first_delta(stream, tokenized=sent[0][1])
    assert k1 and k1.tokens == sent[0][1]
    truth = (24 - sent[0][1]) / (sent[-1][0] - sent[0][0]) * 1e9
    assert decode_tps(stream, k1) == pytest.approx(truth, rel=0.1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's stamps are Linux's")
def test_a_client_that_reads_late_still_knows_when_the_bytes_came() -> None:
    with ScriptedServer(Script(ttft_s=0.05, role="none")) as server:
        endpoint = Endpoint(url=server.url, model="scripted")

        async def busy() -> Stream:
            task = asyncio.ensure_future(Client(endpoint).chat(Form(endpoint=endpoint, seed=1).body("x", 1)))
            while not server.answers:
                await asyncio.sleep(0.001)
            time.sleep(0.5)  # the loop is blocked while the token arrives
            return await task

        stream = asyncio.run(busy())
    assert stream.stamps == "kernel"
    assert stream.read_lag_s is not None and stream.read_lag_s > 0.1
    late_s = (stream.t0_ns - server.answers[0].sent[0][0]) / 1e9 + (ttft_s(stream) or 0)
    assert late_s < 0.15  # by the time of the read it would be 0.45


@pytest.mark.parametrize("stamp", [b"", struct.pack("@2l", 0, 0), struct.pack("@2l", 2**62, 0), b"odd"])
def test_a_missing_or_senseless_stamp_is_replaced_by_the_time_of_the_read(
    stamp: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Tape.take
    monkeypatch.setattr(Tape, "take", lambda self, data, _, read_ns: take(self, data, stamp, read_ns))
    with ScriptedServer(Script(ttft_s=0.05)) as server:
        stream = chat(server)
    assert stream.stamps == "read" and stream.read_lag_s is None
    assert 0.04 < (ttft_s(stream) or 0) < 1


FAILURES = {
    "cut": (Script(cut_after=12, usage="every"), "cut", "the stream was cut after 12 tokens"),
    "cut, no usage yet": (Script(cut_after=12), "cut", "the stream was cut after 12 deltas"),
    "cut at once": (Script(cut_after=0), "cut", "the stream was cut before the first token"),
    "error": (
        Script(error_after=3),
        "server",
        "the server reported an error after 3 deltas: the script says so",
    ),
    "error event": (
        Script(error_after=3, error_event=True),
        "server",
        "the server reported an error after 3 deltas: the script says so",
    ),
    "garbage": (Script(garbage_after=3), "protocol", "the stream held data that is not JSON, after 3 deltas"),
    "stall": (Script(stall_after=5), "stall", "the server stalled: nothing came for 0.4 s after 5 deltas"),
    "500": (Script(status=500), "status", "the server answered HTTP 500: the script says so"),
}


@pytest.mark.parametrize("habit", FAILURES)
def test_a_failure_is_one_sentence_and_never_a_success(habit: str) -> None:
    script, kind, sentence = FAILURES[habit]
    with ScriptedServer(script) as server:
        stream = chat(server, limits=BRIEF)
    assert (stream.failure, stream.error) == (kind, sentence)


def test_no_answer_at_all() -> None:
    with ScriptedServer(Script(role="none", ttft_s=30)) as server:
        # Headers come at once, so this is a stall; a silent listener never answers.
        assert chat(server, limits=BRIEF).failure == "stall"

    async def silent() -> Stream:
        async def swallow(reader: Any, writer: Any) -> None:
            await asyncio.sleep(30)

        listener = await asyncio.start_server(swallow, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}", model="x")
        return await Client(endpoint, Limits(first_byte_s=0.3)).chat(
            Form(endpoint=endpoint, seed=1).body("x", 1)
        )

    assert asyncio.run(silent()).error == "the server did not answer within 0.3 s"


def test_nothing_listens() -> None:
    with ScriptedServer() as server:
        pass
    stream = chat(server)
    assert stream.failure == "connect"
    assert stream.error == f"nothing listens at {server.url.removeprefix('http://')} (connection refused)"


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(
        LaneError, match=r"the host name no\.such\.host\.invalid is not known|no connection to"
    ):
        smoke(Endpoint(url="http://no.such.host.invalid:8000", model="x"), limits=BRIEF)


def test_a_prompt_larger_than_any_buffer_is_sent_whole() -> None:
    with ScriptedServer() as server:
        endpoint = Endpoint(url=server.url, model="scripted")
        text = "word " * 800_000
        stream = asyncio.run(Client(endpoint).chat(Form(endpoint=endpoint, seed=1).body(text, 2)))
    assert stream.ok and stream.prompt_tokens == 800_010


def tls_server() -> ScriptedServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return ScriptedServer(Script(ttft_s=0.03, gap_s=0.005), tls=context)


def test_https_gives_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with tls_server() as server:
        stream = chat(server)
    assert stream.ok and len(stream.token_arrivals) == 24
    assert ttft_s(stream) == pytest.approx((server.answers[0].sent[0][0] - stream.t0_ns) / 1e9, abs=0.02)


def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    with tls_server() as server:
        stream = chat(server)
    assert stream.failure == "connect" and "no TLS connection" in (stream.error or "")


def test_the_api_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    with ScriptedServer(key="sk-secret") as server:
        assert chat(server, api_key_env="SOME_KEY").ok
    with ScriptedServer(key="another") as server:
        stream = chat(server, api_key_env="SOME_KEY")
        client = Client(Endpoint(url=server.url, model="x", dialect=Dialect(api_key_env="SOME_KEY")))
    assert stream.error == "the server answered HTTP 401: incorrect API key ***"
    assert "sk-secret" not in repr(stream) + repr(vars(client))


def test_an_api_key_that_is_not_set_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UsageError, match="the environment variable SOME_KEY"):
        smoke(Endpoint(url="http://127.0.0.1:1", model="x", dialect=Dialect(api_key_env="SOME_KEY")))


def test_sixty_four_streams_at_once_hold_their_schedule() -> None:
    with ScriptedServer(Script(ttft_s=0.3, gap_s=0.02)) as server:
        endpoint = Endpoint(url=server.url, model="scripted")

        async def burst() -> list[Stream]:
            client = Client(endpoint)
            connections = [await client.open() for _ in range(64)]
            body = Form(endpoint=endpoint, seed=1).body("x", 10)
            return list(await asyncio.gather(*(client.chat(body, c) for c in connections)))

        streams = asyncio.run(burst())
    assert all(s.ok and s.completion_tokens == 10 for s in streams)
    # Each stream's first token against the server's own account, in order of time.
    seen = sorted(s.t0_ns + s.token_arrivals[0].at_ns for s in streams)
    sent = sorted(a.sent[0][0] for a in server.answers)
    assert statistics.median(b - a for a, b in zip(sent, seen, strict=True)) / 1e6 < 10


LEAVINGS = {
    "chunks": Script(usage="every"),
    "ended by the connection": Script(chunked=False),
    **{habit: script for habit, (script, *_) in FAILURES.items()},
}


@pytest.mark.parametrize("habit", LEAVINGS)
def test_a_request_leaves_nothing_that_only_the_garbage_collector_would_find(habit: str) -> None:
    """Ten thousand requests would fill the memory with it."""

    async def several(url: str) -> None:
        client = Client(Endpoint(url=url, model="scripted"), BRIEF)
        body = Form(endpoint=Endpoint(url=url, model="scripted"), seed=1).body("x", 8)
        await client.chat(body)
        gc.collect()
        gc.disable()
        for _ in range(3):
            await client.chat(body)

    with ScriptedServer(LEAVINGS[habit]) as server:
        try:
            asyncio.run(several(server.url))
            left = [one for one in gc.get_objects() if isinstance(one, (Connection, Tape, ResponseReader))]
        finally:
            gc.enable()
    assert not left


def test_smoke_tells_what_came_or_why_nothing_did() -> None:
    with ScriptedServer() as server:
        assert smoke(Endpoint(url=server.url, model="scripted"), max_tokens=3).text == "lane lane lane "
    with ScriptedServer(Script(tokens=0, finish="stop")) as server, pytest.raises(LaneError) as error:
        smoke(Endpoint(url=server.url, model="scripted"))
    assert error.value.message == "the server answered without any token (it ended with stop)"
