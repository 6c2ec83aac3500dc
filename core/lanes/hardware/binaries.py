"""The GPU code of one ELF file, wherever its bytes come from.

A file on disk is read by its section table: headers only. A packed one can only be read forward, and
its section table stands at its end; so fat binaries are looked for on the way, and kept when they
turn out to lie in a section for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import BinaryIO

from attrs import evolve, frozen

from lanes.hardware import amd, elf, fatbin
from lanes.hardware.library import sorted_codes
from lanes.hardware.rules import Code
from lanes.hardware.streams import PACKED_CHUNK, FileStream, Stream, Unreadable

LINKED, RELOCATABLE, AMD = ".nv_fatbin", "__nv_relfatbin", ".hip_fatbin"

MAX_SEARCH = 2 << 30
"""Bytes that are searched for fat binaries in a file without a section table."""
MAX_SECTIONS = 16
"""Sections of GPU code per file; a linker makes two at most."""


@frozen(kw_only=True)
class Binary:
    """What one ELF file holds. `problem` tells why `codes` may be incomplete."""

    machine: str | None
    codes: tuple[tuple[Code, int], ...] = ()
    problem: str | None = None


def read_binary(open_at_start: Callable[[], Stream], size: int) -> Binary:
    """The GPU code of an ELF file of `size` bytes; `open_at_start` gives its bytes from the first on.

    Never raises for what the file holds: that ends in `problem`.
    """
    counts: Counter[Code] = Counter()
    machine = None
    problem = None
    try:
        stream = open_at_start()
        header = elf.parse_header(stream.read(elf.HEADER))
        if header.machine_number == elf.EM_CUDA:
            counts[elf.cubin_code(header, _reader(open_at_start), size)] += 1
        elif header.machine_number == elf.EM_AMDGPU:
            counts[elf.amd_code(header)] += 1
        else:
            machine = header.machine
            if stream.place() is not None:
                _by_sections(header, open_at_start, size, counts)
            else:
                _forward(header, stream, open_at_start, size, counts)
    except Unreadable as error:
        problem = str(error)
    return Binary(machine=machine, codes=sorted_codes(counts), problem=problem)


def file_opener(file: BinaryIO, start: int, size: int) -> Callable[[], Stream]:
    """An opener for `size` bytes of a file from `start`."""
    return lambda: FileStream(file, start, size)


def _by_sections(
    header: elf.Header, open_at_start: Callable[[], Stream], size: int, counts: Counter[Code]
) -> None:
    table = elf.sections(header, _reader(open_at_start), size)
    if not table:
        if place := open_at_start().place():
            search = FileStream(*place, size, PACKED_CHUNK)
            _count(fatbin.FatbinReader(search).anywhere(min(size, MAX_SEARCH)), counts)
        if size > MAX_SEARCH:
            raise Unreadable(f"it has no section table, and only its first {MAX_SEARCH} bytes were searched")
    for section in _of_interest(table):
        _section(section, open_at_start, size, counts)


def _of_interest(table: tuple[elf.Section, ...]) -> list[elf.Section]:
    found = [part for part in table if part.name in (LINKED, RELOCATABLE, AMD) and part.stored and part.size]
    if len(found) > MAX_SECTIONS:
        raise Unreadable(f"it claims {len(found)} sections of GPU code")
    return found


def _section(
    section: elf.Section, open_at_start: Callable[[], Stream], size: int, counts: Counter[Code]
) -> None:
    stream = open_at_start()
    stream.skip(section.offset)
    available = min(section.size, max(0, size - section.offset))
    if section.name == AMD:
        for code in amd.bundles(stream, available):
            counts[code] += 1
    else:
        containers = fatbin.FatbinReader(stream).section(available)
        _count(containers, counts, relocatable=section.name == RELOCATABLE)
    if available < section.size:
        raise Unreadable(f"its section {section.name} lies outside the file: the file is cut off, or lies")


def _forward(
    header: elf.Header, stream: Stream, open_again: Callable[[], Stream], size: int, counts: Counter[Code]
) -> None:
    found: dict[int, fatbin.Container] = {}
    reader = fatbin.FatbinReader(stream)
    for container in reader.anywhere(size - stream.position):
        found[container.offset] = container
    stream.skip(size - stream.position)
    if stream.position < size:
        raise Unreadable(f"it claims {size} bytes and has {stream.position}")
    if stream.some(1):
        raise Unreadable(f"it unpacks to more than the {size} bytes that it claims")
    start, tail = stream.tail()
    table = elf.sections(header, _reader(open_again, start, tail), size)
    if not table:
        _count(found.values(), counts)
    for section in _of_interest(table):
        # A section that was understood on the way need not be unpacked a second time.
        end = section.offset + section.size
        inside = [one for one in found.values() if section.offset <= one.offset < end]
        doubtful = any(section.offset <= at < end for at in reader.doubts)
        if section.offset in found and not doubtful and end <= size and _fill(inside, section.offset, end):
            _count(inside, counts, relocatable=section.name == RELOCATABLE)
        else:
            _section(section, open_again, size, counts)


def _fill(containers: list[fatbin.Container], at: int, end: int) -> bool:
    """Do the containers lie one behind the other from `at` to `end`, and within?"""
    for container in containers:
        if container.offset - at > fatbin.MAX_GAP:
            return False
        at = container.end
    return end - fatbin.MAX_GAP <= at <= end


def _count(
    containers: Iterable[fatbin.Container], counts: Counter[Code], *, relocatable: bool = False
) -> None:
    for container in containers:
        for code, number in container.codes:
            counts[evolve(code, relocatable=True) if relocatable else code] += number


def _reader(open_at_start: Callable[[], Stream], start: int = 0, tail: bytes = b"") -> elf.ReadAt:
    """Read at an offset: from the tail where it reaches, by another pass where it does not."""

    def read_at(offset: int, size: int) -> bytes:
        if offset >= start and offset - start + size <= len(tail):
            return tail[offset - start : offset - start + size]
        stream = open_at_start()
        return stream.read(size) if stream.skip(offset) == offset else b""

    return read_at
