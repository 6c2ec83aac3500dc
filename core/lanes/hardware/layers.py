"""The layers of a container image: which binaries each brings, and which of those below it hides."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable
from typing import BinaryIO, cast

from attrs import define, field

from lanes.hardware import elf, tars
from lanes.hardware.binaries import Binary, file_opener, read_binary
from lanes.hardware.streams import Stream

MAX_UNPACKED = 8 << 30
"""Bytes of one binary in a compressed layer: it is unpacked into a temporary file to be read."""
MAX_IN_MEMORY = 8 << 20
"""Bytes up to which that file stays in memory."""

_OPAQUE, _WHITEOUT = ".wh..wh..opq", ".wh."


@define
class Layer:
    """The binaries of one layer, and the paths that it deletes.

    A folder to empty ends in a slash; "" empties everything. `problem` tells why it may be incomplete.
    """

    binaries: dict[str, Binary] = field(factory=dict)
    deleted: list[str] = field(factory=list)
    problem: str | None = None

    def onto(self, below: dict[str, Binary]) -> None:
        """Change what the layers below show, as this layer does."""
        gone = set(self.deleted)
        if gone:
            for path in [path for path in below if _covered(path, gone)]:
                del below[path]
        below.update(self.binaries)


def _covered(path: str, gone: set[str]) -> bool:
    """Is the path deleted, or any folder above it (`a/b`), or emptied (`a/b/`; "" is everything)?"""
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts))]
    return "" in gone or path in gone or any(up in gone or f"{up}/" in gone for up in above)


def read_layer(stream: Stream, layer: Layer, keep: Callable[[], None]) -> None:
    """Fill a layer from its tar; `keep` is called for each thing that is remembered."""
    for member, body in tars.members(stream):
        folder, _, name = member.name.rpartition("/")
        if name == _OPAQUE:
            keep()
            layer.deleted.append(f"{folder}/" if folder else "")
        elif name.startswith(_WHITEOUT):
            keep()
            layer.deleted.append(posixpath.join(folder, name.removeprefix(_WHITEOUT)))
        elif member.is_file and elf.is_wanted(body.peek(elf.HEADER)):
            keep()
            layer.binaries[member.name] = read_elf(body, member.size)
        elif ".so" in name and (member.is_file or member.link is not None):
            # What takes the name of a library below hides it.
            keep()
            layer.deleted.append(member.name)


def read_elf(body: Stream, size: int) -> Binary:
    """The GPU code of an ELF file of `size` bytes in an archive; `body` starts with it."""
    place = body.place()
    if place is not None:
        return read_binary(file_opener(*place, size), size)
    if size > MAX_UNPACKED:
        return Binary(machine=None, problem=f"it is larger than {MAX_UNPACKED} bytes, in a compressed layer")
    # Its section table stands at its end, and a compressed layer cannot be read again from the middle.
    try:
        with tempfile.SpooledTemporaryFile(MAX_IN_MEMORY) as file:
            while chunk := body.some(size):
                file.write(chunk)
            return read_binary(file_opener(cast(BinaryIO, file), 0, size), size)
    except OSError as error:
        return Binary(machine=None, problem=f"it could not be unpacked to disk ({error.strerror})")
