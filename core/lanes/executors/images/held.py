"""What Docker engines hold: an image's identity, and which layers are there to build upon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from lanes.errors import StagingError

if TYPE_CHECKING:
    import docker

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Docker's names of processors, and those of the kernel."""


@frozen(kw_only=True)
class Held:
    """An image as an engine holds it.

    `id` is the engine's: that of the configuration where it keeps layers with a graph driver, that of the manifest
    where it keeps them in containerd. `layers` are the digests of their uncompressed content, the lowest first;
    `digests` those of the repositories it came from. `runs` is what decides how it runs (command, environment ...).
    """

    id: str
    layers: tuple[str, ...]
    architecture: str
    os: str
    size_bytes: int
    digests: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    runs: str = ""

    @property
    def machine(self) -> str:
        """The processor it is made for, as `uname -m` says it."""
        return MACHINES.get(self.architecture, self.architecture)

    def same(self, other: Held) -> bool:
        """Whether it is that image: ids differ between kinds of engines, and content does not."""
        return self.id == other.id or (
            bool(self.layers)
            and self.layers == other.layers
            and (self.architecture, self.runs) == (other.architecture, other.runs)
        )


def inspect(engine: docker.DockerClient, reference: str) -> Held | None:
    """The image of this name, digest or id; None where there is none."""
    import docker.errors

    try:
        return _held(_told(engine, reference))
    except docker.errors.ImageNotFound:
        return None


def _told(engine: docker.DockerClient, reference: str) -> dict[str, Any]:
    told: dict[str, Any] = engine.api.inspect_image(reference)  # type: ignore[no-untyped-call]
    return told


def _held(told: dict[str, Any]) -> Held:
    config = told.get("Config") or {}
    # What an engine leaves out and what it writes as empty is the same.
    runs = repr(sorted((key, repr(value)) for key, value in config.items() if value and key != "Image"))
    return Held(
        id=told["Id"],
        layers=tuple((told.get("RootFS") or {}).get("Layers") or ()),
        architecture=told.get("Architecture", ""),
        os=told.get("Os", "linux"),
        size_bytes=int(told.get("Size", 0)),
        digests=tuple(told.get("RepoDigests") or ()),
        tags=tuple(told.get("RepoTags") or ()),
        labels=tuple(sorted((config.get("Labels") or {}).items())),
        runs=runs,
    )


def common(engine: docker.DockerClient, layers: Sequence[str]) -> int:
    """How many of the layers, from the lowest, the engine has upon one another: of any image it holds."""
    import docker.errors

    most = 0
    for one in engine.api.images(all=True, quiet=True):
        try:
            other = _held(_told(engine, one)).layers
        except docker.errors.ImageNotFound:
            continue  # removed meanwhile
        shared = next(
            (n for n, (a, b) in enumerate(zip(layers, other, strict=False)) if a != b),
            min(len(layers), len(other)),
        )
        most = max(most, shared)
    return most


def in_containerd(told: dict[str, Any]) -> bool:
    """Whether the engine that tells this of itself keeps its images in containerd."""
    return any("io.containerd" in str(value) for _, value in told.get("DriverStatus") or ())


def fits(image: Held, reference: str, where: str, machine: str | None) -> None:
    """Raise StagingError when the image is made for another processor than that of `machine` (None: not known)."""
    if machine and image.machine and image.machine != machine:
        raise StagingError(
            f"image {reference} is made for {image.machine}, and {where} is {machine}",
            "name an image that is made for that host",
        )
