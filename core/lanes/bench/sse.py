"""Server-sent events, read from bytes that may be cut anywhere.

Source: WHATWG HTML, section 9.2 "Server-sent events", https://html.spec.whatwg.org/#server-sent-events
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_IGNORED = {b"", b"id", b"retry"}  # a comment has no name


class Event(NamedTuple):
    """One event: its `event:` field ("message" when there was none) and its data lines joined by LF."""

    type: str
    data: str


class Stray(NamedTuple):
    """A line that is neither a field of an event nor a comment. A browser would drop it in silence; to
    us it may be an error that the server wrote without its `data:`, or an event that was damaged."""

    line: str


class SseParser:
    """Turn bytes into events. A line may have any length; comments, `id` and `retry` are dropped.

    An event is handed out with the byte that ends its blank line, never later: after a lone CR the
    parser does not wait to see whether an LF follows.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._skip_lf = False
        self._first_line = True
        self._type = ""
        self._data: list[bytes] = []

    @property
    def clean(self) -> bool:
        """Whether all that came made up whole events, so that the next byte begins a new one."""
        return not (self._buffer or self._data or self._type or self._skip_lf or self._first_line)

    def feed(self, data: bytes) -> list[Event | Stray]:
        """Take the next bytes and return the events that they completed."""
        if self._skip_lf and data:
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        buffer = self._buffer
        buffer += data
        events: list[Event | Stray] = []
        start = 0
        search_from = self._scanned
        while (end := _LINE_END.search(buffer, search_from)) is not None:
            if end.end() == len(buffer) and end.group() == b"\r":
                self._skip_lf = True
            event = self._line(bytes(buffer[start : end.start()]))
            if event is not None:
                events.append(event)
            start = search_from = end.end()
        del buffer[:start]
        self._scanned = len(buffer)
        return events

    def finish(self) -> Event | Stray | None:
        """Return what the end of the connection left without its line end or its blank line, if any."""
        line = bytes(self._buffer)
        self._buffer.clear()
        self._scanned = 0
        stray = self._line(line) if line else None
        return self._line(b"") or stray

    def _line(self, line: bytes) -> Event | Stray | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._type = value.removeprefix(b" ").decode("utf-8", "replace")
        elif name not in _IGNORED and not line.isspace():
            return Stray(line.decode("utf-8", "replace"))
        return None

    def _dispatch(self) -> Event | None:
        lines, kind = self._data, self._type
        self._data, self._type = [], ""
        if not lines:
            return None
        return Event(kind or "message", b"\n".join(lines).decode("utf-8", "replace"))
