"""Build an image from a context folder and patches.

The patches are applied to a copy of the folder, so that what a person keeps stays as it is, and a patch that does not
apply to the line is refused. The image carries a digest of all that went in: the same is not built twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from lanes import paths
from lanes.errors import StagingError
from lanes.executors.process import uncoloured
from lanes.types import Build

if TYPE_CHECKING:
    import docker

LABEL = "lanes.build"
"""On an image that was built: the digest of its context, Dockerfile and patches."""
TELLING = 6
"""So many of the last lines of a build that failed are told."""
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)

_STEP = re.compile(r"^Step \d+/\d+ : ")
_OWN = re.compile(r"^(Step \d+/\d+ : |--->|Removing intermediate container )")
"""What the engine says of itself."""


@frozen(kw_only=True)
class Context:
    """A context as it is built: its folder, patched; the digest of it all; the images that it is built upon."""

    folder: Path
    digest: str
    bases: tuple[str, ...]


@frozen(kw_only=True)
class Built:
    """Where an image was built, from what (a digest), and how long it took: 0 where it was there."""

    context: str
    on: str
    seconds: float = 0.0


@contextlib.contextmanager
def context(item: Build, origin: str) -> Iterator[Context]:
    """The patched copy of a build's context, for as long as the context lasts. Raises StagingError."""
    source = paths.under(Path(origin).parent, item.context)
    if not source.is_dir():
        raise StagingError(
            f"{item.tag} cannot be built: there is no folder {source}", "correct the recipe's build.context"
        )
    patches = [paths.under(Path(origin).parent, one) for one in item.patches]
    for patch in patches:
        if not patch.is_file():
            raise StagingError(
                f"{item.tag} cannot be built: there is no patch {patch}", "correct the recipe's build.patches"
            )
    with tempfile.TemporaryDirectory(prefix="lanes-build-", dir="/var/tmp") as made:
        folder = Path(made) / "context"
        try:
            shutil.copytree(source, folder, symlinks=True)
        except (OSError, shutil.Error) as error:
            raise StagingError(f"{item.tag} cannot be built: {source} cannot be copied: {error}") from None
        for patch in patches:
            _apply(item, patch, folder)
        dockerfile = folder / item.dockerfile
        if not dockerfile.is_file():
            raise StagingError(
                f"{item.tag} cannot be built: there is no {item.dockerfile} in {source}",
                "correct the recipe's build.dockerfile",
            )
        text = dockerfile.read_text(encoding="utf-8", errors="replace")
        yield Context(folder=folder, digest=_digest(folder, item.dockerfile), bases=_bases(text))


def _apply(item: Build, patch: Path, folder: Path) -> None:
    argv = [
        "patch",
        "-p1",
        "--batch",
        "--forward",
        "--fuzz=0",
        "--no-backup-if-mismatch",
        "-r",
        "-",
        "-i",
        str(patch),
    ]
    try:
        ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        raise StagingError(
            f"{item.tag} cannot be built: there is no program patch on this machine",
            "install it (apt-get install patch)",
        ) from None
    if ran.returncode:
        said = "; ".join((ran.stdout + ran.stderr).strip().splitlines()[-TELLING:])
        raise StagingError(
            f"{item.tag} cannot be built: {patch.name} does not apply to {item.context}: {said}",
            "make the patch anew for this version of the files (patch -p1)",
        )


def _digest(folder: Path, dockerfile: str) -> str:
    """A digest of names, modes and contents, as a build sees them."""
    found = hashlib.sha256(dockerfile.encode())
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        found.update(f"\0{path.relative_to(folder)}\0{about.st_mode:o}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            found.update(os.readlink(path).encode("utf-8", "surrogateescape"))
        elif path.is_file():
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{found.hexdigest()}"


def _bases(dockerfile: str) -> tuple[str, ...]:
    """The images that a Dockerfile begins with; those that its own stages or arguments name are none."""
    stages: set[str] = {"scratch"}
    found: dict[str, None] = {}
    for name, stage in _FROM.findall(dockerfile):
        if name not in stages and "$" not in name:
            found[name] = None
        stages.add(stage)
    return tuple(found)


def build(
    engine: docker.DockerClient, item: Build, made: Context, where: str, tell: Callable[[str], None]
) -> None:
    """Build it on this engine. Raises StagingError with the last telling lines of a build that fails."""
    import docker.errors

    said: list[str] = []
    with tempfile.TemporaryFile(dir="/var/tmp") as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(made.folder, arcname=".")
        packed.seek(0)
        try:
            events = engine.api.build(
                fileobj=packed, custom_context=True, dockerfile=item.dockerfile, tag=item.tag, rm=True, forcerm=True,
                labels={LABEL: made.digest}, decode=True,
            )  # fmt: skip
            for event in events:
                if "error" in event:
                    raise _failed(item, where, str(event["error"]), said)
                _listen(event, item, said, tell)
        except docker.errors.APIError as error:
            raise _failed(item, where, str(error.explanation or error), said) from None


def _listen(event: dict[str, Any], item: Build, said: list[str], tell: Callable[[str], None]) -> None:
    for line in uncoloured(str(event.get("stream") or event.get("status") or "")).splitlines():
        if line.strip():
            said.append(line.strip())
            tell(f"building {item.tag}: {line.strip()}")
    del said[:-200]


def _failed(item: Build, where: str, error: str, said: list[str]) -> StagingError:
    """The step that failed, and what it printed."""
    at = max((number for number, line in enumerate(said) if _STEP.match(line)), default=None)
    step = "" if at is None else f" at {_STEP.sub('', said[at])}"
    printed = [line for line in said[at or 0 :] if not _OWN.match(line)][-TELLING:]
    told = f". It printed: {'; '.join(printed)}" if printed else ""
    buildkit = "buildkit" in error.lower()
    more = "build it with docker buildx and name the image alone" if buildkit else "mend that and run again"
    return StagingError(
        f"{item.tag} cannot be built on {where}: {' '.join(error.split()).rstrip('.')}{step}{told}", more
    )
