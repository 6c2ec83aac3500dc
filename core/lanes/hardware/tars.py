"""The members of a tar, read forward from any stream with bounded memory.

The standard library's reader trusts the sizes of extended headers, which a hostile archive may set
to gigabytes; here they are bounded, and nothing is seeked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from lanes.hardware.streams import Part, Stream, Unreadable

BLOCK = 512
MAX_HEADER = 1 << 20
"""Bytes of one extended header."""
MAX_MEMBERS = 10_000_000
MAX_NAME = 4096
"""Characters of a name that are kept; Linux takes no longer paths."""

_KEPT = ("path", "linkpath", "size")
_FILES = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"


@frozen(kw_only=True)
class Member:
    """One entry of a tar. `link` is the target's name, as the archive says it, for links only."""

    name: str
    size: int
    is_file: bool
    link: str | None


def is_tar(head: bytes) -> bool:
    """Do these first 512 bytes start a tar?"""
    return len(head) >= BLOCK and head[257:262] == b"ustar" and _checked(head[:BLOCK])


def members(stream: Stream) -> Iterator[tuple[Member, Stream]]:
    """Each entry with its bytes, which are valid until the next one is asked for.

    Raises Unreadable where the archive is cut off or broken.
    """
    extended: dict[str, str] = {}
    for _ in range(MAX_MEMBERS):
        head = stream.read(BLOCK)
        if not head.strip(b"\0"):
            # Two empty blocks end an archive; some writers leave them out.
            return
        if len(head) < BLOCK or not _checked(head):
            raise Unreadable("the tar is cut off or broken")
        size, kind = _size(head), head[156:157]
        start = stream.position
        if kind in (b"L", b"K", b"x", b"g"):
            body = _extended(stream, size)
            if kind == b"x":
                extended |= {key: value for key, value in _pax(body).items() if key in _KEPT}
            elif kind != b"g":
                extended["path" if kind == b"L" else "linkpath"] = _text(body)
        else:
            claimed = extended.get("size", "")
            size = int(claimed) if re.fullmatch("[0-9]{1,18}", claimed) else size
            member = _member(head, size, kind, extended)
            extended = {}
            size = 0 if kind in _WITHOUT_DATA else size
            yield member, Part(stream, size)
        rest = start + size + -size % BLOCK - stream.position
        if rest > 0 and stream.skip(rest) < rest - BLOCK:
            raise Unreadable("the tar is cut off")
    raise Unreadable(f"the tar has more than {MAX_MEMBERS} members")


def _member(head: bytes, size: int, kind: bytes, extended: dict[str, str]) -> Member:
    prefix = _text(head[345:500]) if head[257:263] == b"ustar\0" else ""
    name = _text(head[:100])
    link = extended.get("linkpath", _text(head[157:257]))
    return Member(
        name=extended.get("path", f"{prefix}/{name}" if prefix else name).removeprefix("./")[:MAX_NAME],
        size=size,
        is_file=kind in _FILES,
        link=link[:MAX_NAME] if kind in (_HARD_LINK, _SYMBOLIC_LINK) else None,
    )


def _extended(stream: Stream, size: int) -> bytes:
    if size > MAX_HEADER:
        raise Unreadable(f"a header of the tar claims {size} bytes")
    body = stream.read(size)
    if len(body) < size:
        raise Unreadable("the tar is cut off")
    return body


def _pax(body: bytes) -> dict[str, str]:
    """The records `<length> <key>=<value>` of an extended header."""
    found: dict[str, str] = {}
    at = 0
    while at < len(body):
        digits = body[at : at + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) < length <= len(body) - at:
            raise Unreadable("an extended header of the tar is broken")
        key, _, value = body[at + len(digits) + 1 : at + length].rstrip(b"\n").partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        at += length
    return found


def _size(head: bytes) -> int:
    size = _number(head[124:136])
    if size >= 1 << 63:
        raise Unreadable(f"a member of the tar claims {size} bytes")
    return size


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        # Sizes beyond 8 GiB are written in binary.
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not digits:
        return 0
    try:
        return max(0, int(digits, 8))
    except ValueError:
        raise Unreadable("a size in the tar is not a number") from None


def _checked(head: bytes) -> bool:
    try:
        claimed = _number(head[148:156])
    except Unreadable:
        return False
    return claimed == sum(head) - sum(head[148:156]) + 8 * 0x20


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")
