"""Events come out the same however the bytes were cut."""

from __future__ import annotations

import pytest
from lanes.bench.sse import Event, SseParser, Stray

TEXT = (
    b"\xef\xbb\xbf: hello\n\n"
    b'data: {"a": 1}\n\n'
    b"event: error\ndata: first\ndata: second\n\n"
    b"data:no space\nid: 7\nretry: 10\nunknown\n\n"
    b": ping\n\n\n"
    b"data: \xc3\xa9\xe2\x82\xac\n\n"
    b"data\n\n"
    b"event: without data\n\n"
    b"data: [DONE]\n\n"
)
EVENTS: list[Event | Stray] = [
    Event("message", '{"a": 1}'),
    Event("error", "first\nsecond"),
    Stray("unknown"),
    Event("message", "no space"),
    Event("message", "é€"),
    Event("message", ""),
    Event("message", "[DONE]"),
]


def read(pieces: list[bytes]) -> list[Event | Stray]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    last = parser.finish()
    return [*events, last] if last else events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_same_bytes_cut_anywhere_give_the_same_events(end: bytes) -> None:
    text = TEXT.replace(b"\n", end)
    assert read([text]) == EVENTS
    assert read([text[i : i + 1] for i in range(len(text))]) == EVENTS
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]]) == EVENTS


def test_an_event_comes_out_with_the_byte_that_ends_it() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r\n\r") == [Event("message", "x")]
    assert parser.feed(b"\ndata: y\r\r") == [Event("message", "y")]


def test_a_line_may_be_as_long_as_it_likes_and_is_scanned_once() -> None:
    parser = SseParser()
    for _ in range(2000):
        assert parser.feed(b"data: " if _ == 0 else b"x" * 4096) == []
    (event,) = parser.feed(b"\n\n")
    assert isinstance(event, Event)
    assert len(event.data) == 1999 * 4096


def test_a_last_event_without_its_blank_line_is_kept() -> None:
    assert read([b"data: [DONE]"]) == [Event("message", "[DONE]")]
    assert read([b"data: [DONE]\n"]) == [Event("message", "[DONE]")]
    assert read([b": nothing"]) == []
