"""Where a lane runs: this machine, another one over SSH, a cluster, or hardware that one only plans to buy."""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Sequence

from attrs import evolve, frozen

from lanes.errors import LanesError
from lanes.types import Node, Seat

REACH_S = 60.0
"""How long a node may take to answer over SSH; asking its GPUs is bounded on the node itself."""


@frozen(kw_only=True)
class Place:
    """A cluster's name (`local` is this machine) and its seats in order of rank."""

    name: str
    seats: tuple[Seat, ...]

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

    Raises LanesError with what ssh said when it does not.
    """
    from lanes.hardware.probe import remote_node

    def run(argv: Sequence[str]) -> str:
        # The one place where words become a line: ssh hands a line to the remote shell, whatever one does.
        command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, shlex.join(argv)]
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=REACH_S, check=False,
        )  # fmt: skip
        if ran.returncode:
            said = " ".join(ran.stderr.split())[-300:] or f"ssh exits with {ran.returncode}"
            raise LanesError(f"{host} cannot be asked: {said}", f"`ssh {host}` must work without a password")
        return ran.stdout

    try:
        node = remote_node(host, run)
    except FileNotFoundError:
        raise LanesError("there is no ssh on this machine", "install an SSH client") from None
    except subprocess.TimeoutExpired:
        raise LanesError(f"{host} did not answer within {REACH_S:.0f} s", "is it up?") from None
    return Place(name=host, seats=(Seat(rank=0, node=node, address=host),))


def seats(nodes: Sequence[Node]) -> tuple[Seat, ...]:
    """A seat for each node; how several reach each other is not known, and said in a dry run's words."""
    if len(nodes) == 1:
        return (Seat(rank=0, node=nodes[0]),)
    return tuple(
        Seat(rank=rank, node=node, address=f"<address of {node.name}>", interface="<interface>")
        for rank, node in enumerate(nodes)
    )
