"""A short cut for what a stream says again and again.

A server writes thousands of events that differ in a word and a count. The first one is parsed with
care: HTTP, then the event, then its JSON. From its bytes a `Shape` is made: all of it must come
again to the letter, but for the text between two quotes and the digits of two counts. A read
of that shape then means the same, by the grammar of JSON, and is not parsed. Whatever differs in
anything else goes the long way, so the short cut never decides what something means.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import attrs

from lanes.bench.arrivals import TOKEN_KINDS
from lanes.bench.deltas import Delta, read_delta
from lanes.bench.recorder import Recorder
from lanes.bench.sse import Event, SseParser
from lanes.bench.tape import Read, Reads

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_COUNTS = re.compile(rb'("(?:completion|total)_tokens": ?)(0|[1-9]\d{0,14})(?=\D)')
_NO_TEXT = re.compile(rb'["\\\x00-\x1f\x7f]')
_COUNT_DIGITS = 15
_COUNT = re.compile(rb"0|[1-9]\d{0,14}")
_OTHER_TEXT, _OTHER_COUNT = "~another text~", 7654321
_LESSONS, _HITS_A_LESSON = 8, 32
"""Attempts to learn, and how many reads that were known earn another; a server whose events differ
in more than a text is not worth more."""


class Found(NamedTuple):
    """What some reads hold: their texts, and the completion tokens so far."""

    texts: Sequence[str]
    cumulative: Sequence[int | None]


NOTHING = Found((), ())


class Shape:
    """What all reads of one stream have in common, each one event in one chunk, or without chunks."""

    def __init__(self, delta: Delta, chunked: bool, before: bytes, rest: bytes) -> None:
        self.delta = delta
        self._chunked = chunked
        self._before = before
        self._starts: dict[int, bytes] = {}
        names, self._same = _counts(rest)
        self._fixed = sum(map(len, self._same))
        # How a read goes on after its text, with room for the counts; empty where it has none.
        self._tail = b"%d".join(each.replace(b"%", b"%%") for each in self._same) if names else b""
        # Which of the parts is the completion tokens; 0 is the text.
        self._completion = names.index(b"completion") + 1 if delta.cumulative is not None else 0

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
                return cls(delta, chunked, before, after + (b"\r\n" if chunked else b""))
        return None

    def run(self, data: Sequence[bytes]) -> Found:
        """Return what the first ones of `data` hold that are reads of this shape."""
        texts, counts = self._apart(data[:1] if self._tail else data)
        if not texts or not self._tail:
            return Found(texts, [None] * len(texts))
        first = [int(column[0]) for column in counts]
        texts = self._stepped(data, first)
        at = first[self._completion - 1]
        cumulative = list(range(at, at + len(texts)))
        if len(texts) < len(data):
            others, counts = self._apart(data[len(texts) :])
            texts += others
            cumulative += map(int, counts[self._completion - 1][: len(others)])
        return Found(texts, cumulative if self._completion else [None] * len(texts))

    def _stepped(self, data: Sequence[bytes], counts: Sequence[int]) -> list[str]:
        """Return the texts of the first ones of `data` that have these counts, and then each count one more
        than the read before: most servers send a token an event, and so it is known what comes."""
        starts, texts = self._starts, []
        for one, numbers in zip(data, zip(*map(itertools.count, counts), strict=False), strict=False):
            size = len(one)
            start = starts.get(size)
            if start is None:
                start = starts[size] = self._start(size)
            tail = self._tail % numbers
            if not (one.startswith(start) and one.endswith(tail)):
                break
            texts.append(one[len(start) : -len(tail)])
        return _decoded(texts)

    def _apart(self, data: Iterable[bytes]) -> tuple[list[str], list[list[bytes]]]:
        """Return the texts of the first ones of `data` that are reads of this shape, and a column for each count."""
        starts, same, end = self._starts, self._same, self._same[-1]
        tail = -len(end)
        # What lies between, and the byte that it begins with and that no count holds.
        between = [(each, each[:1], len(each)) for each in same[:-1]]
        # Of each read in turn: its text, then its counts.
        parts: list[bytes] = []
        width = len(same)
        for one in data:
            size = len(one)
            start = starts.get(size)
            if start is None:
                start = starts[size] = self._start(size)
            if not (one.startswith(start) and one.endswith(end)):
                break
            at = len(start)
            # Comparing bytes with bytes is what a regular expression does far more slowly.
            for each, first, length in between:
                stop = one.find(first, at)
                if not one.startswith(each, stop):
                    break
                parts.append(one[at:stop])
                at = stop + length
            else:
                parts.append(one[at:tail])
                continue
            del parts[len(parts) - len(parts) % width :]
            break
        texts = parts[::width]
        counts = [parts[column::width] for column in range(1, width)]
        for column in counts:
            del texts[_counted(column) :]
        return _decoded(texts), counts

    def several(self, data: bytes) -> Found:
        """Return the same of each chunk in a read of several, all of this shape; else nothing."""
        chunks = _chunks(data) if self._chunked else []
        found = self.run(chunks) if len(chunks) > 1 else NOTHING
        return found if len(found.texts) == len(chunks) else NOTHING

    def parse(self, data: bytes) -> Delta | None:
        """Return all that the last event of a read of this shape holds."""
        return _only((_unframed(_chunks(data)[-1]) if self._chunked else data) or b"")

    def _start(self, size: int) -> bytes:
        """What a read of `size` bytes begins with, up to its text; where it has no room for one, what no
        read begins with."""
        heads = (b"%x\r\n" % max(size - digits - 4, 0) for digits in range(1, 9)) if self._chunked else (b"",)
        head = next((h for h in heads if len(h) + int(h or b"0", 16) + 2 == size or not h), None)
        room = head is not None and size > len(head) + len(self._before) + self._fixed
        return head + self._before if head is not None and room else b"\x00"


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


def _counts(after: bytes) -> tuple[list[bytes], list[bytes]]:
    """The names of the counts in what follows the text, and what lies between them."""
    names, same, at = [], [], 0
    for count in _COUNTS.finditer(after):
        names.append(b"completion" if b"completion" in count[1] else b"total")
        same.append(after[at : count.start()] + count[1])
        at = count.end()
    return names, [*same, after[at:]]


class QuickRecorder(Recorder):
    """A `Recorder` that knows the shape of its stream. It records the same."""

    _shape: Shape | None = None
    _clean = False
    _hits = _lessons = 0
    _unparsed: bytes | None = None
    _usage_before: Delta | None = None

    def feed(self, reads: Reads) -> None:
        """Take some reads."""
        at = 0
        while at < len(reads) and not self.done:
            known = self._known(reads, at)
            if not known:
                self._feed(reads[at])
            at += known or 1

    def _known(self, reads: Reads, at: int) -> int:
        """Take the reads from `at` on that are of the known shape; return how many that were."""
        shape = self._shape if self._clean and not self.done else None
        if shape is None:
            return 0
        found = shape.run(reads.data[at:] if at else reads.data)
        count = len(found.texts)
        if count:
            self._record(shape.delta, reads[at : at + count] if count < len(reads) else reads, found)
            self._last_doubt_ns = 0
        return count

    def _feed(self, read: Read) -> None:
        shape = self._shape if self._clean and not self.done else None
        several = shape.several(read.data) if shape is not None else NOTHING
        if shape is not None and several.texts:
            count = len(several.texts)
            one = Reads(
                [read.data] * count, [read.at_ns] * count, [read.read_ns] * count, [read.kernel] * count
            )
            self._record(shape.delta, one, several)
            # It was one read, of several deltas.
            self._reads -= count - 1
            del self._lags[len(self._lags) - (count - 1) * read.kernel :]
            self._merged_reads += 1
            self._doubt(read, False, count)
            return
        clean, before = self._clean, len(self._when)
        super()._feed(read)
        self._clean = self._http.open_ended and self._sse.clean and read.data.endswith(b"\n")
        if clean and self._clean and len(self._when) == before + 1:
            self._learn(read.data)

    def _record(self, delta: Delta, reads: Reads, found: Found) -> None:
        """Record events of the known shape, as `Recorder` would."""
        texts, count = found.texts, len(found.texts)
        self._hits += count
        self._reads += count
        self._token_deltas += count
        self._at_ns = reads.at_ns[-1]
        lags = map(operator.sub, reads.read_ns, reads.at_ns)
        self._lags += lags if all(reads.kernel) else itertools.compress(lags, reads.kernel)
        if delta.usage is not None:
            self._usage_before, self._unparsed = self._last.get("usage"), reads.data[-1]
        if len(self._text) < self._keep:
            self._text = (self._text + "".join(texts[: self._keep]))[: self._keep]
        self._when += map(operator.sub, reads.at_ns, itertools.repeat(self.t0_ns))
        self._kinds += [delta.kind] * count
        self._chars += map(len, texts)
        self._cumulative += found.cumulative
        self._tokens += [delta.tokens] * count

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


def _counted(counts: list[bytes]) -> int:
    """How many of the first ones are counts as JSON writes them."""
    # All at once, where none is empty, too long or begins with 0.
    if b"".join(counts).isdigit() and min(counts) >= b"1" and max(map(len, counts)) <= _COUNT_DIGITS:
        return len(counts)
    return sum(1 for _ in itertools.takewhile(_COUNT.fullmatch, counts))


def _decoded(texts: list[bytes]) -> list[str]:
    """The first ones of `texts` that JSON writes as they are."""
    if _NO_TEXT.search(b"".join(texts)) or b"" in texts:
        texts = [*itertools.takewhile(lambda text: text and not _NO_TEXT.search(text), texts)]
    decoded: list[str] = []
    with contextlib.suppress(UnicodeDecodeError):
        decoded.extend(map(bytes.decode, texts))
    return decoded
