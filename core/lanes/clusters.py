"""Clusters: TOML files -> places.

A cluster is kept in the user's `clusters/` folder, or named by the path of its file. What it says of its
nodes is declared, not seen.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from lanes import nodes, paths
from lanes.errors import UsageError
from lanes.hosts import Host
from lanes.limits import Limits
from lanes.nodes import Place
from lanes.structure import Mistake, structure
from lanes.types import Node, Seat


@frozen(kw_only=True)
class ClusterNode:
    """One host. `ssh` is what `ssh` takes (left out: this machine); `docker` is the path of its Docker
    engine's socket, where that is not the usual one; `address` and `interface` are those of the network
    between the nodes; `hcas` are its RDMA devices; `gpu` is a name that people use (`gb10`), `gpus` how many
    of them it has; `limits` go before the cluster's own."""

    name: str
    ssh: str | None = None
    docker: str | None = None
    address: str | None = None
    interface: str | None = None
    gid_index: int | None = None
    hcas: tuple[str, ...] = ()
    gpu: str | None = None
    gpus: int = 1
    limits: Limits = field(factory=Limits)


@frozen(kw_only=True)
class Cluster:
    """Hosts in the order of ranks. A `protected` one is never changed by `lanes`. `limits` are those of all its
    containers, instead of what engines ask for."""

    name: str
    description: str = ""
    source: str = ""
    protected: bool = False
    limits: Limits = field(factory=Limits)
    nodes: tuple[ClusterNode, ...]


def find(name: str) -> Cluster:
    """The cluster of this name, or in this file. Raises UsageError."""
    return _read(file(name))


def known() -> dict[str, Path]:
    """The files of the user's clusters, by name."""
    return {file.stem: file for file in sorted(paths.clusters().glob("*.toml"))}


def file(name: str) -> Path:
    """The file of the cluster of this name, or this file. Raises UsageError."""
    if name.endswith(".toml") or "/" in name:
        return Path(name).expanduser()
    files = known()
    if name in files:
        return files[name]
    near = get_close_matches(name, files, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    where = f"known are: {', '.join(files)}" if files else f"put its file into {paths.clusters()}"
    raise UsageError(f"there is no cluster {name!r}", f"{hint}{where}; a file is named by its path")


def _read(file: Path) -> Cluster:
    try:
        document: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no cluster file {file}", "name one that exists") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}", "mend the line that it names") from None
    try:
        cluster = structure(document, Cluster)
    except Mistake as mistake:
        raise UsageError(f"{file}: {mistake.key}: {mistake.problem}") from None
    if not cluster.nodes:
        raise UsageError(f"{file}: nodes: a cluster has at least one node", "add [[nodes]] with a name")
    names = [one.name for one in cluster.nodes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{file}: nodes: {twice!r} is the name of two nodes", "give each its own")
    return cluster


def place(cluster: Cluster) -> Place:
    """The cluster as its file declares it: what is not declared is not known. Raises UsageError for the
    name of a GPU that is not known."""
    from lanes.hardware.hypothetical import hypothetical_node

    found = []
    for rank, one in enumerate(cluster.nodes):
        if one.gpu is None:
            node = Node(name=one.name, hypothetical=True)
        else:
            node = evolve(hypothetical_node(one.gpu, gpus=one.gpus), name=one.name)
        address = one.address or f"<address of {one.name}>"
        found.append(
            Seat(
                rank=rank,
                node=node,
                address=address,
                interface=one.interface or "<interface>",
                gid_index=one.gid_index,
                hcas=one.hcas,
            )
        )
    return Place(name=cluster.name, seats=tuple(found), hosts=hosts_of(cluster), limits=_limits(cluster))


def _limits(cluster: Cluster) -> tuple[Limits, ...]:
    return tuple(one.limits.over(cluster.limits) for one in cluster.nodes)


def changeable(cluster: Cluster) -> Cluster:
    """The cluster, if anything may be changed there. Raises UsageError for a protected one."""
    if cluster.protected:
        raise UsageError(
            f"cluster {cluster.name!r} is protected: nothing is changed there, nor started or stopped",
            "choose another",
        )
    return cluster


def protected(file: str | None) -> bool:
    """Whether a cluster's file says by now that it is protected; one that is gone says nothing."""
    try:
        return file is not None and _read(Path(file)).protected
    except UsageError:
        return False


def seen(cluster: Cluster, file: Path) -> Place:
    """The cluster as its nodes tell of themselves, all asked at once. Raises LaneError for the first that
    cannot be reached, and UsageError where the file does not say how the nodes reach each other."""
    from concurrent.futures import ThreadPoolExecutor

    ways = hosts_of(cluster)
    with ThreadPoolExecutor(max_workers=16) as pool:
        found = list(pool.map(_asked, cluster.nodes, ways))
    seats = []
    for rank, (one, node) in enumerate(zip(cluster.nodes, found, strict=True)):
        if one.address is None and len(cluster.nodes) > 1:
            raise UsageError(
                f"cluster {cluster.name!r}: nodes[{rank}].address is missing: the other ranks must find {one.name}",
                "give its address on the network between the nodes",
            )
        seats.append(
            Seat(
                rank=rank,
                node=node,
                address=one.address or "127.0.0.1",
                interface=one.interface,
                gid_index=one.gid_index,
                hcas=one.hcas,
            )
        )
    return Place(
        name=cluster.name, seats=tuple(seats), hosts=ways, file=str(file.absolute()), limits=_limits(cluster)
    )


def _asked(one: ClusterNode, way: Host) -> Node:
    return evolve(nodes.local(), name=one.name) if way.ssh is None else nodes.asked(one.name, way)


def hosts_of(cluster: Cluster) -> tuple[Host, ...]:
    """The way to each node."""
    return tuple(Host(ssh=one.ssh, docker=one.docker) for one in cluster.nodes)
