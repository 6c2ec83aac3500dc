"""The short cut for what a stream says again and again records what the long way records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes.bench.recorder import Recorder
from lanes.bench.shapes import QuickRecorder, Shape
from lanes.bench.stream import Stream
from lanes.bench.tape import Read, as_reads
from lanes.testing.scripts import Answer, Script, events

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def reads(bodies: Iterable[bytes], chunked: bool = True) -> list[bytes]:
    """One read for the head and one for each body, and for the end of the answer."""
    if not chunked:
        return [HEAD + b"Connection: close\r\n\r\n", *bodies]
    framed = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
    return [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *framed, b"0\r\n\r\n"]


def record(recorder: Recorder, data: Iterable[bytes], together: int = 1) -> Stream:
    came = [Read(one, 1000 * n, 1000 * n + 10, n % 7 > 0) for n, one in enumerate(data)]
    for at in range(0, len(came), together):
        recorder.feed(as_reads(came[at : at + together]))
    recorder.end()
    return recorder.stream()


def same(data: list[bytes]) -> Stream:
    slow = record(Recorder(), data)
    for together in (1, 3, len(data)):
        assert record(QuickRecorder(), data, together) == slow
    return slow


HABITS = {
    "plain": Script(),
    "CRLF and comments, ended by the connection": Script(line_end="\r\n", comments=True, chunked=False),
    "lone CR": Script(line_end="\r"),
    "usage on every chunk": Script(usage="every"),
    "several tokens a delta": Script(tokens_per_delta=3, usage="every", token_ids=True),
    "logprobs": Script(logprobs=True),
    "reasoning, then text": Script(reasoning=20, usage="every"),
    "tool call": Script(tool_call=True),
    "all at once at the end": Script(tail_at_once=True),
    "cut": Script(cut_after=30, usage="every"),
    "error in mid-stream": Script(error_after=30),
    "half a JSON": Script(garbage_after=30),
    "no [DONE], no finish": Script(done=False, finish=None),
}


def scripted(script: Script) -> list[bytes]:
    asked = Answer({"max_tokens": 60}, 20, 0)
    bodies = [data.encode() for _, _, data in events(script, asked, 0) if data is not None]
    return reads(bodies, script.chunked)


@pytest.mark.parametrize("habit", HABITS)
def test_every_habit_is_recorded_as_it_is_without_the_short_cut(habit: str) -> None:
    data = scripted(HABITS[habit])
    same(data)
    whole = b"".join(data)
    for size in (1, 7, 64, 333, 1000):
        same([whole[i : i + size] for i in range(0, len(whole), size)])


@pytest.mark.parametrize("usage", ["last", "every"])
def test_most_of_an_ordinary_stream_takes_the_short_cut(usage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Read] = []
    feed = Recorder._feed

    def counted(self: Recorder, read: Read) -> None:
        parsed.append(read)
        feed(self, read)

    monkeypatch.setattr(Recorder, "_feed", counted)
    record(QuickRecorder(), scripted(Script(usage=usage)))
    assert len(parsed) < 12


def chunk(text: str, **more: Any) -> bytes:
    value = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


ODD = {
    "a quote": chunk('say "no"'),
    "a backslash": chunk("a\\b"),
    "a line end": chunk("a\nb"),
    "another script": chunk("行行"),
    "no text": chunk(""),
    "half a character": chunk("xy").replace(b"xy", b"\xe8\xa1"),
    "an error that looks alike": chunk("ab", error={"message": "no"}),
    "a text that ends the string": chunk("TEXT").replace(
        b"TEXT", b'a"}, "finish_reason": "stop", "x": {"y": "'
    ),
    "a wrong count": chunk("ab", usage={"prompt_tokens": 1, "completion_tokens": 1}),
    "a finish": chunk("ab").replace(b'"finish_reason": null', b'"finish_reason": "stop"'),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_differs_in_more_than_its_text_goes_the_long_way(odd: str) -> None:
    ordinary = [chunk(f"word{n} ") for n in range(5)]
    same(reads([*ordinary, ODD[odd], *ordinary]))
    same(reads([*ordinary, ODD[odd], *ordinary], chunked=False))


@pytest.mark.parametrize(
    "order", [("completion_tokens", "total_tokens"), ("total_tokens", "completion_tokens")]
)
@pytest.mark.parametrize("name", ["completion_tokens", "total_tokens"])
@pytest.mark.parametrize("count", ["1,2", "007", "", "-3", "1.5", "9" * 40, "null", "٣", '"4"', "4\n5"])
def test_what_is_no_count_goes_the_long_way(order: tuple[str, str], name: str, count: str) -> None:
    ordinary = [
        chunk(f"word{n} ", usage={"prompt_tokens": 3, **dict.fromkeys(order, 7 + n)}) for n in range(12)
    ]
    odd = chunk("word5 ", usage={"prompt_tokens": 3, **dict.fromkeys(order, 12)})
    odd = odd.replace(f'"{name}": 12'.encode(), f'"{name}": {count}'.encode())
    assert odd not in ordinary
    for chunked in (True, False):
        same(reads([*ordinary, odd, *ordinary], chunked=chunked))


def counted(text: str, completion: int, total: int) -> bytes:
    return chunk(text, id="100%d%", usage={"completion_tokens": completion, "total_tokens": total})


@pytest.mark.parametrize(
    "steps",
    [
        [1] * 120,
        [4] * 40,
        [1] * 20 + [3] + [1] * 20,
        [1, 2] * 20,
        [0] * 20,
        [1] * 20 + [-5] + [1] * 20,
        [1] * 8 + [89, 1, 1, 900, 1, 1],
    ],
)
@pytest.mark.parametrize("prompt", [0, 3, 10**6])
def test_counts_are_told_however_they_grow(steps: list[int], prompt: int) -> None:
    completions = [1 + sum(steps[:n]) for n in range(len(steps) + 1)]
    bodies = [counted(f"word{n} ", at, at + prompt) for n, at in enumerate(completions)]
    for is_chunked in (True, False):
        stream = same(reads(bodies, chunked=is_chunked))
        assert stream.arrivals.cumulative == completions


def test_two_counts_need_not_grow_alike() -> None:
    same(reads([counted(f"word{n} ", n, 2 * n + (n > 9)) for n in range(1, 30)]))


def test_an_event_that_lacks_the_quote_after_its_text_is_no_event_as_before() -> None:
    ordinary = [counted(f"word{n} ", n, n) for n in range(1, 15)]
    lacking = [counted("", n, n).replace(b'"content": ""', b'"content": "') for n in range(15, 17)]
    for is_chunked in (True, False):
        assert same(reads([*ordinary, *lacking], chunked=is_chunked)).failure == "protocol"


def test_a_chunk_of_another_size_than_it_says_is_not_of_the_shape() -> None:
    data = reads([chunk("word ")])[1]
    shape = Shape.of(data, True)
    assert shape and shape.run([data, data]) == (["word ", "word "], [None, None])
    for other in (data.replace(b"word", b"words"), data + b"0\r\n\r\n", data[:-1]):
        assert not shape.run([other]).texts


TEXTS = st.one_of(
    st.sampled_from(["a", "lane ", "delta", "content", "0", '","', "x" * 300]), st.text(max_size=6)
)
CHUNKS = st.one_of(
    st.builds(chunk, TEXTS),
    st.builds(
        lambda text, n: chunk(
            text, usage={"prompt_tokens": 3, "completion_tokens": n, "total_tokens": n + 3}
        ),
        TEXTS,
        st.integers(0, 10**6),
    ),
    st.sampled_from(
        [b": ping\n\n", b"\n", b"data: [DONE]\n\n", b"data: {", b"event: error\n", *ODD.values()]
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(CHUNKS, max_size=14), st.booleans(), st.integers(0, 400))
def test_no_stream_is_recorded_otherwise(bodies: list[bytes], chunked: bool, cut: int) -> None:
    data = reads(bodies, chunked)
    same(data)
    # The same with several events in a read, and with one that ends somewhere else.
    same([b"".join(data[:2]), *(b"".join(data[n : n + 3]) for n in range(2, len(data), 3))])
    if len(data) > 4:
        joined = data[3] + data[4]
        same([*data[:3], joined[:cut], joined[cut:], *data[5:]])
