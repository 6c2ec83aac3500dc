"""The nodes that a lane runs on: this machine, or hardware that one only plans to buy."""

from __future__ import annotations

import platform

from lanes.types import Node


def local() -> Node:
    """This machine, as its system and its drivers tell it."""
    from lanes.hardware.probe import local_node

    return local_node(platform.node() or "localhost")


def hypothetical(arch: str, count: int = 1) -> tuple[Node, ...]:
    """`count` nodes with a GPU of that architecture, by any name that people use for it.

    Raises UsageError for a name that is not known.
    """
    import attrs

    from lanes.hardware.hypothetical import hypothetical_node

    node = hypothetical_node(arch)
    if count == 1:
        return (node,)
    return tuple(attrs.evolve(node, name=f"{node.name}-{number}") for number in range(1, count + 1))
