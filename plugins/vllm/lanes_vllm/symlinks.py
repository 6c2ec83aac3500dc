"""Symlinks in a mounted folder that lead nowhere once it is mounted.

A NAS often hands out a folder of symlinks into another one. On the host they work; in the container,
which sees only what is mounted, they dangle, and the engine finds no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from lanes.types import Mount

MOST = 2000
"""Entries of a mount that are looked at: a check must be quick, also on a slow NAS."""


def dangling(mounts: Sequence[Mount]) -> Iterator[tuple[Mount, str, str]]:
    """Of each mount the first symlink that dangles in the container: (mount, name, where it leads).

    Mounts that are not on this machine have none.
    """
    for mount in mounts:
        found = next((link for link in _links(mount) if not _visible(link[1], mounts)), None)
        if found is not None:
            yield (mount, *found)


def _links(mount: Mount) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(mount.source) as entries:
            for number, entry in enumerate(entries):
                if number == MOST:
                    return
                if entry.is_symlink():
                    target = os.readlink(entry.path)
                    yield entry.name, os.path.normpath(os.path.join(mount.target, target))
    except OSError:
        return  # that it is not there, or may not be read, is another question


def _visible(path: str, mounts: Sequence[Mount]) -> bool:
    return any(PurePosixPath(path).is_relative_to(mount.target) for mount in mounts)
