"""AMD code objects inside host binaries: clang's offload bundles, plain and compressed.

A bundle names its entries in its head (`hipv4-amdgcn-amd-amdhsa--gfx942`), so the head is all that is
read. Layouts: the LLVM documentation, "Clang offload bundler".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator

from lanes.hardware.rules import Code, CodeKind
from lanes.hardware.streams import PACKED_CHUNK, Part, Stream, Unreadable, inflate, zstd

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"

MAX_ENTRIES = 4096
MAX_ID = 4096
_ALIGN = 4096
_ID = re.compile(r"(?:hip|hipv4|openmp)-amdgcn-[^-]*-[^-]*-[^-]*-(gfx[\w:+\-]+)")
_ZLIB, _ZSTD = 0, 1


def bundles(stream: Stream, size: int) -> Iterator[Code]:
    """The code objects in the next `size` bytes, which hold bundles one behind the other.

    Raises Unreadable where a head contradicts itself or a reader for its compression is missing.
    """
    start, end = stream.position, stream.position + size
    while (here := stream.position) < end:
        magic = stream.read(min(4, end - here))
        if not magic.strip(b"\0"):
            # Padding up to the next page.
            if stream.skip(_to_boundary(stream.position - start)) == 0 and len(magic) < 4:
                return
            continue
        if magic == COMPRESSED:
            length = yield from _compressed(stream, end - here)
        elif magic == BUNDLE[:4] and stream.read(len(BUNDLE) - 4) == BUNDLE[4:]:
            length = yield from _plain(stream)
        else:
            raise Unreadable(f"the AMD code at byte {here - start:#x} of its section has an unknown header")
        if length > end - here:
            raise Unreadable(f"the AMD code claims {length} bytes where {end - here} are left")
        stream.skip(max(0, here + length - stream.position))
        stream.skip(_to_boundary(stream.position - start))


def _to_boundary(position: int) -> int:
    return -position % _ALIGN


def _plain(stream: Stream) -> Generator[Code, None, int]:
    """Read behind the magic; gives the bundle's length in bytes."""
    (count,) = struct.unpack("<Q", _exactly(stream, 8))
    if count > MAX_ENTRIES:
        raise Unreadable(f"a bundle of AMD code claims {count} entries")
    length = 0
    for _ in range(count):
        offset, size, id_size = struct.unpack("<QQQ", _exactly(stream, 24))
        if id_size > MAX_ID:
            raise Unreadable(f"a bundle of AMD code claims a name of {id_size} bytes")
        named = _ID.fullmatch(_exactly(stream, id_size).decode("latin-1"))
        if named and size:
            yield Code(kind=CodeKind.AMD, arch=named[1])
        length = max(length, offset + size)
    return length


def _compressed(stream: Stream, left: int) -> Generator[Code, None, int]:
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
    yield from _plain(plain)
    return length


def _exactly(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise Unreadable("it ends within the head of AMD code")
    return data
