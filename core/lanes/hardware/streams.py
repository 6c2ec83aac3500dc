"""Bytes that are read forward once: from a file by seeking; `unpacking` makes them of compressed data.

Whatever the size of what is read, a stream holds a few megabytes. Skipping costs a seek in a file,
and inflating without keeping in compressed data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

FILE_CHUNK = 4096
PACKED_CHUNK = 1 << 18


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
