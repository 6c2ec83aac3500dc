"""An image that a Docker engine holds, as the stream that `docker save` writes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from lanes.errors import UsageError
from lanes.hardware.streams import Stream, Unreadable

TIMEOUT_S = 600.0
"""Longest silence of the engine: some pack the whole image before they send its first byte."""
REACH_S = 10
CHUNK = 1 << 20


@contextlib.contextmanager
def saved(reference: str) -> Iterator[Stream]:
    """The image's tar, read once while the engine sends it; nothing is written to disk.

    The engine is the one of DOCKER_HOST, or this machine's. Raises UsageError where there is no engine, no
    `docker` package or no such image, Unreadable where the engine stops sending.
    """
    try:
        # By name, since the package is needed here alone and may be missing.
        docker: Any = importlib.import_module("docker")
    except ImportError:
        raise UsageError(
            f"docker:{reference} cannot be looked at: the Python package docker is not installed",
            f"`pip install docker`, or scan what `docker save {reference} -o image.tar` writes.",
        ) from None

    # What the HTTP client below it raises are OSErrors.
    faults: tuple[type[Exception], ...] = (docker.errors.DockerException, OSError)
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(contextlib.closing(docker.from_env(timeout=REACH_S)))
            client.ping()
        except faults as error:
            raise UsageError(
                f"docker:{reference} cannot be looked at: no Docker engine answers ({_first(error)})",
                "Start it, point DOCKER_HOST at one, or scan what `docker save` wrote to a file.",
            ) from None
        try:
            client.images.get(reference)
            client.api.timeout = TIMEOUT_S
            chunks: Iterator[bytes] = client.api.get_image(reference, chunk_size=CHUNK)
        except docker.errors.ImageNotFound:
            raise UsageError(
                f"the Docker engine has no image {reference!r}", f"`docker pull {reference}` brings it."
            ) from None
        except faults as error:
            raise UsageError(
                f"the Docker engine does not give {reference!r} ({_first(error)})",
                f"See what `docker save {reference}` says.",
            ) from None

        def pull() -> bytes:
            try:
                return next((chunk for chunk in chunks if chunk), b"")
            except faults as error:
                raise Unreadable(f"the Docker engine stopped sending it ({_first(error)})") from None

        yield Stream(pull)


def _first(error: Exception) -> str:
    """What went wrong, in one line of bearable length."""
    return " ".join(str(error).split())[:200] or type(error).__name__
