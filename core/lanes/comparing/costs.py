"""What the past of a lane says of an A/B to come: how long a launch takes, how much launches differ, and by
how much the instrument tells a lane from itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lanes.comparing import grouping, metrics, planning
from lanes.comparing.compare import compare
from lanes.comparing.summarising import summary

_FEW = 4
"""Launches that say something of how much launches differ."""


def boot_s(documents: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Seconds from the start of a launch of this lane until it served: the median over its past."""
    held = []
    for lane in _lanes(documents, name):
        phases = [phase for phase in lane["boot"] if phase["phase"] != "measuring"]
        if phases and all(phase["seconds"] is not None for phase in phases):
            held.append(sum(phase["seconds"] for phase in phases))
    return statistics.median(held) if held else None


def measure_s(documents: Iterable[Mapping[str, Any]], name: str, passes: int) -> float | None:
    """Seconds to measure so many passes (of all cells, warm-ups included), by what a pass took."""
    held = []
    for lane in _lanes(documents, name):
        taken = sum(p["seconds"] for p in lane["boot"] if p["phase"] == "measuring" and p["seconds"])
        counted = sum(len(cell["passes"]) for i in lane["instruments"] for cell in i["cells"])
        if taken and counted:
            held.append(taken / counted)
    return statistics.median(held) * passes if held else None


def _lanes(documents: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [
        lane
        for document in documents
        for lane in document["lanes"]
        if lane["name"] == name and lane["status"] == "measured"
    ]


def noise(documents: Sequence[Mapping[str, Any]], name: str, figures: Sequence[str]) -> float | None:
    """The standard deviation of a block's log ratio, from how launches of this lane differed: the largest over
    the figures that are judged. None where no making of it was launched four times."""
    own = [one for one in grouping.launches(documents) if one.lane["name"] == name and not one.quoted]
    by_making: dict[tuple[Any, ...], list[grouping.Launch]] = {}
    for launch in own:
        by_making.setdefault(tuple(sorted(launch.factors.items())), []).append(launch)
    found = []
    for some in by_making.values():
        values = summary(grouping.Group(name=name, launches=tuple(some), factors=some[0].factors)).values
        for (_, _, metric), held in values.items():
            logs = [math.log(value) for _, value in held if value > 0]
            if metric in figures and len(logs) >= _FEW:
                found.append(planning.spread(logs) or 0.0)
    return max(found) * math.sqrt(2) if found else None


def floors(documents: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """(instrument, point, metric) -> the share by which A/A runs told a lane from itself, the largest."""
    found: dict[tuple[str, str, str], float] = {}
    for document in documents:
        if not (document.get("ab") or {}).get("mirrored"):
            continue
        for verdict in compare([document]).verdicts:
            ratio, where = verdict.judgement.ratio, (verdict.instrument, verdict.point, verdict.metric)
            if ratio is not None and verdict.judgement.paired:
                found[where] = max(found.get(where, 0.0), max(ratio, 1 / ratio) - 1)
    return found


def judged(cells: Iterable[Mapping[str, Any]], chosen: Collection[str] = ()) -> list[str]:
    """The figures by which the probe's cells will be judged, one for each cell and figure. A cell is what
    `results.document.CELL_KEY` names."""
    found = []
    for cell in cells:
        several = cell["concurrency"] != 1
        held = {"prefill_tps", "stream_decode_tps" if several else "decode_tps"}
        if cell["load"] != "burst":
            held = held - {"prefill_tps"} | {"ttft_p99_s", "load_tps"}
        found += [metric.name for metric in metrics.judged(held) if not chosen or metric.name in chosen]
    return found
