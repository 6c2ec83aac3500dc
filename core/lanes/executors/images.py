"""Images on the nodes of a lane: there already, brought from this machine, or pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lanes import hosts
from lanes.errors import LaneError, StagingError
from lanes.executors import docker as containers
from lanes.hosts import HERE, Host
from lanes.types import Image, Node

if TYPE_CHECKING:
    import docker

Progress = Callable[[str, int, int], None]
"""Called with the image's name, bytes done, and bytes in all (0: not known)."""

TRANSFER_S = 3600.0
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def ensure(image: Image, places: Mapping[Host, Node], progress: Progress) -> str:
    """Have every host hold the image, made for its processor; return the reference.

    Raises StagingError.
    """
    for host, node in places.items():
        try:
            with containers.client(host, TRANSFER_S) as engine:
                held = _held(engine, image.reference)
                if held is None and host != HERE:
                    held = _bring(image, engine, progress)
                if held is None:
                    held = _pull(image, engine, host, progress)
                _fits(image, held, host, node)
        except LaneError as error:
            if isinstance(error, StagingError):
                raise
            raise StagingError(f"image {image.reference}: {error.message}", error.next_step) from None
    return image.reference


def _held(engine: docker.DockerClient, reference: str) -> Any | None:
    import docker.errors

    try:
        return engine.images.get(reference)
    except docker.errors.ImageNotFound:
        return None


def _bring(image: Image, engine: docker.DockerClient, progress: Progress) -> Any | None:
    """Send the image from this machine's engine, if it has it; None if not."""
    try:
        with containers.client(HERE, TRANSFER_S) as here:
            held = _held(here, image.reference)
            if held is None:
                return None
            size = int(held.attrs.get("Size", 0))
            # Under its name, not its id: an image that is loaded by its id has none.
            stream = here.api.get_image(image.reference)
            engine.images.load(_Counted(stream, image.reference, size, progress))  # type: ignore[arg-type]
    except StagingError:
        raise
    except LaneError:
        return None
    return _held(engine, image.reference)


class _Counted:
    """A stream that tells how far it has come; an iterator, so that it is sent in pieces."""

    def __init__(self, blocks: Iterable[bytes], name: str, total: int, progress: Progress) -> None:
        self._blocks, self._name, self._total, self._progress = iter(blocks), name, total, progress
        self._done = 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> bytes:
        block = next(self._blocks)
        self._done += len(block)
        self._progress(self._name, self._done, self._total)
        return block


def _pull(image: Image, engine: docker.DockerClient, host: Host, progress: Progress) -> Any:
    import docker.errors

    layers: dict[str, tuple[int, int]] = {}
    try:
        for event in engine.api.pull(image.reference, stream=True, decode=True):
            if "error" in event:
                raise StagingError(
                    f"image {image.reference} is not on {hosts.name(host)}, and cannot be pulled: {event['error']}",
                    "build or load it there, or correct its name",
                )
            told = event.get("progressDetail") or {}
            if "total" in told:
                layers[event.get("id", "")] = int(told.get("current", 0)), int(told["total"])
                done, total = (sum(values) for values in zip(*layers.values(), strict=True))
                progress(image.reference, done, total)
    except docker.errors.APIError as error:
        raise StagingError(
            f"image {image.reference} is not on {hosts.name(host)}, and cannot be pulled: {error.explanation or error}",
            "build or load it there, or correct its name",
        ) from None
    return _held(engine, image.reference)


def _fits(image: Image, held: Any, host: Host, node: Node) -> None:
    made_for = _MACHINES.get(held.attrs.get("Architecture", ""), held.attrs.get("Architecture"))
    if node.arch and made_for and made_for != node.arch:
        raise StagingError(
            f"image {image.reference} is made for {made_for}, and {hosts.name(host)} is {node.arch}",
            "name an image that is made for that host",
        )
