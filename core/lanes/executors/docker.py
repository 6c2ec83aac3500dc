"""Containers of a lane: how one is made from a rank's launch data, found again, and removed.

Everything that is made carries labels of ownership, and nothing without them is ever touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanes import hosts
from lanes.errors import LaneError, StartError
from lanes.hosts import Host
from lanes.types import Container, Process

if TYPE_CHECKING:
    import docker

OWNER = "lanes.owner"
"""Label on everything that lanes makes; its value is the folder of the lane's record."""
LANE = "lanes.lane"
RANK = "lanes.rank"

ENVIRONMENT = "LANES_CONTAINER_ENV"
"""In the keeper's environment: the container's own, as JSON, so that it is never on disk."""

ASK_S = 60.0
INFINIBAND = "/dev/infiniband"


def name_of(lane: str, rank: int) -> str:
    """The name of a rank's container."""
    return f"lanes-{lane}-rank{rank}"


def arguments(process: Process, host: Host, folder: Path, amd: bool = False) -> dict[str, Any]:
    """What the Docker engine is asked for, as JSON-able keyword arguments; the environment is apart.

    Raises LaneError when the host cannot be asked which devices it has.
    """
    container = process.container
    assert container is not None
    limits = {**container.ulimits, "memlock": container.memlock_bytes, "nofile": container.nofile}
    return {
        "name": name_of(folder.name, process.rank),
        "image": container.image,
        "command": list(process.argv),
        # The argv says it all: an image's own entrypoint would change what it means.
        "entrypoint": [],
        "working_dir": process.cwd,
        "labels": {
            **container.labels,
            OWNER: os.path.realpath(folder),
            LANE: folder.name,
            RANK: str(process.rank),
        },
        "network_mode": container.network,
        "ipc_mode": container.ipc,
        "cap_add": list(container.cap_add),
        "shm_size": container.shm_bytes,
        "mem_limit": container.memory_bytes,
        "nano_cpus": None if container.cpus is None else int(container.cpus * 1e9),
        "devices": _devices(container, host, amd),
        "gpus": 0 if amd else container.gpus,
        "mounts": [[one.source, one.target, one.read_only] for one in container.mounts],
        "ulimits": {kind: value for kind, value in limits.items() if value is not None},
        # Reaps what engines leave unreaped.
        "init": True,
    }


def _devices(container: Container, host: Host, amd: bool) -> list[str]:
    wanted = [*container.devices, *(["/dev/kfd", "/dev/dri"] if amd and container.gpus else [])]
    # A fabric that a node lacks is no reason to refuse it: the engine finds another way, or says so.
    return [one for one in wanted if one != INFINIBAND or _exists(host, one)]


def _exists(host: Host, path: str) -> bool:
    if host.ssh is None:
        return os.path.exists(path)
    return (
        hosts.run(host, ["sh", "-c", 'test -e "$1" && echo yes || echo no', "lanes", path]).strip() == "yes"
    )


def create(client: docker.DockerClient, wanted: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """Create the container that `arguments` describe. Raises StartError with what the engine said."""
    import docker.errors
    import docker.types

    gpus = wanted["gpus"]
    count = -1 if gpus == "all" else gpus
    requests = [docker.types.DeviceRequest(count=count, capabilities=[["gpu"]])] if gpus else []
    own: dict[str, Any] = {
        "mounts": [
            docker.types.Mount(target, source, type="bind", read_only=read_only)
            for source, target, read_only in wanted["mounts"]
        ],
        "ulimits": [
            docker.types.Ulimit(name=kind, soft=value, hard=value)
            for kind, value in wanted["ulimits"].items()
        ],
        "device_requests": requests,
        "environment": dict(environment),
    }
    rest = {key: value for key, value in wanted.items() if key not in own and key != "gpus"}
    try:
        return client.containers.create(**rest, **own)
    except docker.errors.ImageNotFound:
        raise StartError(f"there is no image {wanted['image']} there", "stage it, or pull it") from None
    except docker.errors.APIError as error:
        raise StartError(
            f"the container could not be created: {error.explanation or error}", "correct that and try again"
        ) from None


@contextlib.contextmanager
def client(host: Host, timeout_s: float = ASK_S) -> Iterator[docker.DockerClient]:
    """The host's Docker engine. Raises LaneError when there is none, or it does not answer."""
    try:
        import docker
        import docker.errors
    except ImportError:
        raise LaneError("the Python package docker is not installed", "pip install docker") from None
    with hosts.docker_socket(host) as socket:
        try:
            opened = docker.DockerClient(base_url=f"unix://{socket}", timeout=int(timeout_s))
        except docker.errors.DockerException as error:
            raise LaneError(
                f"no Docker engine answers on {hosts.name(host)} ({_short(error)})", "is it running?"
            ) from None
        with contextlib.closing(opened):
            yield opened


def left(folder: Path) -> list[str]:
    """The names of the lane's containers that still exist, wherever they were started."""
    found = []
    for host in _hosts(folder):
        with client(host) as engine:
            found += [one.name for one in _ours(engine, folder)]
    return sorted(found)


def remove(folder: Path) -> list[str]:
    """Remove what is left of a lane's containers; return those that could not be removed, or asked of."""
    stuck = []
    for host in _hosts(folder):
        try:
            stuck += remove_on(host, os.path.realpath(folder))
        except LaneError as error:
            stuck.append(f"containers on {hosts.name(host)} ({error.message})")
    return stuck


def remove_on(host: Host, owner: str) -> list[str]:
    """Remove the containers on a host that carry this label OWNER; return those that could not be removed.

    Raises LaneError when its Docker engine cannot be asked.
    """
    import docker.errors

    stuck = []
    with client(host) as engine:
        for one in _labelled(engine, owner):
            try:
                one.remove(force=True, v=True)
            except docker.errors.NotFound:
                continue
            except docker.errors.APIError as error:
                stuck.append(f"{one.name} on {hosts.name(host)} ({error.explanation or error})")
    return stuck


def made(engine: docker.DockerClient) -> dict[str, str]:
    """All containers that any lanes made on this engine, with the folder of their lane's record."""
    found = engine.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
    return {str(one.name): one.labels.get(OWNER, "") for one in found}


def _ours(engine: docker.DockerClient, folder: Path) -> list[Any]:
    return _labelled(engine, os.path.realpath(folder))


def _labelled(engine: docker.DockerClient, owner: str) -> list[Any]:
    found = engine.containers.list(all=True, filters={"label": f"{OWNER}={owner}"}, ignore_removed=True)
    return list(found)


def _hosts(folder: Path) -> list[Host]:
    """The hosts on which ranks of the lane were to run in containers."""
    found: dict[Host, None] = {}
    for file in sorted(folder.glob("rank*/process.json")):
        with contextlib.suppress(OSError, ValueError):
            spec = json.loads(file.read_text(encoding="utf-8"))
            if "container" in spec:
                host = Host(**spec["host"])
                found[host] = None
    return list(found)


def ended(state: Mapping[str, Any]) -> dict[str, Any]:
    """A container's State as the fields of `exit.json`: an exit code over 128 is a signal."""
    code = int(state.get("ExitCode", 0))
    killed = code > 128 and code - 128 in {int(number) for number in signal.Signals}
    return {
        "code": None if killed else code,
        "signal": signal.Signals(code - 128).name if killed else None,
        "oom_killed": bool(state.get("OOMKilled")),
        "error": state.get("Error") or None,
    }


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
