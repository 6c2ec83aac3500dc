"""What one connection brought, kept until there is time to look through it."""

from __future__ import annotations

import asyncio
import operator
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol, overload

_STAMP_BYTES = struct.calcsize("@2l")
_SLACK_NS = 1_000_000
LAST = b"0\r\n\r\n"
"""What the last read of an answer in chunks ends with (RFC 9112, 7.1)."""
_RUNNING = 4
"""Reads of a stream that are acknowledged at once in any case: the first token is among them."""
_WATCHED = 8
"""Reads after them that are watched one by one."""
_LONG_NS = 35_000_000
"""A little less than acknowledgements are delayed."""


class Read(NamedTuple):
    """Bytes, when they reached this machine, when this program read them (CLOCK_REALTIME, ns), and
    whether the first time is the kernel's."""

    data: bytes
    at_ns: int
    read_ns: int
    kernel: bool


class Reads(Sequence[Read]):
    """Several reads of one connection, as columns."""

    def __init__(
        self, data: Sequence[bytes], at_ns: Sequence[int], read_ns: Sequence[int], kernel: Sequence[bool]
    ) -> None:
        self.data, self.at_ns, self.read_ns, self.kernel = data, at_ns, read_ns, kernel

    @classmethod
    def of(cls, data: list[bytes], stamps: list[bytes], read_ns: list[int], t0_ns: int) -> Reads:
        """Return reads with the kernel's `stamps` (`struct timespec`, or nothing) where they make sense: not
        before t0, and not after the read."""
        count = len(data)
        raw = b"".join(stamps)
        if len(raw) == _STAMP_BYTES * count and b"" not in stamps:
            parts = struct.unpack(f"@{2 * count}l", raw)
            at_ns = [s * 1_000_000_000 + ns for s, ns in zip(parts[::2], parts[1::2], strict=True)]
            late = max(map(operator.sub, at_ns, read_ns), default=0)
            if late <= _SLACK_NS and min(at_ns, default=t0_ns) >= t0_ns - _SLACK_NS:
                return cls(data, at_ns, read_ns, [True] * count)
        at_ns, kernel = [], []
        for stamp, read in zip(stamps, read_ns, strict=True):
            s, ns = struct.unpack("@2l", stamp) if len(stamp) == _STAMP_BYTES else (0, 0)
            at = s * 1_000_000_000 + ns
            kernel.append(t0_ns - _SLACK_NS <= at <= read + _SLACK_NS)
            at_ns.append(at if kernel[-1] else read)
        return cls(data, at_ns, read_ns, kernel)

    @overload
    def __getitem__(self, index: int) -> Read: ...
    @overload
    def __getitem__(self, index: slice) -> Reads: ...
    def __getitem__(self, index: int | slice) -> Read | Reads:
        if isinstance(index, slice):
            return Reads(self.data[index], self.at_ns[index], self.read_ns[index], self.kernel[index])
        return Read(self.data[index], self.at_ns[index], self.read_ns[index], self.kernel[index])

    def __iter__(self) -> Iterator[Read]:
        return map(Read, self.data, self.at_ns, self.read_ns, self.kernel)

    def __len__(self) -> int:
        return len(self.data)


def as_reads(reads: Collection[Read]) -> Reads:
    """Return them as columns."""
    return Reads(*map(list, zip(*reads, strict=True))) if reads else Reads((), (), (), ())


class Connection(Protocol):
    """What a tape asks of its connection."""

    @property
    def many(self) -> bool: ...
    def delay_acks(self, delay: bool) -> None: ...
    def segments(self) -> int: ...
    def steady(self, kept: list[bytes | int]) -> None: ...
    def hurry(self) -> None: ...


class Nagle:
    """Whether a server was seen to wait for acknowledgements (`Connection.delay_acks`)."""

    seen = False


class Tape:
    """The reads of one connection.

    Parsing while the streams run would delay the reads of the others, and a read that comes late finds
    several deltas that share one stamp. So reads are kept as they came, and looked through when the
    answer may have ended, when nothing came for a while, or when there are too many; each at once
    while `eager`, as long as it is not known to be a stream. `woken` says that it is time.

    Where there are many connections, what comes in the middle of an answer is acknowledged with delay. A
    server that waits for that shows by several events in one read after the time of the delay: all are
    acknowledged at once from then on. When that was watched for a while, the connection keeps what comes
    by itself (`Connection.steady`), and it is watched now and then.
    """

    def __init__(self, connection: Connection, room: Callable[[], int], nagle: Nagle) -> None:
        self.ended = False
        self.broken: str | None = None
        self.eager = True
        self.woken = asyncio.Event()
        self._connection = connection
        self._nagle = nagle
        self._delayed = False
        self._watched = 0
        self._counted = (0, 0)
        self._past = 0
        self._fresh_room = room
        self._room = -1  # a wake for each read while `eager`
        # Flat: tuples in it would be tracked by the garbage collector, which would run often.
        self._kept: list[bytes | int] = []
        self._last_ns = 0
        self._seen = 0

    def take(self, data: bytes, stamp: bytes, read_ns: int) -> None:
        """Keep a read; wake who waits when it may be the last one, or there are too many.

        `[DONE]` alone wakes nobody: the end of the answer follows at once, or `look` does.
        """
        self._kept += (data, stamp, read_ns)
        if self._watched:
            self._watch(data, read_ns)
        self._room -= len(data)
        if self._room < 0 or data.endswith(LAST):
            self.wake()

    def _watch(self, data: bytes, read_ns: int) -> None:
        """Delay the acknowledgements, or no longer; nobody asks when the reads are watched no more."""
        self._watched -= 1
        if self._delayed and read_ns - self._last_ns > _LONG_NS:
            self._consider(data)
        self._last_ns = read_ns
        if self._watched == _WATCHED and self._connection.many and not self._nagle.seen:
            self._delayed = True
            self._segments()
            self._connection.delay_acks(True)
        if not self._watched and self._connection.many:
            self._connection.steady(self._kept)

    def _consider(self, data: bytes) -> None:
        """Acknowledge at once again, if `data`, which came late, shows that the server waits for that."""
        events = data.count(b"data:")
        # Events that this program read late came in segments of their own.
        if events > 1 and self._segments() < events - 1:
            self._nagle.seen = True
            self._delayed = False
            self._connection.delay_acks(False)

    def _segments(self) -> int:
        """Return how many more segments came than were read one by one, since the last time."""
        segments, reads = self._connection.segments(), self._count
        more = (segments - self._counted[0]) - (reads - self._counted[1])
        self._counted = segments, reads
        return more

    @property
    def _count(self) -> int:
        """How many reads came."""
        return self._past + len(self._kept) // 3

    def running(self) -> None:
        """It is known to be a stream: events will come one by one."""
        if self.eager:
            self.eager = False
            self._room = self._fresh_room()
            self._watched = _RUNNING + _WATCHED

    def end(self, broken: str | None) -> None:
        self.ended, self.broken = True, broken
        self.wake()

    def wake(self) -> None:
        """It is time to look through what is kept."""
        self.woken.set()
        self._connection.hurry()

    def unwind(self, t0_ns: int) -> Reads:
        """Return what is on the tape, which is empty then."""
        kept = self._kept
        reads = Reads.of(kept[::3], kept[1::3], kept[2::3], t0_ns)  # type: ignore[arg-type]
        self._past += len(reads)
        kept.clear()  # the connection may keep into it
        if not self.eager:
            self._room = self._fresh_room()
        return reads

    def look(self) -> None:
        """Called now and then: wake who waits when nothing came since the last time."""
        kept, count = self._kept, self._count
        if count == self._seen:
            self.woken.set()
        elif self._delayed and not self._watched and len(kept) >= 6:
            data, before_ns, last_ns = kept[-3], kept[-4], kept[-1]
            assert isinstance(data, bytes) and isinstance(before_ns, int) and isinstance(last_ns, int)
            if last_ns - before_ns > _LONG_NS:
                self._consider(data)
        self._seen = count
