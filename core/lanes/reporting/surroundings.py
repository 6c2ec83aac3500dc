"""What the figures may depend on: what differs between lanes, what they share, how they were started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from lanes.comparing.comparison import Comparison
from lanes.comparing.grouping import Group
from lanes.reporting.model import Block, Cell, Column, Log, Section, table


def section(comparison: Comparison, groups: Sequence[Group], labels: Mapping[str, str]) -> Section:
    """Factors that differ with a column a lane, factors that all share, nodes, and command lines."""
    blocks: list[Block] = []
    names = [side.name for side in comparison.sides]
    if comparison.differences:
        rows = [
            (one.factor, *(one.values.get(name) or "not told" for name in names))
            for one in comparison.differences
        ]
        lanes = (Column(title=labels[name]) for name in names)
        blocks.append(table("What differs", ("factor", *lanes), rows))
    differing = {one.factor for one in comparison.differences}
    shared = [
        (factor, value)
        for factor, value in (comparison.sides[0].factors if comparison.sides else {}).items()
        if factor not in differing and all(side.factors.get(factor) == value for side in comparison.sides)
    ]
    if shared:
        caption = "What they share" if len(names) > 1 else "What it is made of"
        blocks.append(table(caption, ("factor", "value"), shared))
    if nodes := _nodes(groups):
        blocks.append(
            table("Machines", ("node", "system", "CPUs>", "memory GiB>", "GPUs", "driver", "CUDA"), nodes)
        )
    for side, group in zip(comparison.sides, groups, strict=True):
        if lines := _commands(group.launches[-1].lane):
            title = "Started with" if len(names) == 1 else f"{side.name} was started with"
            blocks.append(Log(title=title, lines=lines))
    return Section(ident="environment", title="Environment", blocks=tuple(blocks))


def _nodes(groups: Sequence[Group]) -> list[tuple[Cell | str, ...]]:
    found: dict[tuple[Cell | str, ...], None] = {}
    for group in groups:
        for launch in group.launches:
            for node in (launch.lane.get("environment") or {}).get("nodes") or ():
                found.setdefault(_node(node))
    return list(found)


_GIB = 1 << 30


def _node(node: Mapping[str, Any]) -> tuple[Cell | str, ...]:
    gpus = node.get("gpus") or ()
    counted: dict[str, int] = {}
    for gpu in gpus:
        name = " ".join(filter(None, (gpu["name"], gpu.get("target") and f"({gpu['target']})")))
        counted[name] = counted.get(name, 0) + 1
    memory = node.get("memory_bytes")
    return (
        str(node["name"]),
        " ".join(filter(None, (node.get("os"), node.get("arch")))),
        str(node.get("cpus") or ""),
        f"{memory / _GIB:.1f}" if memory else "",
        ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items()) or "none",
        ", ".join(sorted({gpu["driver"] for gpu in gpus if gpu.get("driver")})),
        str(node.get("cuda") or ""),
    )


def _commands(lane: Mapping[str, Any]) -> tuple[str, ...]:
    """The command line of each rank, for a shell."""
    found = []
    for process in (lane.get("launch") or {}).get("processes") or ():
        env = "".join(f"{name}={shlex.quote(value)} " for name, value in (process.get("env") or {}).items())
        found.append(env + shlex.join(process["argv"]))
    return tuple(found)
