"""Bytes that are read forward once: from a file by seeking, from compressed data by inflating.

Whatever the size of what is read, a stream holds a few megabytes. Skipping costs a seek in a file,
and inflating without keeping in compressed data.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import IO, BinaryIO, Literal, cast

FILE_CHUNK = 4096
PACKED_CHUNK = 1 << 18
INFLATED_CHUNK = 1 << 20
MAX_ZSTD_WINDOW = 1 << 27

MAX_RATIO = 200
"""Unpacked size over packed size; GPU libraries reach about 10, deflate could reach 1032."""
SMALL = 64 << 20
"""Bytes that may unpack at any ratio."""


class Unreadable(Exception):
    """The bytes are not what they claim to be; the message is the rest of "cannot be read: ..."."""


class Stream:
    """Bytes in order. `position` counts from the start; `tail` still knows what was just read."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        self._pull = pull
        self._chunk = b""
        self._at = 0
        self._before = b""
        self.position = 0

    def _fill(self) -> bool:
        """Make sure that a byte is at hand; False at the end."""
        while self._at >= len(self._chunk):
            fresh = self._pull()
            if not fresh:
                return False
            self._before, self._chunk, self._at = self._chunk, fresh, 0
        return True

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0 and self._fill():
            part = self._chunk[self._at : self._at + size]
            self._at += len(part)
            self.position += len(part)
            size -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end; they are still there to be read."""
        while len(self._chunk) - self._at < size:
            fresh = self._pull()
            if not fresh:
                break
            self._chunk, self._at = self._chunk[self._at :] + fresh, 0
        return self._chunk[self._at : self._at + size]

    def some(self, limit: int) -> bytes:
        """Up to `limit` bytes, as many as are at hand; none at the end."""
        if limit <= 0 or not self._fill():
            return b""
        part = self._chunk[self._at : self._at + limit]
        self._at += len(part)
        self.position += len(part)
        return part

    def skip(self, size: int) -> int:
        """Pass over `size` bytes; returns how many there were."""
        left = size
        while left > 0 and self._fill():
            step = min(left, len(self._chunk) - self._at)
            self._at += step
            self.position += step
            left -= step
        return size - left

    def find(self, pattern: bytes, limit: int) -> bool:
        """Go to the next `pattern` that starts within `limit` bytes; False when there is none."""
        end = self.position + limit
        while self.position < end and self._fill():
            found = self._chunk.find(pattern, self._at)
            if found < 0:
                # The pattern may lie across two chunks: carry its possible beginning over.
                keep = min(len(pattern) - 1, len(self._chunk) - self._at)
                self.position += len(self._chunk) - self._at - keep
                rest = self._chunk[len(self._chunk) - keep :]
                fresh = self._pull()
                if not fresh:
                    self._at = len(self._chunk)
                    self.position += keep
                    return False
                self._before = self._chunk[: len(self._chunk) - keep]
                self._chunk, self._at = rest + fresh, 0
                continue
            self.position += found - self._at
            self._at = found
            return self.position < end
        return False

    def place(self) -> tuple[BinaryIO, int] | None:
        """The file and the offset where the next byte lies unpacked; None where it does not."""
        return None

    def tail(self) -> tuple[int, bytes]:
        """What is still at hand behind the position, with its offset: at most two chunks."""
        kept = self._before + self._chunk[: self._at]
        return self.position - len(kept), kept


class FileStream(Stream):
    """A range of a file: `size` bytes from `start`, or fewer where the file ends earlier."""

    def __init__(self, file: BinaryIO, start: int, size: int, chunk: int = FILE_CHUNK) -> None:
        super().__init__(self._read_chunk)
        self._file = file
        self._next = start
        self._end = start + size
        self._size = chunk

    def _read_chunk(self) -> bytes:
        # One file serves several streams, so each states where it is.
        self._file.seek(self._next)
        data = self._file.read(min(self._size, self._end - self._next))
        self._next += len(data)
        return data

    def place(self) -> tuple[BinaryIO, int] | None:
        return self._file, self._next - (len(self._chunk) - self._at)

    def skip(self, size: int) -> int:
        ahead = len(self._chunk) - self._at
        if size <= ahead:
            return super().skip(size)
        jump = min(size - ahead, max(0, self._end - self._next))
        self._before, self._chunk, self._at = b"", b"", 0
        self._next += jump
        self.position += ahead + jump
        return ahead + jump


class Part(Stream):
    """The next `size` bytes of another stream, as a stream of their own."""

    def __init__(self, source: Stream, size: int) -> None:
        super().__init__(self._take)
        self._source = source
        self._left = size

    def _take(self) -> bytes:
        data = self._source.some(self._left)
        self._left -= len(data)
        return data

    def place(self) -> tuple[BinaryIO, int] | None:
        found = self._source.place()
        return (found[0], found[1] - (len(self._chunk) - self._at)) if found else None

    def skip(self, size: int) -> int:
        ahead = len(self._chunk) - self._at
        if size <= ahead:
            return super().skip(size)
        jumped = self._source.skip(min(size - ahead, self._left))
        self._before, self._chunk, self._at = b"", b"", 0
        self._left -= jumped
        self.position += ahead + jumped
        return ahead + jumped


class Meter:
    """Stops what unpacks to far more than it was: one for all that is unpacked out of one file, so that
    bombs within bombs count together."""

    def __init__(self) -> None:
        self._packed = 0
        self._unpacked = 0

    def count(self, *, packed: int = 0, unpacked: int = 0) -> None:
        """Note bytes that went in and came out; raises Unreadable when it is too much."""
        self._packed += packed
        self._unpacked += unpacked
        if self._unpacked > SMALL + MAX_RATIO * self._packed:
            raise Unreadable(f"it unpacks to more than {MAX_RATIO} times its size, as a zip bomb does")


def inflate(
    source: Stream,
    wrapper: Literal["raw", "zlib", "gzip"] = "raw",
    *,
    limit: int | None = None,
    meter: Meter | None = None,
    nested: bool = False,
) -> Stream:
    """The bytes of deflated data in its wrapper; reading raises Unreadable where it is broken.

    More than `limit` bytes are Unreadable too. `nested` says that the source is unpacked data itself,
    which gives no new allowance on the meter.
    """
    window = {"raw": -15, "zlib": 15, "gzip": 31}[wrapper]
    gzip = wrapper == "gzip"
    engine = zlib.decompressobj(window)
    meter = meter or Meter()
    made = 0
    # Most members of an archive are only looked at: the first pieces are small.
    piece = FILE_CHUNK

    def pull() -> bytes:
        nonlocal made, piece
        data = unpack(piece)
        piece = min(2 * piece, INFLATED_CHUNK)
        made += len(data)
        meter.count(unpacked=len(data))
        if limit is not None and made > limit:
            raise Unreadable(f"it unpacks to more than the {limit} bytes that it claims")
        return data

    def fetch() -> bytes:
        # Small for gzip: a file of many tiny parts has what is left of this copied for each of them.
        data = source.read(PACKED_CHUNK >> 3 if gzip else PACKED_CHUNK)
        meter.count(packed=0 if nested else len(data))
        return data

    def unpack(size: int) -> bytes:
        nonlocal engine
        while True:
            if engine.eof:
                rest = engine.unused_data or (fetch() if gzip else b"")
                # Gzip files may be joined one behind the other, and padded with zeros.
                if not gzip or not rest.strip(b"\0"):
                    return b""
                engine = zlib.decompressobj(window)
            else:
                rest = engine.unconsumed_tail or fetch()
            try:
                data = engine.decompress(rest, size)
            except zlib.error as error:
                raise Unreadable(f"the compressed data is broken ({error})") from None
            if data:
                return data
            if not rest and not engine.eof:
                raise Unreadable("the compressed data ends too early")

    return Stream(pull)


def zstd(source: Stream, *, meter: Meter | None = None, nested: bool = False) -> Stream:
    """The bytes of a zstd stream; raises Unreadable where no reader for it is installed.

    `meter` and `nested` as for `inflate`.
    """
    try:
        import zstandard
    except ImportError:
        raise Unreadable(
            "it is compressed with zstd; install the package zstandard to look into it"
        ) from None
    meter = meter or Meter()
    engine = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
    reader = engine.stream_reader(cast("IO[bytes]", source), read_size=PACKED_CHUNK, read_across_frames=True)
    seen = source.position

    def pull() -> bytes:
        nonlocal seen
        try:
            data: bytes = reader.read(INFLATED_CHUNK)
        except zstandard.ZstdError as error:
            raise Unreadable(f"the compressed data is broken ({error})") from None
        meter.count(packed=0 if nested else source.position - seen, unpacked=len(data))
        seen = source.position
        return data

    return Stream(pull)
