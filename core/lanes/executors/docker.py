"""Containers of a lane: how one is made from a rank's launch data, found again, and removed.

Everything that is made carries labels of ownership, and nothing without them is ever touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

REMOVED = "removed"
"""A file in a rank's folder: its keeper saw the container go."""

ENVIRONMENT = "LANES_CONTAINER_ENV"
"""In the keeper's environment: the container's own, as JSON, so that it is never on disk."""

ASK_S = 60.0
_CONFLICT = 409
_LIMIT = re.compile(r"setting rlimit type (\d+)")
_LIMITS = {7: "nofile", 8: "memlock_bytes"}
"""The kernel's numbers of limits, and their keys in a cluster's file."""
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
        try:
            return client.containers.create(**rest, **own)
        except docker.errors.APIError as error:
            if error.status_code != _CONFLICT or not _made_way(client, wanted):
                raise
            return client.containers.create(**rest, **own)
    except docker.errors.ImageNotFound:
        raise StartError(f"there is no image {wanted['image']} there", "stage it, or pull it") from None
    except docker.errors.APIError as error:
        raise StartError(
            f"the container could not be created: {error.explanation or error}", "correct that and try again"
        ) from None


def _made_way(client: docker.DockerClient, wanted: Mapping[str, Any]) -> bool:
    """Remove a leftover of ours that has the container's name; False where there is none (any more).

    Raises StartError for a container of somebody else, or of a lane that may live: those are not touched.
    """
    import docker.errors

    try:
        other = client.containers.get(wanted["name"])
    except docker.errors.NotFound:
        return False
    owner = other.labels.get(OWNER)
    if owner != wanted["labels"][OWNER] and (owner is None or other.status == "running"):
        whose = "is not one of lanes" if owner is None else f"belongs to the lane of {owner}, and runs"
        raise StartError(
            f"there is a container {wanted['name']} already, which {whose}",
            f"when nobody needs it: docker rm -f {wanted['name']} there, and try again",
        )
    with contextlib.suppress(docker.errors.NotFound):
        other.remove(force=True, v=True)
    return True


def started(made: Any, host: Host) -> None:
    """Start a container. Raises StartError with what the engine said; the container is removed then."""
    import docker.errors

    try:
        made.start()
    except docker.errors.APIError as error:
        made.remove(force=True, v=True)
        said = _short(error.explanation or error, 500)
        if limit := _LIMIT.search(said):
            key = _LIMITS.get(int(limit[1]), f"limit {limit[1]}")
            where = hosts.name(host)
            raise StartError(
                f"the Docker engine on {where} is not permitted to raise {key.removesuffix('_bytes')} as the lane "
                f"asks ({said})",
                f'say {key} = "host" under [limits] in the cluster\'s file, and it stays what {where} gives every '
                "container; or permit that engine to raise it (LimitMEMLOCK=infinity and the like in its service)",
            ) from None
        raise StartError(said, "correct that and try again") from None


@contextlib.contextmanager
def client(host: Host, timeout_s: float = ASK_S) -> Iterator[docker.DockerClient]:
    """The host's Docker engine. Raises LaneError when there is none, and as `told` does."""
    with (
        hosts.docker_socket(host) as socket,
        connected(host, socket, timeout_s) as opened,
        told(host, socket),
    ):
        yield opened


@contextlib.contextmanager
def connected(host: Host, socket: str, timeout_s: float = ASK_S) -> Iterator[docker.DockerClient]:
    """The Docker engine behind a socket. Raises LaneError when none answers."""
    try:
        import docker
        import docker.errors
    except ImportError:
        raise LaneError("the Python package docker is not installed", "pip install docker") from None
    try:
        opened = docker.DockerClient(base_url=f"unix://{socket}", timeout=int(timeout_s))
    except docker.errors.DockerException as error:
        raise _trouble(host, socket, error, "no Docker engine answers on {}") from None
    with contextlib.closing(opened):
        yield opened


@contextlib.contextmanager
def told(host: Host, socket: str) -> Iterator[None]:
    """Raise LaneError for a Docker engine that does not answer any more, and for what it refuses that the
    caller does not see to."""
    import docker.errors
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except docker.errors.APIError as error:
        said = _short(error.explanation or error)
        raise LaneError(f"the Docker engine on {hosts.name(host)} refuses: {said}") from None
    except (RequestException, HTTPError, ConnectionError, TimeoutError) as error:
        raise _trouble(host, socket, error, "the Docker engine on {} does not answer any more") from None


def _trouble(host: Host, socket: str, error: Exception, what: str) -> LaneError:
    """Who is to blame for no answer: the way to the host, or the Docker engine there."""
    where = hosts.name(host)
    if host.ssh is not None and not hosts.leads_on(socket):
        said = hosts.last_words(socket)
        return LaneError(
            f"the connection to {where} broke: {said}", f"see that `ssh {where}` works, and run again"
        )
    look = "is it running? `systemctl status docker` tells" + (f" on {where}" if host.ssh else "")
    return LaneError(f"{what.format(where)} ({_short(error)})", look)


def left(folder: Path) -> list[str]:
    """The names of the lane's containers that still exist, wherever they were started."""

    def one(host: Host) -> list[str]:
        with client(host) as engine:
            return [one.name for one in _ours(engine, folder)]

    return sorted(_everywhere(one, _hosts(folder)))


def remove(folder: Path) -> list[str]:
    """Remove what is left of a lane's containers; return those that could not be removed, or asked of."""

    def one(host: Host) -> list[str]:
        try:
            return remove_on(host, os.path.realpath(folder))
        except LaneError as error:
            return [f"containers on {hosts.name(host)} ({error.message})"]

    return _everywhere(one, _hosts(folder))


def _everywhere(act: Callable[[Host], list[str]], where: Sequence[Host]) -> list[str]:
    """Do something on all hosts at once; what they returned, in their order."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        return [found for several in pool.map(act, where) for found in several]


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
    """The hosts on which containers of the lane may be left."""
    found: dict[Host, None] = {}
    for file in sorted(folder.glob("rank*/process.json")):
        if file.with_name(REMOVED).exists():
            continue
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


def _short(error: object, most: int = 200) -> str:
    return " ".join(str(error).split())[:most]
