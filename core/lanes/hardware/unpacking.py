"""Streams of what compressed data holds, inflated only as far as they are read, and bombs stopped early."""

from __future__ import annotations

import zlib
from typing import IO, Literal, cast

from lanes.hardware.streams import FILE_CHUNK, PACKED_CHUNK, Stream, Unreadable

INFLATED_CHUNK = 1 << 20
MAX_ZSTD_WINDOW = 1 << 27
MAX_RATIO = 200
"""Unpacked size over packed size; GPU libraries reach about 10, deflate could reach 1032."""
SMALL = 64 << 20
"""Bytes that may unpack at any ratio."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


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


def unpacked(stream: Stream, meter: Meter | None = None, *, nested: bool = False) -> Stream:
    """The stream itself, or what it holds where it starts like gzip or zstd; `meter` as for `inflate`."""
    head = stream.peek(4)
    if head[:2] == _GZIP:
        return inflate(stream, "gzip", meter=meter, nested=nested)
    return zstd(stream, meter=meter, nested=nested) if head == _ZSTD else stream
