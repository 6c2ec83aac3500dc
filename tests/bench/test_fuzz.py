"""Whatever bytes come: no crash, no hang, and no figure that is not what was streamed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib.util
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes.bench.client import Client
from lanes.bench.deltas import read_delta
from lanes.bench.measures import decode_tps, e2e_s, first_delta, ttft_s
from lanes.bench.plan import Limits
from lanes.bench.recorder import Recorder
from lanes.bench.requests import Form
from lanes.bench.sse import Event, SseParser, Stray
from lanes.bench.stream import Stream
from lanes.bench.tape import Read, as_reads
from lanes.testing.scripts import Script
from lanes.types import Endpoint

ROOT = Path(__file__).parent.parent.parent


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lanes_fuzz_stream", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


fuzz = _load(ROOT / "fuzz" / "stream.py")
MS = 1_000_000

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
some = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

scripts = st.builds(
    Script,
    tokens_per_delta=st.integers(1, 4),
    first_delta=st.none() | st.integers(1, 8),
    role=st.sampled_from(["early", "late", "none"]),
    word=st.sampled_from(["lane ", "é", "𝄞 ", 'a"b\\', "\n\n", "data: ", "\u2028"]),
    reasoning=st.integers(0, 8),
    tool_call=st.booleans(),
    usage=st.sampled_from(["last", "every", "none"]),
    cached=st.none() | st.integers(0, 20),
    token_ids=st.booleans(),
    logprobs=st.booleans(),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    comments=st.booleans(),
    multi_line=st.booleans(),
    tail_at_once=st.booleans(),
    between=st.none() | st.sampled_from(['{"choices": []}', '{"type": "ping"}']),
    done=st.booleans(),
    finish=st.none() | st.sampled_from(["length", "stop"]),
    cut_after=st.none() | st.integers(0, 7),
    error_after=st.none() | st.integers(0, 7),
    error_form=st.sampled_from(["error", "object", "line"]),
    garbage_after=st.none() | st.integers(0, 7),
)
cuts = st.lists(st.integers(0, 6000), max_size=12)


@some
@given(scripts, st.booleans(), cuts, st.booleans())
def test_the_same_bytes_cut_anywhere_are_the_same_stream(
    script: Script, chunked: bool, anywhere: list[int], by_write: bool
) -> None:
    data = b"".join(fuzz.framed([w.encode() for w in fuzz.body(script)], chunked))
    stream = fuzz.check(data, fuzz.ends_of_writes(data) if by_write else anywhere)
    breaks = min(n for n in (script.cut_after, script.error_after, script.garbage_after, 8) if n is not None)
    assert stream.ok == (breaks == 8 and (script.done or script.finish is not None))


@some
@given(st.integers(0, 2**32), st.booleans(), cuts, st.booleans())
def test_mutated_streams_are_read_as_they_are_or_failed(
    seed: int, by_write: bool, anywhere: list[int], whole: bool
) -> None:
    lottery = random.Random(seed)
    data = fuzz.mutated(lottery.choice(SEEDS), lottery)
    fuzz.check(data, fuzz.ends_of_writes(data) if by_write else () if whole else anywhere)


SEEDS = list(fuzz.seeds())


@few
@given(st.binary(max_size=300), cuts)
def test_any_bytes_at_all(data: bytes, anywhere: list[int]) -> None:
    fuzz.check(data, anywhere)
    fuzz.check(fuzz.PLAIN + data, anywhere)
    fuzz.check(fuzz.CHUNKED + data, anywhere)


@few
@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_lines(pieces: list[bytes]) -> None:
    parser, whole = SseParser(), SseParser()
    found = [e for piece in pieces for e in parser.feed(piece)]
    assert [*found, parser.finish()] == [*whole.feed(b"".join(pieces)), whole.finish()]


NAMES = [
    "choices",
    "delta",
    "content",
    "reasoning",
    "tool_calls",
    "function",
    "arguments",
    "name",
    "role",
    "finish_reason",
    "usage",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "error",
    "message",
    "object",
    "timings",
    "predicted_n",
    "predicted_ms",
    "prompt_n",
    "prompt_ms",
    "logprobs",
    "token_ids",
    "index",
    "type",
    "text",
    "other",
]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@some
@given(st.lists(values, max_size=4), st.sampled_from(["message", "error", "ping", ""]))
def test_any_json_is_an_event_or_is_refused(chunks: list[Any], kind: str) -> None:
    for chunk in chunks:
        try:
            delta = read_delta(Event(kind, json.dumps(chunk)))
        except ValueError:
            continue
        assert delta.kind in KINDS
    writes = [f"data: {json.dumps({'choices': [{'delta': chunk}], **_dict(chunk)})}\n\n" for chunk in chunks]
    fuzz.check(fuzz.PLAIN + "".join([*writes, "data: [DONE]\n\n"]).encode(), [])


KINDS = {"role", "empty", "content", "reasoning", "tool", "finish", "usage", "done", "error", "unknown"}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


@pytest.mark.parametrize(
    "data",
    [
        "[" * 100_000,
        '{"error":' * 900 + '"x"' + "}" * 900,
        '{"error":' * 5000 + '"x"' + "}" * 5000,
        '{"choices":[{"delta":{"tool_calls":' + "[" * 5000 + "]" * 5000 + "}}]}",
        '{"choices":[{"delta":{"content":' + "[" * 900 + "]" * 900 + "}}]}",
        '{"timings": {"predicted_n": 1e999, "prompt_ms": NaN}}',
        '{"usage": {"prompt_tokens": ' + "9" * 4000 + ', "completion_tokens": 1e308}}',
        '{"choices": [{"delta": {"content": "\\ud800"}, "finish_reason": {"type": "\\u001b[31m"}}]}',
        '{"error": "\\u001b[2J\\u0007"}',
    ],
)
def test_json_that_is_made_to_hurt(data: str) -> None:
    for line in (f"data: {data}\n\n", f"{data}\n\n"):
        fuzz.check(fuzz.PLAIN + line.encode() + b"data: [DONE]\n\n", [])
    for event in (Event("message", data), Event("error", data), Stray(data)):
        with contextlib.suppress(ValueError):
            read_delta(event)


def test_an_endless_line_is_no_quadratic_work() -> None:
    recorder = Recorder()
    recorder.feed(as_reads([Read(fuzz.PLAIN + b"data: ", 1, 1, True)]))
    for _ in range(4000):
        recorder.feed(as_reads([Read(b"x" * 4096, 1, 1, True)]))
    recorder.end()
    assert recorder.stream().failure == "cut"


# A damaged event is told, or does no damage.


def timed(chunks: Sequence[Any]) -> Stream:
    """One event each 10 ms."""
    recorder = Recorder()
    recorder.feed(as_reads([Read(fuzz.PLAIN, 1, 1, True)]))
    for number, chunk in enumerate(chunks, 1):
        data = chunk if isinstance(chunk, str) else json.dumps(chunk)
        recorder.feed(
            as_reads([Read(f"data: {data}\n\n".encode(), 10 * MS * number, 10 * MS * number, True)])
        )
    recorder.end()
    return recorder.stream()


def answer(usage: str = "last") -> list[Any]:
    writes = fuzz.body(Script(role="none", usage=usage, cached=0))
    events = [line.removeprefix("data: ") for write in writes for line in write.split("\n") if line]
    return [json.loads(e) if e.startswith("{") else e for e in events]


def figures(stream: Stream) -> tuple[Any, ...]:
    return (ttft_s(stream), e2e_s(stream), decode_tps(stream, first_delta(stream)), stream.completion_tokens)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from _places(one, (*path, key))


def _holder(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def _renamed(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)


def _made_a_number(holder: Any, key: Any) -> None:
    holder[key] = 7.5


def _made_a_flag(holder: Any, key: Any) -> None:
    holder[key] = True


def _made_text(holder: Any, key: Any) -> None:
    holder[key] = "?"


DAMAGE: tuple[Callable[[Any, Any], None], ...] = (_renamed, _made_a_number, _made_a_flag, _made_text)


@pytest.mark.parametrize("usage", ["last", "every"])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("which", [0, 3, 7, 9])
def test_a_damaged_event_is_told_or_does_no_damage(which: int, damage: Any, usage: str) -> None:
    """Each place in the first, a middle and the last token's event, and in the last usage."""
    whole = answer(usage)
    truth = figures(timed(whole))
    assert fuzz.figures(timed(whole)) is None
    for path in _places(whole[which]):
        chunks = copy.deepcopy(whole)
        damage(_holder(chunks[which], path), path[-1])
        stream = timed(chunks)
        if stream.ok and fuzz.figures(stream) is None:
            assert figures(stream) == truth, path


@some
@given(
    st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]),
    st.integers(-5, 2**60) | st.floats() | st.none() | st.text(max_size=3) | st.booleans(),
)
def test_a_usage_that_lies_in_one_count_is_found_out(name: str, count: Any) -> None:
    chunks = answer()
    told = chunks[-2]["usage"]
    if name == "total_tokens" and (not isinstance(count, int | float) or not 0 <= count <= 2**53):
        return  # a sum that is none is not told
    if isinstance(count, int | float) and count == told[name]:
        return
    told[name] = count
    stream = timed(chunks)
    reason = fuzz.figures(stream)
    fractional = isinstance(count, float) and not count.is_integer()
    assert reason is not None or (name == "total_tokens" and (fractional or isinstance(count, bool)))


# The same over a socket.


HANGS: dict[str, tuple[bytes, bytes, Limits, str]] = {
    "an early head and a long prefill": (
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n',
        b"",
        Limits(first_byte_s=1.0, stall_s=0.3),
        "the server stalled: nothing came for 1 s before the first token",
    ),
    "keep-alives from a server that is stuck": (
        fuzz.body(Script(role="none"))[0].encode(),
        b": ping\n\n",
        Limits(first_byte_s=9, stall_s=0.8),
        "the server stalled: only signs of life came for 0.8 s after 1 delta",
    ),
    "empty deltas without end": (
        b"",
        fuzz.body(Script(role="early"))[0].encode(),
        Limits(first_byte_s=0.8, stall_s=9),
        "the server stalled: only signs of life came for 0.8 s before the first token",
    ),
    "tokens without end": (
        b"",
        fuzz.body(Script(role="none"))[0].encode() * 300,
        Limits(first_byte_s=9, stall_s=9),
        "the server did not stop",
    ),
}


@pytest.mark.parametrize("how", HANGS)
def test_no_server_holds_the_client_for_ever(how: str) -> None:
    first, again, limits, reason = HANGS[how]

    async def pieces() -> AsyncIterator[bytes]:
        yield fuzz.PLAIN + first
        while True:
            yield again
            await asyncio.sleep(0.25)

    (stream,) = asyncio.run(_served([pieces], limits))
    assert stream.error is not None and reason in stream.error


def test_a_long_prefill_after_an_early_head_is_no_stall() -> None:
    """The prompt of 262,144 tokens takes minutes, and the role delta of some servers comes at once."""
    head = fuzz.PLAIN + b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'
    rest = "".join(fuzz.body(Script(role="none"))).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        await asyncio.sleep(1)
        yield rest

    (stream,) = asyncio.run(_served([pieces], Limits(first_byte_s=9, stall_s=0.3)))
    assert stream.ok and stream.completion_tokens == 8


def test_a_client_survives_whatever_a_server_sends() -> None:
    lottery = random.Random(4)
    payloads = [fuzz.mutated(lottery.choice(SEEDS), lottery) for _ in range(40)]
    expected = [fuzz.read(data, [], quick=False) for data in payloads]

    def cut(data: bytes) -> Callable[[], AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            left = data
            while left:
                size = lottery.randint(1, 900)
                yield left[:size]
                left = left[size:]

        return pieces

    limits = Limits(connect_s=5, first_byte_s=5, stall_s=5)
    streams = asyncio.run(_served([cut(data) for data in payloads], limits))
    for data, stream, known in zip(payloads, streams, expected, strict=True):
        assert [a.kind for a in stream.arrivals] == [a.kind for a in known.arrivals], data
        assert (stream.usage, stream.ok, stream.status) == (known.usage, known.ok, known.status), data


async def _served(answers: Sequence[Callable[[], AsyncIterator[bytes]]], limits: Limits) -> list[Stream]:
    """What the client makes of each answer, written in pieces and then closed."""
    todo = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-l")
        )
        await reader.readexactly(length)
        with contextlib.suppress(ConnectionError):
            async for piece in next(todo)():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = Endpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", model="x")
    client = Client(endpoint, limits)
    form = Form(endpoint=endpoint, seed=1)
    try:
        return [await asyncio.wait_for(client.chat(form.body("x", 8)), 20) for _ in answers]
    finally:
        server.close()
