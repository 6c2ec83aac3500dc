"""AMD code objects inside host binaries: clang's offload bundles, plain and compressed.

A bundle names its entries in its head (`hipv4-amdgcn-amd-amdhsa--gfx942`), so the head is all that is
read. Layouts: the LLVM documentation, "Clang offload bundler".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from lanes.hardware.rules import Code, CodeKind
from lanes.hardware.streams import PACKED_CHUNK, Part, Stream, Unreadable
from lanes.hardware.unpacking import inflate, zstd

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"

MAX_ENTRIES = 200_000
"""Entries that are read per section; the largest known library has a few ten thousand."""
MAX_BUNDLED = 1024
"""Entries of one bundle: an architecture each."""
MAX_ID = 256
MAX_GAP = 1 << 20
"""Bytes of padding between two bundles; linkers leave at most a page."""
_ALIGN = 4096
_ID = re.compile(r"(?:hip|hipv4|openmp)-amdgcn-[^-]*-[^-]*-[^-]*-(gfx[\w:+\-]+)")
_ZLIB, _ZSTD = 0, 1


def bundles(stream: Stream, size: int) -> Iterator[Code]:
    """The code objects in the next `size` bytes, which hold bundles one behind the other.

    Raises Unreadable where a head contradicts itself or a reader for its compression is missing.
    """
    start, end = stream.position, stream.position + size
    last = start
    entries = 0
    while (here := stream.position) < end:
        magic = stream.read(min(4, end - here))
        if not magic.strip(b"\0"):
            # Padding up to the next page.
            if len(magic) < 4:
                return
            if here - last > MAX_GAP:
                raise Unreadable(f"its section of AMD code ends in {end - last} bytes that are none")
            stream.skip(_to_boundary(stream.position - start))
            continue
        codes: tuple[Code, ...]
        if magic == COMPRESSED:
            codes, length = _compressed(stream, end - here)
        elif magic == BUNDLE[:4] and stream.read(len(BUNDLE) - 4) == BUNDLE[4:]:
            codes, length = _plain(stream)
        else:
            raise Unreadable(f"the AMD code at byte {here - start:#x} of its section has an unknown header")
        if length > end - here:
            raise Unreadable(f"the AMD code claims {length} bytes where {end - here} are left")
        yield from codes
        entries += 1 + len(codes)
        if entries > MAX_ENTRIES:
            raise Unreadable(f"it has more than {MAX_ENTRIES} pieces of AMD code")
        stream.skip(max(0, here + length - stream.position))
        stream.skip(_to_boundary(stream.position - start))
        last = stream.position


def _to_boundary(position: int) -> int:
    return -position % _ALIGN


def _plain(stream: Stream) -> tuple[tuple[Code, ...], int]:
    """Read behind the magic; gives the bundle's code and its length in bytes."""
    (count,) = struct.unpack("<Q", _exactly(stream, 8))
    if count > MAX_BUNDLED:
        raise Unreadable(f"a bundle of AMD code claims {count} entries")
    codes = []
    length = 0
    for _ in range(count):
        offset, size, id_size = struct.unpack("<QQQ", _exactly(stream, 24))
        if id_size > MAX_ID:
            raise Unreadable(f"a bundle of AMD code claims a name of {id_size} bytes")
        named = _ID.fullmatch(_exactly(stream, id_size).decode("latin-1"))
        if named and size:
            codes.append(Code(kind=CodeKind.AMD, arch=named[1]))
        length = max(length, offset + size)
    return tuple(codes), length


def _compressed(stream: Stream, left: int) -> tuple[tuple[Code, ...], int]:
    version, method = struct.unpack("<HH", _exactly(stream, 4))
    length: int
    if version == 2:
        length = struct.unpack("<IIQ", _exactly(stream, 16))[0]
        head = 24
    elif version == 3:
        length = struct.unpack("<QQQ", _exactly(stream, 24))[0]
        head = 32
    elif version == 1:
        # The first version does not say how long it is: it fills its section.
        _exactly(stream, 12)
        length, head = left, 20
    else:
        raise Unreadable(f"compressed AMD code of version {version} is not known")
    if not head <= length <= left:
        raise Unreadable(f"compressed AMD code claims {length} bytes where {left} are left")
    packed = Part(stream, min(length - head, PACKED_CHUNK))
    if method not in (_ZLIB, _ZSTD):
        raise Unreadable(f"AMD code is compressed by the unknown method {method}")
    plain = zstd(packed) if method == _ZSTD else inflate(packed, wrapper="zlib")
    if plain.read(len(BUNDLE)) != BUNDLE:
        raise Unreadable("compressed AMD code holds no bundle")
    return _plain(plain)[0], length


def _exactly(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise Unreadable("it ends within the head of AMD code")
    return data
