"""From the launches of a lane to its figures: a value a launch, a median with its interval over launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from lanes.bench.statistics import median_interval
from lanes.comparing.comparison import Figure, Point, Side
from lanes.comparing.grouping import Group, Launch
from lanes.results.document import CELL_KEY, cell_name


@frozen(kw_only=True)
class Reading:
    """What one launch has at one point."""

    launch: Launch
    instrument: str
    name: str
    status: str
    reason: str | None
    counts: bool
    """Whether its figures are to be believed."""
    metrics: Mapping[str, Mapping[str, float]]
    cell: Mapping[str, Any]
    notes: tuple[str, ...]
    version: str | None


def readings(launch: Launch) -> Iterator[Reading]:
    """All cells and rows of a launch."""
    for instrument in launch.lane["instruments"]:
        name = instrument["name"]
        version = (instrument.get("plan") or {}).get("version")
        for cell in instrument["cells"]:
            yield Reading(
                launch=launch,
                instrument=name,
                name=cell_name(cell),
                status=cell["status"],
                reason=cell["reason"],
                counts=cell["status"] == "ok",
                metrics={**cell["metrics"], **_gpu(cell)},
                cell={key: cell[key] for key in CELL_KEY if key in cell},
                notes=tuple(cell["notes"]),
                version=version,
            )
        for row in instrument.get("rows") or ():
            yield Reading(
                launch=launch,
                instrument=name,
                name=row["name"],
                status=row["status"],
                reason=row.get("reason"),
                counts=not row.get("fault"),
                metrics={
                    key: figure for key, value in row["figures"].items() if (figure := _interval(value))
                },
                cell={},
                notes=(),
                version=version,
            )


def _gpu(cell: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """What its GPUs told meanwhile: power, energy, clocks."""
    told: Mapping[str, Mapping[str, float]] = cell.get("server_metrics") or {}
    return {name: figure for name, figure in told.items() if name.startswith("gpu_")}


def _interval(value: Any) -> dict[str, float] | None:
    """A figure of a row, a number or an interval, as an interval; None for anything else."""
    if isinstance(value, Mapping) and "median" in value:
        return dict(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return {"median": value, "lo": value, "hi": value, "n": 1}


@frozen(kw_only=True)
class Summary:
    """A lane summed up, and the values behind its figures: (instrument, point, metric) -> launches with theirs."""

    side: Side
    values: Mapping[tuple[str, str, str], tuple[tuple[Launch, float], ...]]


def summary(group: Group) -> Summary:
    """Sum up a lane."""
    found: dict[tuple[str, str], list[Reading]] = {}
    for launch in group.launches:
        for reading in readings(launch):
            found.setdefault((reading.instrument, reading.name), []).append(reading)
    values = {
        (*where, metric): tuple(
            (one.launch, one.metrics[metric]["median"])
            for one in some
            if one.counts and metric in one.metrics
        )
        for where, some in found.items()
        for metric in dict.fromkeys(name for one in some if one.counts for name in one.metrics)
    }
    return Summary(
        side=_side(group, tuple(_point(*where, some) for where, some in found.items())), values=values
    )


def _side(group: Group, points: tuple[Point, ...]) -> Side:
    lanes = [launch.lane for launch in group.launches]
    # The best that a launch came to is what the lane can do; how others ended stands beside it.
    shown = next((lane for lane in lanes if lane["status"] == "measured"), lanes[-1])
    failures = Counter(lane["status"] for lane in lanes if lane["status"] != shown["status"])
    metrics: dict[str, Any] = {}
    for lane in lanes:
        metrics.update(lane["lane_metrics"])
    first = group.launches[0]
    return Side(
        name=group.name,
        engine=shown["engine"],
        cluster=shown["cluster"],
        status=shown["status"],
        reason=shown["reason"],
        next_step=shown["next_step"],
        launches=len(lanes),
        runs=tuple(dict.fromkeys(launch.run for launch in group.launches)),
        failures=dict(failures),
        factors=group.factors,
        lane_metrics=metrics,
        reported=first.reported,
        quoted=first.quoted,
        overrides=tuple(dict.fromkeys(one for lane in lanes for one in lane["overrides"])),
        points=points,
    )


def _point(instrument: str, name: str, some: list[Reading]) -> Point:
    bad = [one for one in some if not one.counts]
    told = bad[0] if bad else some[0]
    return Point(
        instrument=instrument,
        name=name,
        status=told.status,
        reason=told.reason,
        launches=len(some),
        bad=len(bad),
        figures=_figures([one for one in some if one.counts]),
        cell=some[0].cell,
        notes=tuple(dict.fromkeys(note for one in some for note in one.notes)),
        version=told.version,
    )


def _figures(some: list[Reading]) -> dict[str, Figure]:
    names = dict.fromkeys(name for one in some for name in one.metrics)
    return {name: _figure(name, [one.metrics[name] for one in some if name in one.metrics]) for name in names}


def _figure(name: str, held: list[Mapping[str, float]]) -> Figure:
    values = tuple(one["median"] for one in held)
    if len(held) == 1:
        (one,) = held
        return Figure(
            metric=name,
            median=one["median"],
            lo=one["lo"],
            hi=one["hi"],
            n=int(one["n"]),
            unit="pass",
            values=values,
        )
    over = median_interval(values)
    return Figure(
        metric=name, median=over.median, lo=over.lo, hi=over.hi, n=over.n, unit="launch", values=values
    )
