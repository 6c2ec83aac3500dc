"""The members of a zip file (a wheel), read so that a hostile one costs neither memory nor time.

The standard library reads the whole central directory into memory and trusts its sizes; here both
are bounded, members that overlap are refused, and a member is inflated only as far as it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from attrs import frozen

from lanes.hardware.streams import PACKED_CHUNK, FileStream, Stream, Unreadable
from lanes.hardware.unpacking import MAX_RATIO, SMALL, inflate

MAGICS = (b"PK\x03\x04", b"PK\x05\x06")

MAX_MEMBERS = 1_000_000
_END, _END64_LOCATOR, _END64, _CENTRAL = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06", b"PK\x01\x02"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x1


@frozen(kw_only=True)
class Member:
    """One file of a zip: its name and sizes in bytes as the directory claims them."""

    name: str
    method: int
    packed: int
    size: int
    header: int
    encrypted: bool


def members(file: BinaryIO, size: int) -> Iterator[Member]:
    """The members in the directory's order; raises Unreadable where it is broken, cut off or lies."""
    count, length, offset = _end(file, size)
    if count > MAX_MEMBERS:
        raise Unreadable(f"its directory claims {count} files")
    if offset + length > size:
        raise Unreadable("its directory lies outside the file: the file is cut off, or lies")
    stream = FileStream(file, offset, length, PACKED_CHUNK)
    packed = 0
    for _ in range(count):
        member = _member(stream)
        packed += member.packed
        if packed > size:
            raise Unreadable("its members overlap, as in a zip bomb")
        if not member.name.endswith("/"):
            yield member


def data_offset(file: BinaryIO, member: Member) -> int:
    """Where the member's packed bytes start in the file."""
    head = FileStream(file, member.header, 30).read(30)
    if len(head) < 30 or head[:4] != MAGICS[0]:
        raise Unreadable("its local header is missing")
    name, extra = struct.unpack_from("<HH", head, 26)
    return int(member.header + 30 + name + extra)


def open_member(file: BinaryIO, member: Member) -> Stream:
    """The member's unpacked bytes. Raises Unreadable for an unknown method and for zip bombs."""
    if member.encrypted:
        raise Unreadable("it is encrypted")
    if member.size > SMALL + MAX_RATIO * member.packed:
        raise Unreadable(f"it claims to unpack {member.packed} bytes to {member.size}, as in a zip bomb")
    start = data_offset(file, member)
    if member.method == _STORED:
        return FileStream(file, start, member.packed)
    if member.method == _DEFLATED:
        return inflate(FileStream(file, start, member.packed, PACKED_CHUNK), limit=member.size)
    raise Unreadable(
        f"it is packed by method {member.method}, and only stored and deflated files can be read"
    )


def _end(file: BinaryIO, size: int) -> tuple[int, int, int]:
    start = max(0, size - 65_535 - 22)
    tail = FileStream(file, start, size - start, PACKED_CHUNK).read(size - start)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise Unreadable("it has no zip directory: the file is cut off")
    count, length, offset = struct.unpack_from("<HII", tail, at + 10)
    locator = tail[at - 20 : at] if at >= 20 else b""
    if locator[:4] == _END64_LOCATOR:
        (where,) = struct.unpack_from("<Q", locator, 8)
        end64 = FileStream(file, where, 56).read(56) if where < size else b""
        if len(end64) < 56 or end64[:4] != _END64:
            raise Unreadable("its 64-bit directory is missing")
        count, length, offset = struct.unpack_from("<QQQ", end64, 32)
    return count, length, offset


def _member(stream: Stream) -> Member:
    head = stream.read(46)
    if len(head) < 46 or head[:4] != _CENTRAL:
        raise Unreadable("its directory is broken")
    flags, method = struct.unpack_from("<HH", head, 8)
    packed, size, name_size, extra_size, comment_size = struct.unpack_from("<IIHHH", head, 20)
    (header,) = struct.unpack_from("<I", head, 42)
    name = stream.read(name_size).decode("utf-8", "replace")
    extra = stream.read(extra_size)
    stream.skip(comment_size)
    size, packed, header = _widened(extra, size, packed, header)
    return Member(
        name=name, method=method, packed=packed, size=size, header=header, encrypted=bool(flags & _ENCRYPTED)
    )


def _widened(extra: bytes, *values: int) -> tuple[int, ...]:
    """Replace each 0xffffffff by its 64-bit value from the zip64 extra field, in the field's order."""
    wide: list[int] = []
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, at)
        if tag == 1:
            body = extra[at + 4 : at + 4 + length]
            wide = [struct.unpack_from("<Q", body, i)[0] for i in range(0, len(body) - 7, 8)]
        at += 4 + length
    return tuple(wide.pop(0) if value == 0xFFFFFFFF and wide else value for value in values)
