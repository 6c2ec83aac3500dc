"""NVIDIA fat binaries: which code do they hold, by their headers alone.

Layout (little-endian), read off known builds: a container starts with `50 ed 55 ba`, u16 version,
u16 header size, u64 size of what follows; in it entries, each with u16 kind at +0, u32 header size at
+4, u64 payload size at +8, u32 architecture at +28 and u64 flags at +40. Containers follow each other
with padding between them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from attrs import frozen

from lanes.hardware.rules import Code, CodeKind
from lanes.hardware.streams import Stream, Unreadable
from lanes.hardware.targets import Suffix

MAGIC = b"\x50\xed\x55\xba"
CONTAINER_HEADER = 16
ENTRY_HEADER = 48

MAX_ENTRIES = 200_000
"""Entries, and containers, that are read per section; the largest known library has a few thousand."""
MAX_DOUBTS = 10_000
MAX_GAP = 1 << 20
"""Bytes between two containers of a section; linkers leave at most a page."""

_KINDS = {1: CodeKind.PTX, 2: CodeKind.SASS, 8: CodeKind.LTO}
_ARCH_SPECIFIC = 0x100000
_FAMILY_SPECIFIC = 0x200000


@frozen(kw_only=True)
class Container:
    """One fat binary: where it starts and ends (bytes from the stream's start), and its code with counts."""

    offset: int
    end: int
    codes: tuple[tuple[Code, int], ...]


class FatbinReader:
    """Reads the containers of a stream one after the other.

    `doubts` are the offsets at which `anywhere` passed over something that looked like a container.
    """

    def __init__(self, stream: Stream) -> None:
        self.doubts: list[int] = []
        self._stream = stream
        self._entries = 0
        self._known: dict[tuple[int, int, int], Code] = {}

    def section(self, size: int) -> Iterator[Container]:
        """The containers within the next `size` bytes, which hold nothing else.

        Raises Unreadable where a header contradicts the section or what came before it.
        """
        end = self._stream.position + size
        while (left := end - self._stream.position) > 0:
            if not self._stream.find(MAGIC, min(MAX_GAP, left)):
                if left > MAX_GAP:
                    raise Unreadable(f"its section of fat binaries ends in {left} bytes that are none")
                return
            offset = self._stream.position
            found = self._container(end)
            if found is None:
                raise Unreadable(f"the fat binary at byte {offset:#x} has an unknown header")
            yield found

    def anywhere(self, limit: int) -> Iterator[Container]:
        """The containers within the next `limit` bytes, among anything else.

        The magic also occurs in programs that handle fat binaries, so what does not hold together
        is passed over without a word.
        """
        end = self._stream.position + limit
        while self._stream.position < end and self._stream.find(MAGIC, end - self._stream.position):
            offset = self._stream.position
            try:
                found = self._container(end)
            except Unreadable:
                if self._entries > MAX_ENTRIES:
                    raise
                found = None
            if found is not None:
                yield found
            elif len(self.doubts) < MAX_DOUBTS:
                self.doubts.append(offset)

    def _container(self, end: int) -> Container | None:
        offset = self._stream.position
        self._count_up()
        head = self._stream.read(CONTAINER_HEADER)
        if len(head) < CONTAINER_HEADER:
            raise Unreadable("it ends within the header of a fat binary")
        version, header, size = struct.unpack_from("<HHQ", head, 4)
        if version != 1 or header != CONTAINER_HEADER:
            return None
        if size > end - self._stream.position:
            raise Unreadable(
                f"the fat binary at byte {offset:#x} claims {size} bytes where {end - self._stream.position} are left"
            )
        codes = Counter(self._entry_codes(offset, self._stream.position + size))
        return Container(offset=offset, end=self._stream.position, codes=tuple(codes.items()))

    def _entry_codes(self, offset: int, end: int) -> Iterator[Code]:
        stream = self._stream
        while (left := end - stream.position) > 0:
            self._count_up()
            head = stream.read(min(ENTRY_HEADER, left))
            if len(head) < ENTRY_HEADER:
                raise Unreadable(f"an entry of the fat binary at byte {offset:#x} is cut off")
            kind, header, size = struct.unpack_from("<HxxIQ", head)
            (arch,) = struct.unpack_from("<I", head, 28)
            (flags,) = struct.unpack_from("<Q", head, 40)
            if header < ENTRY_HEADER or header + size > left or not 10 <= arch < 1000:
                raise Unreadable(
                    f"an entry of the fat binary at byte {offset:#x} claims architecture {arch} and "
                    f"{header} + {size} bytes where {left} are left"
                )
            yield self._code(kind, arch, flags)
            skipped = header - ENTRY_HEADER + size
            if stream.skip(skipped) < skipped:
                raise Unreadable(f"it ends within the fat binary at byte {offset:#x}")

    def _count_up(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise Unreadable(f"it has more than {MAX_ENTRIES} pieces of GPU code")

    def _code(self, kind: int, arch: int, flags: int) -> Code:
        key = kind, arch, flags & (_ARCH_SPECIFIC | _FAMILY_SPECIFIC)
        if key not in self._known:
            suffix: Suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
            self._known[key] = Code(kind=_KINDS.get(kind, CodeKind.OTHER), arch=str(arch), suffix=suffix)
        return self._known[key]
