"""What was seen when shipped recipes were run: stronger than any table, and bound to where it was seen."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from lanes.types import Evidence, Finding, Kind, Recipe, Verdict

_BLOCKED = Finding(
    question="engram-volume",
    kind=Kind.CONFIGURATION,
    verdict=Verdict.UNRUNNABLE,
    reason="on 2nodes-dac this lane was blocked: the NFS Engram volume holds symlinks that dangle inside the worker's "
    "container, and a copy by rsync wanted 196 GiB free on the worker",
    source="the report of 2026-10-19, the TensorFold 2x alternative",
    evidence=Evidence.OBSERVED,
    date=datetime.date(2026, 10, 19),
    next_step="free 196 GiB on each node for the copy, or run dsv41-flash-1017-2x-tensorfold on the same weights",
    recheck_when="each node has 196 GiB free for the Engram rows",
)


def check(recipe: Recipe, disks: Sequence[Finding]) -> Iterator[Finding]:
    """The report's block, unless these nodes are known to have the room that it wanted."""
    room = bool(disks) and all(finding.verdict is Verdict.RUNNABLE for finding in disks)
    if recipe.name == "dsv41-flash-1017-2x-vllm" and not room:
        yield _BLOCKED
