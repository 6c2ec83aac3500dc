"""Where a lane runs: this machine, another one over SSH, a cluster, or hardware that one only plans to buy."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from attrs import evolve, frozen

from lanes import hosts
from lanes.hosts import Host
from lanes.limits import Limits
from lanes.types import Node, Seat


@frozen(kw_only=True)
class Place:
    """A cluster's name (`local` is this machine), its seats in order of rank, and the way to each.

    `file` is that of a cluster whose nodes were asked: they are claimed before anything is done there.
    `limits` are those of the containers, by rank, that a cluster's file gives."""

    name: str
    seats: tuple[Seat, ...]
    hosts: tuple[Host, ...] = ()
    file: str | None = None
    limits: tuple[Limits, ...] = ()

    def host(self, rank: int) -> Host:
        """How a rank's node is reached."""
        return self.hosts[rank] if rank < len(self.hosts) else hosts.HERE

    @property
    def http_host(self) -> str:
        """Where a lane listens: on this machine alone the loopback, else the head's address, since it is
        measured from here."""
        return "127.0.0.1" if self.host(0).ssh is None else self.seats[0].address

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(seat.node for seat in self.seats)

    @property
    def hypothetical(self) -> bool:
        """Is this hardware only asked about?"""
        return any(node.hypothetical for node in self.nodes)


def here() -> Place:
    """This machine."""
    return Place(name="local", seats=(Seat(rank=0, node=local()),))


def local() -> Node:
    """This machine, as its system and its drivers tell it."""
    from lanes.hardware.probe import local_node

    return local_node(platform.node() or "localhost")


def hypothetical(arch: str, count: int = 1) -> Place:
    """`count` nodes with a GPU of that architecture, by any name that people use for it.

    Raises UsageError for a name that is not known.
    """
    from lanes.hardware.hypothetical import hypothetical_node

    node = hypothetical_node(arch)
    names = [node.name] if count == 1 else [f"{node.name}-{number}" for number in range(1, count + 1)]
    return Place(name=arch, seats=seats([evolve(node, name=name) for name in names]))


def remote(host: str) -> Place:
    """A machine that `ssh HOST` reaches without asking anything; one call, and nothing is left there.

    Raises LaneError with what ssh said when it does not.
    """
    way = Host(ssh=host)
    return Place(name=host, seats=(Seat(rank=0, node=asked(host, way), address=host),), hosts=(way,))


def asked(name: str, way: Host) -> Node:
    """A machine as it tells of itself. Raises LaneError when it cannot be reached."""
    from lanes.hardware.probe import remote_node

    return remote_node(name, lambda argv: hosts.run(way, argv))


def seats(nodes: Sequence[Node]) -> tuple[Seat, ...]:
    """A seat for each node; how several reach each other is not known, and said in a dry run's words."""
    if len(nodes) == 1:
        return (Seat(rank=0, node=nodes[0]),)
    return tuple(
        Seat(rank=rank, node=node, address=f"<address of {node.name}>", interface="<interface>")
        for rank, node in enumerate(nodes)
    )
