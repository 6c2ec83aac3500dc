"""Container images as files: the tar of `docker save`, an OCI layout as tar or folder, a plain tar.

The outer archive is read once, from front to end; the manifest, which may come last, then says which
layers make which image in which order, and what a later layer deletes or replaces does not count.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from lanes.hardware import elf, tars
from lanes.hardware.binaries import Binary
from lanes.hardware.layers import Layer, read_elf, read_layer
from lanes.hardware.streams import FileStream, Stream, Unreadable
from lanes.hardware.unpacking import Meter, unpacked

MAX_JSON = 4 << 20
"""Bytes of one manifest."""
MAX_JSON_TOTAL = 64 << 20
MAX_KEPT = 200_000
"""Binaries, deletions, links and manifests of an archive that are remembered; large images have some
ten thousand."""
MAX_IMAGES = 100
MAX_STEPS = 10_000_000
"""Binaries that are laid over each other, over all layers of all images."""
MAX_DEPTH = 8
"""Indexes that may point to indexes."""

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")


@frozen(kw_only=True)
class Item:
    """A binary of an image and its path there."""

    member: str
    binary: Binary


def is_image(stream: Stream) -> bool:
    """Does a tar start here, plain or compressed? Reads from the stream.

    Raises Unreadable where it is compressed in a way that cannot be looked into.
    """
    return tars.is_tar(unpacked(stream).peek(tars.BLOCK))


def read_image(stream: Stream) -> Iterator[Item]:
    """The binaries of an image or a plain tar.

    Raises Unreadable where it is broken, after what could be read.
    """
    meter = Meter()
    outer = unpacked(stream, meter)
    parts = Parts(meter=meter, nested=outer is not stream)
    broken = None
    try:
        for member, body in tars.members(outer):
            if member.is_file:
                parts.add(member.name, body, member.size)
            elif member.link is not None and member.name.endswith(".tar"):
                # Before version 25 `docker save` wrote a layer that two images share as a link.
                parts.link(member.name, member.link)
    except Unreadable as error:
        broken = error
    yield from parts.items()
    if broken:
        raise broken


def is_oci_layout(folder: Path) -> bool:
    """Is the folder an OCI image layout?"""
    return (folder / "oci-layout").is_file() and (folder / "index.json").is_file()


def read_oci_layout(folder: Path) -> Iterator[Item]:
    """The binaries of the images in an OCI layout that is a folder."""
    parts = Parts()
    for path in [folder / "index.json", *sorted((folder / "blobs").glob("*/*"))]:
        if path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            with path.open("rb", buffering=0) as file:
                parts.add(path.relative_to(folder).as_posix(), FileStream(file, 0, size), size)
    yield from parts.items()


@define
class Parts:
    """What the outer archive holds: layers, manifests, links between names, and binaries of its own.

    `meter` and `nested` as for `inflate`. `broken` maps a member to why it cannot be read.
    """

    meter: Meter = field(factory=Meter)
    nested: bool = False
    layers: dict[str, Layer] = field(factory=dict)
    documents: dict[str, Any] = field(factory=dict)
    links: dict[str, str] = field(factory=dict)
    own: dict[str, Binary] = field(factory=dict)
    broken: dict[str, str] = field(factory=dict)
    json_bytes: int = 0
    kept: int = 0
    steps: int = 0

    def add(self, name: str, body: Stream, size: int) -> None:
        """Look at one member and keep what may matter."""
        head = body.peek(tars.BLOCK)
        if elf.is_wanted(head):
            self.keep()
            self.own[name] = read_elf(body, size)
        elif head.lstrip()[:1] in (b"{", b"[") and size <= MAX_JSON:
            self._document(name, body.read(size))
        else:
            self._archive(name, body, head)

    def link(self, name: str, target: str) -> None:
        """Note that `name` stands for another member."""
        self.keep()
        self.links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))

    def keep(self) -> None:
        """Count one more thing that is remembered; raises Unreadable when there are too many."""
        self.kept += 1
        if self.kept > MAX_KEPT:
            raise Unreadable(f"it holds more than {MAX_KEPT} binaries and manifests")

    def _document(self, name: str, text: bytes) -> None:
        self.keep()
        self.json_bytes += len(text)
        if self.json_bytes > MAX_JSON_TOTAL:
            raise Unreadable(f"its manifests take more than {MAX_JSON_TOTAL} bytes")
        with contextlib.suppress(ValueError, RecursionError):
            self.documents[name] = json.loads(text)

    def _archive(self, name: str, body: Stream, head: bytes) -> None:
        """A layer, where it is a tar; anything else is passed over, and what is broken is noted."""
        try:
            inner = unpacked(body, self.meter, nested=self.nested)
            if tars.is_tar(inner.peek(tars.BLOCK)):
                self.keep()
                layer = self.layers[name] = Layer()
                read_layer(inner, layer, self.keep)
        except Unreadable as error:
            if self.kept > MAX_KEPT:
                raise
            if name in self.layers:
                self.layers[name].problem = str(error)
            else:
                self.broken[name] = str(error)

    def items(self) -> Iterator[Item]:
        """The binaries that a container would see, or all where no manifest tells."""
        yield from (Item(member=name, binary=binary) for name, binary in self.own.items())
        images = list(self._images())
        if not images:
            archives = [name for name in self.broken if name.endswith(_ARCHIVES)]
            images = [(f"{name}:", [name]) for name in (*self.layers, *archives)]
        for label, names in images:
            merged: dict[str, Binary] = {}
            prefix = label if len(images) > 1 else ""
            for name in names:
                layer = self.layers.get(name) or self.layers.get(self.links.get(name, ""))
                problem = layer.problem if layer else self._lacking(name)
                if problem:
                    yield Item(member=f"{prefix}{name}", binary=Binary(machine=None, problem=problem))
                if layer:
                    self.steps += 1 + len(layer.binaries) + (len(merged) if layer.deleted else 0)
                    if self.steps > MAX_STEPS:
                        raise Unreadable("its manifests name the same layers over and over")
                    layer.onto(merged)
            yield from (Item(member=prefix + path, binary=merged[path]) for path in sorted(merged))

    def _lacking(self, name: str) -> str | None:
        """Why an image's layer is not there; None for one that is no tar (a signature, for instance)."""
        if name in self.documents or name in self.own:
            return None
        return self.broken.get(name, "the image names this layer, and it is no tar or not there")

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
