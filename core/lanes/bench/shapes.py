"""A short cut for what a stream says again and again.

A server writes thousands of events that differ in a word and a count. The first one is parsed with
care: HTTP, then the event, then its JSON. From its bytes a `Shape` is made: all of it must come
again to the letter, but for the text between two quotes and the digits of two counts. A read
of that shape then means the same, by the grammar of JSON, and is not parsed. Whatever differs in
anything else goes the long way, so the short cut never decides what something means.
"""

from __future__ import annotations

import re

import attrs

from lanes.bench.arrivals import TOKEN_KINDS
from lanes.bench.deltas import Delta, read_delta
from lanes.bench.recorder import Recorder
from lanes.bench.sse import Event, SseParser
from lanes.bench.transport import Read

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_COUNTS = re.compile(rb'("(?:completion|total)_tokens": ?)(0|[1-9]\d{0,14})(?=\D)')
_TEXT = rb'([^"\\\x00-\x1f\x7f]+)'
_NUMBER = rb"(?:0|[1-9]\d{0,14})"
_OTHER_TEXT, _OTHER_COUNT = "~another text~", 7654321
_LESSONS, _HITS_A_LESSON = 8, 32
"""Attempts to learn, and how many reads that were known earn another; a server whose events differ
in more than a text is not worth more."""


class Shape:
    """What all reads of one stream have in common, each one event in one chunk, or without chunks."""

    def __init__(self, delta: Delta, chunked: bool, before: bytes, rest: bytes) -> None:
        self.delta = delta
        self._chunked = chunked
        self._before = before
        self._starts: dict[int, bytes] = {}
        self._rest = re.compile(_TEXT + rest)
        self._counts = delta.cumulative is not None

    @classmethod
    def of(cls, data: bytes, chunked: bool) -> Shape | None:
        """Return the shape of a read that holds exactly one token-bearing event, else None."""
        body = _unframed(data) if chunked else data
        delta = _only(body) if body else None
        if not body or delta is None or delta.kind not in TOKEN_KINDS:
            return None
        if body.count(b'"completion_tokens"') > 1:
            return None
        quoted = f'"{delta.text}"'.encode()  # not found where JSON writes it otherwise
        at = -1
        while (at := body.find(quoted, at + 1)) >= 0:
            before, after = body[: at + 1], body[at + len(quoted) - 1 :]
            other = before + _OTHER_TEXT.encode() + _COUNTS.sub(rb"\g<1>%d" % _OTHER_COUNT, after)
            if _same(_only(other), delta):
                rest = _pattern(after) + (rb"\r\n" if chunked else b"")
                return cls(delta, chunked, before, rest)
        return None

    def match(self, data: bytes) -> tuple[str, int | None] | None:
        """Return the text and the completion tokens so far in a read of this shape, else None."""
        size = len(data)
        start = self._starts.get(size)
        if start is None:
            start = self._starts[size] = self._head(size) + self._before
        found = self._rest.fullmatch(data, len(start)) if data.startswith(start) else None
        if found is None:
            return None
        try:
            return found[1].decode(), int(found[2]) if self._counts else None
        except UnicodeDecodeError:
            return None

    def several(self, data: bytes) -> list[tuple[str, int | None]]:
        """Return the same of each chunk in a read of several, all of this shape; else nothing."""
        chunks = _chunks(data) if self._chunked else []
        found = [self.match(chunk) for chunk in chunks] if len(chunks) > 1 else []
        return [one for one in found if one is not None] if None not in found else []

    def parse(self, data: bytes) -> Delta | None:
        """Return all that the last event of a read of this shape holds."""
        return _only((_unframed(_chunks(data)[-1]) if self._chunked else data) or b"")

    def _head(self, size: int) -> bytes:
        """The line before a chunk that makes up a read of `size` bytes."""
        heads = (b"%x\r\n" % (size - digits - 4) for digits in range(1, 9)) if self._chunked else (b"",)
        return next((h for h in heads if len(h) + int(h or b"0", 16) + 2 == size or not h), b"\x00")


def _unframed(data: bytes) -> bytes | None:
    """The body in a read that is one whole chunk."""
    head = _CHUNK.match(data)
    if head is None or len(data) != head.end() + int(head[1], 16) + 2 or not data.endswith(b"\r\n"):
        return None
    return data[head.end() : -2]


def _chunks(data: bytes) -> list[bytes]:
    """The whole chunks that make up a read; none when anything is left."""
    found, at = [], 0
    while (head := _CHUNK.match(data, at)) is not None:
        end = head.end() + int(head[1], 16) + 2
        found.append(data[at:end])
        at = end
    return found if at == len(data) else []


def _only(body: bytes) -> Delta | None:
    """The delta in bytes that hold one event and nothing more."""
    parser = SseParser()
    parser.feed(b":\n")
    events = parser.feed(body)
    if len(events) != 1 or not isinstance(events[0], Event) or not parser.clean:
        return None
    try:
        return read_delta(events[0])
    except ValueError:
        return None


def _same(other: Delta | None, delta: Delta) -> bool:
    """Whether `other` is `delta` with `_OTHER_TEXT` and `_OTHER_COUNT`. The counts are in the usage too,
    which is parsed where it matters."""
    if other is None or (other.cumulative is None) != (delta.cumulative is None):
        return False
    cumulative = None if delta.cumulative is None else _OTHER_COUNT
    expected = attrs.evolve(delta, text=_OTHER_TEXT, cumulative=cumulative, usage=other.usage)
    return (other.usage is None) == (delta.usage is None) and other == expected


def _pattern(after: bytes) -> bytes:
    """The pattern of what follows the text."""
    parts, at = [], 0
    for count in _COUNTS.finditer(after):
        completion = b"completion" in count[1]
        parts += [re.escape(after[at : count.start()] + count[1])]
        parts += [b"(" + _NUMBER + b")" if completion else _NUMBER]
        at = count.end()
    return b"".join([*parts, re.escape(after[at:])])


class QuickRecorder(Recorder):
    """A `Recorder` that knows the shape of its stream. It records the same."""

    _shape: Shape | None = None
    _clean = False
    _hits = _lessons = 0
    _unparsed: bytes | None = None
    _usage_before: Delta | None = None

    def feed(self, read: Read) -> None:
        """Take one read."""
        shape = self._shape if self._clean and not self.done else None
        if shape is not None:
            found = shape.match(read.data)
            if found is not None:
                self._known(shape.delta, read, *found)
                self._last_doubt_ns = 0
                return
            several = shape.several(read.data)
            if several:
                for text, cumulative in several:
                    self._known(shape.delta, read, text, cumulative)
                # It was one read, of several deltas.
                self._reads -= len(several) - 1
                del self._lags[len(self._lags) - (len(several) - 1) * read.kernel :]
                self._merged_reads += 1
                self._doubt(read, False, len(several))
                return
        clean, before = self._clean, len(self._when)
        super().feed(read)
        self._clean = self._http.open_ended and self._sse.clean and read.data.endswith(b"\n")
        if clean and self._clean and len(self._when) == before + 1:
            self._learn(read.data)

    def _known(self, delta: Delta, read: Read, text: str, cumulative: int | None) -> None:
        """Record an event of the known shape, as `Recorder` would."""
        self._hits += 1
        self._reads += 1
        self._token_deltas += 1
        self._at_ns = at_ns = read.at_ns
        if read.kernel:
            self._lags.append(read.read_ns - at_ns)
        if delta.usage is not None:
            self._usage_before, self._unparsed = self._last.get("usage"), read.data
        if len(self._text) < self._keep:
            self._text = (self._text + text)[:self._keep]
        self._arrived(at_ns, delta, len(text), cumulative)

    def _learn(self, data: bytes) -> None:
        if self._lessons < _LESSONS + self._hits // _HITS_A_LESSON:
            self._lessons += 1
            self._shape = Shape.of(data, not self._http.ends_with_connection) or self._shape

    def end(self, broken: str | None = None, kind: str = "cut") -> None:
        """Take the end of the answer."""
        self._settle()
        super().end(broken, kind)

    def _settle(self) -> None:
        """Parse the last read that was not, for its usage counts if no other came after it."""
        data, self._unparsed = self._unparsed, None
        if data is None or self._shape is None or self._last.get("usage") is not self._usage_before:
            return  # there is none, or a later one
        delta = self._shape.parse(data)
        if delta is not None and delta.usage is not None:
            self._last["usage"] = delta
