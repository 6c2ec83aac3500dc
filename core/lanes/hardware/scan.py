"""Which GPU code do these files hold? Shared objects, wheels, folders, tars and container images.

Headers are read, payloads are not. Anything that is broken, cut off or hostile becomes a Problem;
the limits stand beside the readers: `MAX_...` in fatbin, binaries, elf, zips, tars and images.
A container image inside a Docker engine is not looked at here: whoever wants that hands the stream of
`docker save` to `scan_image`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from lanes.errors import UsageError
from lanes.hardware import elf, images, tars, zips
from lanes.hardware.binaries import Binary, file_opener, read_binary
from lanes.hardware.library import Library, Problem, Scan
from lanes.hardware.streams import FileStream, Stream, Unreadable

MAX_PROBLEMS = 1000
"""Problems that are kept; what comes after them is only counted."""

_PACKED_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tzst", ".whl", ".zip", ".so", ".cubin", ".hsaco")


def scan(paths: Iterable[str | os.PathLike[str]]) -> Scan:
    """Look into files and folders.

    Raises UsageError for a path that does not exist. A path that is named here and holds nothing
    that can be looked into is a Problem; inside a folder such files are passed over.
    """
    found = _Found()
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(
                f"{path} does not exist", "Name a shared object, a wheel, a folder or an image tarball."
            )
        if path.is_dir():
            _folder(path, found)
        else:
            _path(path, found, named=True)
    return found.scan()


def scan_image(stream: Stream, name: str) -> Scan:
    """Look into an image as `docker save` writes it, plain or compressed, read once from front to end."""
    found = _Found()
    with found.guard(name):
        for item in images.read_image(stream):
            found.add(name, item.member, item.binary)
    return found.scan()


class _Found:
    """Collects libraries and problems, with a bound on the latter."""

    def __init__(self) -> None:
        self._libraries: list[Library] = []
        self._problems: list[Problem] = []
        self._more = 0

    def add(self, file: str, member: str | None, binary: Binary) -> None:
        if binary.problem is not None:
            self.problem(file, binary.problem, member)
        if binary.codes or binary.problem is None:
            self._libraries.append(
                Library(file=file, member=member, machine=binary.machine, codes=binary.codes)
            )

    def problem(self, file: str, reason: str, member: str | None = None) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(Problem(file=file, reason=reason, member=member))
        else:
            self._more += 1

    def guard(self, file: str, member: str | None = None) -> _Guard:
        return _Guard(self, file, member)

    def scan(self) -> Scan:
        problems = self._problems
        if self._more:
            last = Problem(file=problems[-1].file, reason=f"and so it is with {self._more} more files")
            problems = [*problems, last]
        return Scan(libraries=tuple(self._libraries), problems=tuple(problems))


class _Guard:
    """Turns what makes a file unreadable into a Problem."""

    def __init__(self, found: _Found, file: str, member: str | None) -> None:
        self._found, self._file, self._member = found, file, member

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Unreadable):
            self._found.problem(self._file, str(error), self._member)
            return True
        if isinstance(error, OSError):
            self._found.problem(self._file, error.strerror or str(error), self._member)
            return True
        return False


def _folder(folder: Path, found: _Found) -> None:
    if images.is_oci_layout(folder):
        with found.guard(str(folder)):
            for item in images.read_oci_layout(folder):
                found.add(str(folder), item.member, item.binary)
        return
    for path in _files(folder, found):
        _path(path, found, named=False)


def _files(folder: Path, found: _Found) -> Iterator[Path]:
    """Regular files below a folder in a stable order; links are not followed, so there are no loops."""

    def complain(error: OSError) -> None:
        found.problem(str(error.filename), error.strerror or str(error))

    for root, folders, names in os.walk(folder, onerror=complain, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if not path.is_symlink():
                yield path


def _path(path: Path, found: _Found, *, named: bool) -> None:
    with found.guard(str(path)):
        # A pipe would block for ever, and a device has no end.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            if named:
                raise Unreadable("it is not a regular file")
            return
        with path.open("rb", buffering=0) as file:
            known = _file(file, status.st_size, str(path), found)
        if not known and (named or path.name.endswith(_PACKED_SUFFIXES)):
            raise Unreadable("it is neither an ELF file nor a zip nor a tar")


def _file(file: BinaryIO, size: int, name: str, found: _Found) -> bool:
    """Look into one open file; False when it is nothing that can be looked into."""
    head = FileStream(file, 0, size).read(tars.BLOCK)
    if elf.is_wanted(head):
        found.add(name, None, read_binary(file_opener(file, 0, size), size))
    elif head[:4] in zips.MAGICS:
        _zip(file, size, name, found)
    elif images.is_image(FileStream(file, 0, size)):
        for item in images.read_image(FileStream(file, 0, size)):
            found.add(name, item.member, item.binary)
    else:
        return False
    return True


def _zip(file: BinaryIO, size: int, name: str, found: _Found) -> None:
    for member in zips.members(file, size):
        with found.guard(name, member.name):
            if member.size < elf.HEADER:
                continue
            opener = partial(zips.open_member, file, member)
            if elf.is_wanted(opener().peek(elf.HEADER)):
                found.add(name, member.name, read_binary(opener, member.size))
