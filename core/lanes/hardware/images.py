"""Container images as files: the tar of `docker save`, an OCI layout as tar or folder, a plain tar.

The outer archive is read once, from front to end; the manifest, which may come last, then says which
layers make which image in which order, and what a later layer deletes or replaces does not count.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from attrs import define, field, frozen

from lanes.hardware import elf, tars
from lanes.hardware.binaries import Binary, file_opener, read_binary
from lanes.hardware.streams import FileStream, Stream, Unreadable, inflate, zstd

MAX_JSON = 4 << 20
"""Bytes of one manifest."""
MAX_JSON_TOTAL = 64 << 20
MAX_UNPACKED = 64 << 30
"""Bytes of one binary in a compressed layer: it is unpacked into a temporary file to be read."""
MAX_IMAGES = 100
MAX_DEPTH = 8
"""Indexes that may point to indexes."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OPAQUE, _WHITEOUT = ".wh..wh..opq", ".wh."


@frozen(kw_only=True)
class Item:
    """A binary of an image and its path there."""

    member: str
    binary: Binary


@define
class Layer:
    """The binaries of one layer, and the paths that it deletes.

    A folder to empty ends in a slash; "" empties everything.
    """

    binaries: dict[str, Binary] = field(factory=dict)
    deleted: list[str] = field(factory=list)

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


def unpacked(stream: Stream) -> Stream:
    """The stream itself, or what it holds where it starts like gzip or zstd."""
    head = stream.peek(4)
    if head[:2] == _GZIP:
        return inflate(stream, "gzip")
    return zstd(stream) if head == _ZSTD else stream


def is_image(stream: Stream) -> bool:
    """Does a tar start here, plain or compressed? Reads from the stream.

    Raises Unreadable where it is compressed in a way that cannot be looked into.
    """
    return tars.is_tar(unpacked(stream).peek(tars.BLOCK))


def read_image(stream: Stream) -> Iterator[Item]:
    """The binaries of an image or a plain tar. Raises Unreadable where it is broken."""
    parts = Parts()
    for member, body in tars.members(unpacked(stream)):
        if member.link is not None:
            parts.links[member.name] = posixpath.normpath(f"{posixpath.dirname(member.name)}/{member.link}")
        elif member.is_file:
            parts.add(member.name, body, member.size)
    yield from parts.items()


def is_oci_layout(folder: Path) -> bool:
    """Is the folder an OCI image layout?"""
    return (folder / "oci-layout").is_file() and (folder / "index.json").is_file()


def read_oci_layout(folder: Path) -> Iterator[Item]:
    """The binaries of the images in an OCI layout that is a folder."""
    parts = Parts()
    for path in [folder / "index.json", *sorted((folder / "blobs").glob("*/*"))]:
        if path.is_file() and not path.is_symlink():
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                parts.add(path.relative_to(folder).as_posix(), FileStream(file, 0, size), size)
    yield from parts.items()


@define
class Parts:
    """What the outer archive holds: layers, manifests, links between names, and binaries of its own."""

    layers: dict[str, Layer] = field(factory=dict)
    documents: dict[str, Any] = field(factory=dict)
    links: dict[str, str] = field(factory=dict)
    own: dict[str, Binary] = field(factory=dict)
    json_bytes: int = 0

    def add(self, name: str, body: Stream, size: int) -> None:
        """Look at one member and keep what may matter."""
        head = body.peek(tars.BLOCK)
        if elf.is_wanted(head):
            self.own[name] = _binary(body, size)
        elif head.lstrip()[:1] in (b"{", b"[") and size <= MAX_JSON:
            self.json_bytes += size
            if self.json_bytes > MAX_JSON_TOTAL:
                raise Unreadable(f"its manifests take more than {MAX_JSON_TOTAL} bytes")
            with contextlib.suppress(ValueError, RecursionError):
                self.documents[name] = json.loads(body.read(size))
        else:
            inner = unpacked(body)
            if tars.is_tar(inner.peek(tars.BLOCK)):
                self.layers[name] = _layer(inner)

    def items(self) -> Iterator[Item]:
        """The binaries that a container would see, or all where no manifest tells."""
        yield from (Item(member=name, binary=binary) for name, binary in self.own.items())
        images = list(self._images())
        if not images:
            images = [(f"{name}:", [name]) for name in self.layers]
        for label, names in images:
            merged: dict[str, Binary] = {}
            for name in names:
                layer = self.layers.get(name) or self.layers.get(self.links.get(name, "")) or Layer()
                layer.onto(merged)
            prefix = label if len(images) > 1 else ""
            yield from (Item(member=prefix + path, binary=merged[path]) for path in sorted(merged))

    def _images(self) -> Iterator[tuple[str, list[str]]]:
        """Each image's label and the names of its layers, the lowest first."""
        saved = self.documents.get("manifest.json")
        if isinstance(saved, list):
            for entry in saved[:MAX_IMAGES]:
                layers, tags = _list(entry, "Layers"), _list(entry, "RepoTags")
                yield f"{tags[0] if tags else 'image'}:", [str(layer) for layer in layers]
        else:
            yield from self._manifests(self.documents.get("index.json"), "", 0, set())

    def _manifests(
        self, document: Any, platform: str, depth: int, seen: set[str]
    ) -> Iterator[tuple[str, list[str]]]:
        if _list(document, "layers"):
            yield f"{platform or 'image'}:", [_blob(layer) for layer in _list(document, "layers")]
        for descriptor in _list(document, "manifests"):
            name = _blob(descriptor)
            if depth < MAX_DEPTH and name not in seen and len(seen) < MAX_IMAGES:
                seen.add(name)
                its = descriptor.get("platform") if isinstance(descriptor, dict) else None
                known = f"{its.get('os')}/{its.get('architecture')}" if isinstance(its, dict) else platform
                yield from self._manifests(self.documents.get(name), known, depth + 1, seen)


def _list(document: Any, key: str) -> list[Any]:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, list) else []


def _blob(descriptor: Any) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    return f"blobs/{str(digest).replace(':', '/', 1)}"


def _layer(stream: Stream) -> Layer:
    layer = Layer()
    for member, body in tars.members(stream):
        folder, _, name = member.name.rpartition("/")
        if name == _OPAQUE:
            layer.deleted.append(f"{folder}/" if folder else "")
        elif name.startswith(_WHITEOUT):
            layer.deleted.append(posixpath.join(folder, name.removeprefix(_WHITEOUT)))
        elif member.is_file and elf.is_wanted(body.peek(elf.HEADER)):
            layer.binaries[member.name] = _binary(body, member.size)
    return layer


def _binary(body: Stream, size: int) -> Binary:
    place = body.place()
    if place is not None:
        return read_binary(file_opener(*place, size), size)
    if size > MAX_UNPACKED:
        return Binary(machine=None, problem=f"it is larger than {MAX_UNPACKED} bytes, in a compressed layer")
    # Its section table stands at its end, and a compressed layer cannot be read again from the middle.
    with tempfile.TemporaryFile() as file:
        while chunk := body.some(size):
            file.write(chunk)
        file.flush()
        return read_binary(file_opener(cast(BinaryIO, file), 0, size), size)
