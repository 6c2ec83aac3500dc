"""Bring what a lane needs to where its processes look for it; files: on this machine.

A file appears under its final name only when it is whole: parts are written to `<name>.partial`,
checked against the size and sha256 that the engine gave, then renamed. What a killed run left behind
is taken up where it ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from lanes.errors import StagingError
from lanes.types import Build, Copy, Files, HostScript, Image, Staged, StageItem

Progress = Callable[[str, int, int], None]
"""Called with the item's name, bytes done, and bytes in all."""

_BLOCK = 4 << 20


def stage(
    items: Sequence[StageItem],
    folder: Path,
    progress: Progress = lambda *_: None,
    image: Callable[[Image | Build], str] | None = None,
    copies: Callable[[Sequence[Copy]], object] | None = None,
    script: Callable[[HostScript], object] | None = None,
) -> Staged:
    """Make every item ready and return the paths by item name, images by what containers are started from.

    `image` brings an image to where it is needed, built first where that is wanted, `copies` carries out copies on the nodes, all at once
    and before anything else (whether there is room is soon known), `script` runs a host script.
    Raises `StagingError`.
    """
    paths = {}
    on_nodes = [item for item in items if isinstance(item, Copy)]
    if on_nodes and copies is not None:
        copies(on_nodes)
    for item in items:
        if isinstance(item, Files):
            paths[item.name] = str(_one(item, folder, progress))
        elif isinstance(item, Copy) and copies is not None:
            paths[item.name] = item.target
        elif isinstance(item, HostScript) and script is not None:
            script(item)
        elif isinstance(item, Image | Build) and image is not None:
            paths[item.name] = image(item)
        else:
            raise StagingError(
                f"{type(item).__name__.lower()} {item.name!r} cannot be staged by this version of lanes",
                "do it by hand and take it out of the recipe, or choose a recipe without it",
            )
    return Staged(paths=paths)


def _one(item: Files, folder: Path, progress: Progress) -> Path:
    if not item.parts:
        raise StagingError(f"{item.name} has no file to come from", "report this to the plugin's author")
    sources = [Path(part) for part in item.parts]
    for source in sources:
        if not source.exists():
            raise StagingError(f"{item.name}: {source} does not exist", "check the recipe's model")
    if item.in_place:
        return sources[0]
    try:
        return _whole(item, sources, folder, progress)
    except OSError as error:
        raise StagingError(
            f"{item.name}: {error.filename or folder}: {error.strerror}", "mend that and run again"
        ) from None


def _whole(item: Files, sources: Sequence[Path], folder: Path, progress: Progress) -> Path:
    stats = [source.stat() for source in sources]
    total = sum(stat.st_size for stat in stats)
    # A folder for each content keeps models of one name apart, though they be of one size.
    made_of = repr(
        [(str(s.absolute()), t.st_size, t.st_mtime_ns) for s, t in zip(sources, stats, strict=True)]
    )
    folder = folder / (item.sha256 or hashlib.sha256(made_of.encode()).hexdigest())[:16]
    final = folder / (item.target or sources[0].name)
    final.parent.mkdir(parents=True, exist_ok=True)
    with open(final.with_name(f"{final.name}.lock"), "w") as lock:
        # Two runs may want the same file: the second waits, and finds it there.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (final.exists() and final.stat().st_size == total):
            _join(item, sources, total, final, progress)
    return final


def _join(item: Files, sources: Sequence[Path], total: int, final: Path, progress: Progress) -> None:
    partial = final.with_name(final.name + ".partial")
    have = partial.stat().st_size if partial.exists() else 0
    free = os.statvfs(final.parent)
    if free.f_bavail * free.f_frsize < total - have:
        raise StagingError(
            f"{item.name} needs {total - have:,} bytes in {final.parent}, {free.f_bavail * free.f_frsize:,} are free",
            "free some space, or set LANES_HOME to another disk",
        )
    digest = hashlib.sha256()
    position = 0
    with open(partial, "r+b" if have else "w+b") as out:
        for source in sources:
            with open(source, "rb") as part:
                while block := part.read(_BLOCK):
                    # What an earlier run wrote is compared, not trusted.
                    if out.read(len(block)) != block:
                        out.seek(position)
                        out.write(block)
                    position = out.tell()
                    digest.update(block)
                    progress(item.name, position, total)
        out.truncate(position)
        out.flush()
        os.fsync(out.fileno())
    wanted = item.size_bytes if item.size_bytes is not None else total
    if position != wanted:
        raise StagingError(
            f"{item.name} has {position:,} bytes, not {wanted:,}",
            "its source is damaged, or changes meanwhile: install or download it again",
        )
    if item.sha256 and digest.hexdigest() != item.sha256:
        partial.unlink()
        raise StagingError(
            f"{item.name} has sha256 {digest.hexdigest()}, not {item.sha256} as published",
            "its source is damaged: install or download it again",
        )
    os.replace(partial, final)
