"""The few parts of ELF that tell where GPU code lies: the header, the section table and its names."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Literal

from attrs import frozen

from lanes.hardware.rules import Code, CodeKind
from lanes.hardware.streams import Unreadable
from lanes.hardware.targets import Suffix

MAGIC = b"\x7fELF"
HEADER = 64
EM_CUDA = 190
EM_AMDGPU = 224
_MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 40: "arm", 243: "riscv64", 21: "ppc64le"}

MAX_SECTIONS = 65_535
MAX_NAMES = 8 << 20
"""Bytes of section names that are read; the largest libraries need a few kilobytes."""
MAX_NOTE = 1 << 16

ReadAt = Callable[[int, int], bytes]
"""(offset, size) -> those bytes, fewer where there are no more; raises Unreadable where it cannot."""


@frozen(kw_only=True)
class Header:
    """What an ELF file says of itself. `machine` is the host's name (`aarch64`) or `machine 190`."""

    machine: str
    machine_number: int
    flags: int
    abi_version: int
    order: Literal["<", ">"]
    table: int
    entry: int
    count: int
    names: int


@frozen(kw_only=True)
class Section:
    """A named range of the file, in bytes; `stored` is false where nothing of it lies in the file."""

    name: str
    offset: int
    size: int
    stored: bool


def is_wanted(head: bytes) -> bool:
    """Does a file of these first bytes hold code for 64-bit hosts, or for a GPU? 32-bit ones hold none."""
    return head[:4] == MAGIC and head[4:5] != b"\x01"


def parse_header(data: bytes) -> Header:
    """Read the first 64 bytes. Raises Unreadable for 32-bit files and broken ones."""
    if len(data) < HEADER or data[:4] != MAGIC:
        raise Unreadable("it ends within the ELF header")
    if data[4] != 2 or data[5] not in (1, 2):
        raise Unreadable("it is an ELF file of another kind than 64 bit")
    order: Literal["<", ">"] = "<" if data[5] == 1 else ">"
    (number,) = struct.unpack_from(order + "H", data, 18)
    (table,) = struct.unpack_from(order + "Q", data, 40)
    (flags,) = struct.unpack_from(order + "I", data, 48)
    entry, count, names = struct.unpack_from(order + "HHH", data, 58)
    return Header(
        machine=_MACHINES.get(number, f"machine {number}"),
        machine_number=number,
        flags=flags,
        abi_version=data[8],
        order=order,
        table=table,
        entry=entry,
        count=count,
        names=names,
    )


def sections(header: Header, read_at: ReadAt, size: int) -> tuple[Section, ...]:
    """The section table; empty where the file was stripped of it.

    `size` is the file's size in bytes. Raises Unreadable where the table points outside the file.
    """
    if not header.table:
        return ()
    if header.entry != 64:
        raise Unreadable(f"its section headers claim {header.entry} bytes each where 64 are right")
    count, names = header.count, header.names
    if count == 0 or names == 0xFFFF:
        # More than 65,279 sections: the true numbers stand in the first section's header.
        first = _exactly(read_at, header.table, 64)
        count = count or struct.unpack_from(header.order + "Q", first, 32)[0]
        names = struct.unpack_from(header.order + "I", first, 40)[0] if names == 0xFFFF else names
    if count > MAX_SECTIONS or header.table + count * 64 > size:
        raise Unreadable(f"its table of {count} sections lies outside the file: the file is cut off, or lies")
    table = _exactly(read_at, header.table, count * 64)
    rows = [struct.unpack_from(header.order + "IIQQQQ", table, i * 64) for i in range(count)]
    if names >= count or rows[0][:2] != (0, 0) or rows[names][1] != _STRINGS:
        raise Unreadable("what should be its section table is something else")
    strings = _exactly(read_at, rows[names][4], min(rows[names][5], MAX_NAMES))
    found = []
    for name, kind, _, _, offset, length in rows:
        end = strings.find(b"\0", name, name + 256)
        text = strings[name : end if end >= 0 else name].decode("latin-1")
        found.append(Section(name=text, offset=offset, size=length, stored=kind != _NOBITS))
    return tuple(found)


_STRINGS, _NOBITS = 3, 8


def cubin_code(header: Header, read_at: ReadAt, size: int) -> Code:
    """The architecture of a cubin that is a file of its own.

    Up to ABI version 7 the flags hold it in the low byte, with 0x800 for `a`; from version 8 (CUDA
    12.8 on) in the second byte, without a suffix: that stands only in the compiler's own note, as the option
    `-arch sm_120f`. Seen with ptxas 12.9 and 13.4.
    """
    old = header.abi_version < 8
    arch = header.flags & 0xFF if old else header.flags >> 8 & 0xFF
    if not 10 <= arch < 1000:
        raise Unreadable(f"it is a cubin for an impossible architecture (flags {header.flags:#x})")
    suffix: Suffix = "a" if old and header.flags & 0x800 else ""
    for section in sections(header, read_at, size):
        if section.name == ".note.nv.tkinfo" and section.stored:
            note = read_at(section.offset, min(section.size, MAX_NOTE))
            said = re.search(rb"-arch[ =]sm_(\d+)([af]?)\b", note)
            if said and int(said[1]) == arch:
                suffix = "a" if said[2] == b"a" else "f" if said[2] == b"f" else ""
    return Code(kind=CodeKind.SASS, arch=str(arch), suffix=suffix)


def amd_code(header: Header) -> Code:
    """The architecture of an AMD code object that is a file of its own, from its flags."""
    number = header.flags & 0xFF
    name = _AMD_MACHINES.get(number, f"gfx-unknown-{number:#x}")
    return Code(kind=CodeKind.AMD, arch=name)


# EF_AMDGPU_MACH of the LLVM documentation, "AMDGPU usage"; from gfx908 on compared with real builds.
_AMD_MACHINES = {
    0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950",
    0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032",
    0x39: "gfx1033", 0x3E: "gfx1034", 0x3D: "gfx1035", 0x45: "gfx1036", 0x41: "gfx1100", 0x46: "gfx1101",
    0x47: "gfx1102", 0x44: "gfx1103", 0x43: "gfx1150", 0x4A: "gfx1151", 0x55: "gfx1152", 0x58: "gfx1153",
    0x48: "gfx1200", 0x4E: "gfx1201", 0x49: "gfx1250",
}  # fmt: skip


def _exactly(read_at: ReadAt, offset: int, size: int) -> bytes:
    data = read_at(offset, size)
    if len(data) < size:
        raise Unreadable("it ends before its section table: the file is cut off, or lies")
    return data
