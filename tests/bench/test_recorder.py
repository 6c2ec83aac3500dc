"""The same answer gives the same stream, however the network cut its bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs
import pytest
from lanes.bench.recorder import Recorder
from lanes.bench.stream import Stream
from lanes.bench.tape import Read, as_reads
from lanes.testing.scripts import Answer, Script, events


def answer(script: Script, tokens: int = 4) -> bytes:
    """The bytes of a whole answer by `script`."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n" if script.chunked else b"Connection: close\r\n\r\n"
    body = b""
    for _, _, data in events(script, Answer({"max_tokens": tokens}, 20, 0), 0):
        if data is None:
            return head + body
        part = data.encode()
        body += b"%x\r\n%b\r\n" % (len(part), part) if script.chunked else part
    return head + body + (b"0\r\n\r\n" if script.chunked else b"")


def record(pieces: Iterator[bytes] | list[bytes]) -> Stream:
    recorder = Recorder()
    for piece in pieces:
        recorder.feed(as_reads([Read(piece, 1000, 1000, True)]))
    recorder.end()
    return attrs.evolve(recorder.stream(), merged_reads=0, stamps="")


HABITS = {
    "plain": Script(),
    "CRLF, comments, not chunked": Script(line_end="\r\n", comments=True, chunked=False),
    "lone CR, usage on every chunk": Script(line_end="\r", usage="every", tokens_per_delta=4),
    "reasoning first, late role": Script(reasoning=3, role="late", usage="every"),
    "tool call only": Script(tool_call=True, role="none"),
    "all at once at the end": Script(tail_at_once=True, token_ids=True),
    "no [DONE]": Script(done=False, logprobs=True),
    "no usage": Script(usage="none"),
    "error in mid-stream": Script(error_after=3),
    "error event": Script(error_after=3, error_event=True, line_end="\r\n"),
    "cut": Script(cut_after=3),
    "cut, not chunked": Script(cut_after=3, chunked=False),
    "half a JSON": Script(garbage_after=3),
}


@pytest.mark.parametrize("habit", HABITS)
def test_the_same_bytes_cut_anywhere_give_the_same_stream(habit: str) -> None:
    data = answer(HABITS[habit])
    whole = record([data])
    assert record([data[i : i + 1] for i in range(len(data))]) == whole
    for cut in range(1, len(data)):
        assert record([data[:cut], data[cut:]]) == whole
    for size in (7, 64, 1000):
        assert record([data[i : i + size] for i in range(0, len(data), size)]) == whole


def test_an_answer_that_stops_anywhere_before_its_finish_is_a_failure() -> None:
    """No cut is ever taken for a whole answer."""
    data = answer(Script())
    finish = data.index(b'"length"')
    for end in range(finish):
        assert record([data[:end]]).failure == "cut"
    assert record([data]).ok


def event_stream(*chunks: object) -> bytes:
    text = "".join(f"data: {c if isinstance(c, str) else json.dumps(c)}\n\n" for c in chunks)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text.encode()


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def kinds(*chunks: object) -> list[str]:
    return [a.kind for a in record([event_stream(*chunks)]).arrivals]


def test_only_what_carries_tokens_counts_as_tokens() -> None:
    assert kinds(
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(content=""),
        delta(reasoning="hm", reasoning_content="hm"),
        delta(content="a"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}},
        {"choices": []},
        "[DONE]",
    ) == ["role", "role", "empty", "reasoning", "content", "tool", "finish", "usage", "empty", "done"]


def test_reasoning_sent_under_two_names_is_counted_once() -> None:
    stream = record([event_stream(delta(reasoning="hm", reasoning_content="hm"), "[DONE]")])
    assert stream.text == "hm" and stream.arrivals[0].chars == 2


def test_usage_on_every_chunk_is_not_summed_and_the_last_one_counts() -> None:
    chunks = [delta(content="a") | {"usage": {"prompt_tokens": 5, "completion_tokens": n}} for n in (2, 4, 6)]
    stream = record([event_stream(*chunks, "[DONE]")])
    assert stream.completion_tokens == 6 and stream.prompt_tokens == 5
    assert [a.cumulative for a in stream.token_arrivals] == [2, 4, 6]


@pytest.mark.parametrize(
    "odd", [None, [], "text", 7, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": 3}]}]
)
def test_odd_json_is_no_crash_and_no_token(odd: object) -> None:
    stream = record([event_stream(json.dumps(odd), "[DONE]")])
    assert stream.token_arrivals == ()


def test_a_plain_answer_is_not_taken_for_a_stream() -> None:
    body = b'{"choices": [{"message": {"content": "hi"}}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert record([head + body]).error == "the server answered at once instead of streaming"


def test_an_error_message_is_bounded_and_on_one_line() -> None:
    body = json.dumps({"error": {"message": "x\n" * 5000}}).encode()
    stream = record([b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n" % len(body) + body])
    assert stream.failure == "status" and stream.status == 500
    assert stream.error and len(stream.error) < 350 and "\n" not in stream.error


def test_what_is_no_http_is_said_to_be_none() -> None:
    assert "not HTTP" in (record([b"SSH-2.0-OpenSSH_9.6\r\n"]).error or "")


def test_a_compressed_answer_is_said_to_be_one() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n"
    assert record([head + b"\x1f\x8b\x08"]).error == "the server compressed its answer (gzip) unasked"


def test_a_page_instead_of_a_stream_is_quoted() -> None:
    stream = record([event_stream() + b"<html>Please log in</html>\n"])
    assert stream.failure == "protocol"
    assert stream.error == (
        "the stream held a line that is no event ('<html>Please log in</html>'), before the first token"
    )


def test_what_follows_the_answer_on_the_connection_is_none_of_it() -> None:
    """However the bytes are cut: another answer, or what is no HTTP."""
    data = answer(Script(), 4)
    for more in (data, b"no HTTP"):
        assert record([data + more]) == record([data, more]) == record([data])


def test_events_before_broken_framing_are_kept() -> None:
    data = answer(Script(), 4).replace(b"\r\n0\r\n\r\n", b"\r\nzz\r\n")
    assert record([data]) == record([data[i : i + 1] for i in range(len(data))])
    assert len(record([data]).token_arrivals) == 4


def test_an_error_is_found_where_no_line_ends() -> None:
    stream = record([event_stream() + b'{"error": {"message": "out of memory"}}'])
    assert stream.error == "the server reported an error before the first token: out of memory"


def test_what_may_be_tokens_in_another_form_is_kept_in_mind() -> None:
    assert record([event_stream(delta(thought="hm"), "[DONE]")]).odd == "text under the name 'thought'"
    assert record([event_stream(delta(content=5), "[DONE]")]).odd == "content that is no text"
    assert record([event_stream({"choices": [{"text": "hm"}]}, "[DONE]")]).odd == "a choice without a delta"
    assert record([event_stream({"response": "hm"}, "[DONE]")]).odd == "an event without choices"
    assert record([event_stream(delta(role="assistant", name="x"), {"choices": []}, "[DONE]")]).odd is None


def test_a_late_read_of_several_events_leaves_the_first_and_the_last_time_in_doubt() -> None:
    def doubt(*reads: tuple[bytes, int]) -> float:
        recorder = Recorder()
        for data, late_ms in reads:
            recorder.feed(as_reads([Read(data, 1000, 1000 + late_ms * 1_000_000, True)]))
        return recorder.stream().doubt_s

    one, end = (event_stream(c).split(b"\r\n\r\n")[1] for c in (delta(content="a"), "[DONE]"))
    assert doubt((event_stream(), 0), (one, 90), (one, 90), (end, 90)) == 0
    assert doubt((event_stream(), 0), (one + one, 30), (one, 0), (end, 0)) == 0.03
    assert doubt((event_stream(), 0), (one, 0), (one + one, 50), (one, 0), (end, 0)) == 0
    assert doubt((event_stream(), 0), (one, 0), (one + end, 20)) == 0.02
