"""Which GPU code do these files hold? Shared objects, wheels, folders, tars and container images.

Headers are read, payloads are not. Anything that is broken, cut off or hostile becomes a Problem;
the limits stand beside the readers: `MAX_...` in fatbin, amd, binaries, elf, unpacking, zips, tars, layers and images.
`docker:REF` means an image inside a Docker engine.
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
from lanes.hardware.streams import FileStream, Unreadable

MAX_PROBLEMS = 1000
"""Problems that are kept; what comes after them is only counted."""
MAX_LIBRARIES = 200_000
MAX_NAME = 4096
"""Characters of a name that are kept."""

_DOCKER = "docker:"
# What is called .so and holds no code by right: 32-bit and Apple's libraries, scripts for the linker.
_OTHER_LIBRARIES = (
    elf.MAGIC, b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"/* GNU ld script", b"INPUT(", b"INPUT (", b"GROUP",
)  # fmt: skip
_PACKED_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tzst", ".whl", ".zip", ".so", ".cubin", ".hsaco")


def scan(paths: Iterable[str | os.PathLike[str]]) -> Scan:
    """Look into files and folders, and into images that a Docker engine holds (`docker:REF`).

    Raises UsageError for a path that does not exist and for an image that cannot be had. A path that is
    named here and holds nothing that can be looked into is a Problem; inside a folder such files are
    passed over.
    """
    found = _Found()
    for name in [os.fspath(path) for path in paths]:
        if name.startswith(_DOCKER) and not os.path.lexists(name):
            _docker_image(name, found)
            continue
        try:
            mode = os.stat(name).st_mode
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"{_shown(name)} cannot be looked at: {why}",
                "Name a shared object, a wheel, a folder or an image tarball, or docker:REF for an image in "
                "the Docker engine.",
            ) from None
        if stat.S_ISDIR(mode):
            _folder(Path(name), found)
        else:
            _path(Path(name), found, named=True)
    return found.scan()


def _docker_image(name: str, found: _Found) -> None:
    from lanes.hardware.docker_image import saved

    with found.guard(name), saved(name.removeprefix(_DOCKER)) as stream:
        for item in images.read_image(stream):
            found.add(name, item.member, item.binary)


class _Found:
    """Collects libraries and problems, with a bound on the latter."""

    def __init__(self) -> None:
        self._libraries: list[Library] = []
        self._problems: list[Problem] = []
        self._more = 0

    def add(self, file: str, member: str | None, binary: Binary) -> None:
        if binary.problem is not None:
            self.problem(file, binary.problem, member)
        if len(self._libraries) >= MAX_LIBRARIES:
            self.problem(file, f"more than {MAX_LIBRARIES} binaries are too many to keep", member)
        elif binary.codes or binary.problem is None:
            member = _shown(member) if member is not None else None
            self._libraries.append(
                Library(file=_shown(file), member=member, machine=binary.machine, codes=binary.codes)
            )

    def problem(self, file: str, reason: str, member: str | None = None) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            member = _shown(member) if member is not None else None
            self._problems.append(Problem(file=_shown(file), reason=reason, member=member))
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
    """What lies below a folder, in a stable order; links are not followed, so there are no loops.

    Not `os.walk`, which calls itself for each level in Python 3.11.
    """
    waiting = [str(folder)]
    while waiting:
        here = waiting.pop()
        files: list[str] = []
        with found.guard(here), os.scandir(here) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
            folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += reversed(folders)
            files = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
        yield from map(Path, files)


def _path(path: Path, found: _Found, *, named: bool) -> None:
    with found.guard(str(path)):
        # A pipe would block for ever, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("it is not a regular file")
        archive = path.name.endswith(_PACKED_SUFFIXES)
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            head = FileStream(file, 0, size).read(tars.BLOCK)
            if _file(file, head, size, str(path), found, expected=named or archive):
                return
        if named and head[:4] == elf.MAGIC:
            raise Unreadable("it is an ELF file for 32-bit hosts, and those hold no GPU code")
        if named or (archive and not head.startswith(_OTHER_LIBRARIES)):
            raise Unreadable("it is neither an ELF file nor a zip nor a tar")


def _file(file: BinaryIO, head: bytes, size: int, name: str, found: _Found, *, expected: bool) -> bool:
    """Look into one open file; False when it is nothing that can be looked into.

    `expected` files that are compressed are broken where they cannot be unpacked; any other may be what it
    likes.
    """
    if elf.is_wanted(head):
        found.add(name, None, read_binary(file_opener(file, 0, size), size))
    elif head[:4] in zips.MAGICS:
        _zip(file, size, name, found)
    elif _is_image(FileStream(file, 0, size), expected):
        for item in images.read_image(FileStream(file, 0, size)):
            found.add(name, item.member, item.binary)
    else:
        return False
    return True


def _is_image(stream: FileStream, expected: bool) -> bool:
    try:
        return images.is_image(stream)
    except Unreadable:
        if expected:
            raise
        return False


def _zip(file: BinaryIO, size: int, name: str, found: _Found) -> None:
    for member in zips.members(file, size):
        with found.guard(name, member.name):
            opener = partial(zips.open_member, file, member)
            if elf.is_wanted(opener().peek(elf.HEADER)):
                found.add(name, member.name, read_binary(opener, member.size))


def _shown(name: str) -> str:
    """The name as it can be printed anywhere: what would steer a terminal is written out."""
    name = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
