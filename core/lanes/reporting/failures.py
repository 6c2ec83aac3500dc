"""Why lanes failed: causes, what to do, and the end of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lanes.comparing.comparison import Comparison
from lanes.comparing.grouping import Group
from lanes.reporting.model import Block, Item, Items, Log, Section

_LINES = 60
"""Of a log; `lanes report --bug` has more."""
_MOST = 12
"""Logs of one page."""


def section(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """For each launch that failed and each thing that counts against a server: causes and log."""
    blocks: list[Block] = []
    seen: set[Any] = set()
    for side, group in zip(comparison.sides, groups, strict=True):
        for launch in group.launches:
            for what, told in _failed(launch.lane):
                causes = tuple(Item(text=_cause(one)) for one in told.get("causes") or ())
                lines = tuple(str(line) for line in told.get("log") or ())[-_LINES:]
                title = f"{side.name}, {what} (run {launch.run})"
                if (causes or lines) and (side.name, causes, lines) not in seen:
                    seen.add((side.name, causes, lines))
                    if causes:
                        blocks.append(Items(title=f"{title}: causes", items=causes))
                    if lines:
                        blocks.append(Log(title=f"{title}: the log's last lines", lines=lines))
    return Section(ident="failures", title="Logs of failures", blocks=tuple(blocks[: 2 * _MOST]))


def _failed(lane: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if lane["status"] not in ("measured", "serving", "running"):
        yield lane["status"], lane
    for attempt in lane.get("attempts") or ():
        if attempt["status"] != "ready":
            yield f"attempt {attempt['number']}, {attempt['status']}", attempt
    for instrument in lane["instruments"]:
        for row in instrument.get("rows") or ():
            if row["fault"]:
                yield f"{instrument['name']} {row['name']}, {row['status']}", row.get("evidence") or {}


def _cause(cause: Mapping[str, Any]) -> str:
    where = f"rank {cause['rank']}: " if cause.get("rank") is not None else ""
    advice = f". {cause['advice']}" if cause.get("advice") else ""
    return f"{where}{cause['meaning']}{advice}"
