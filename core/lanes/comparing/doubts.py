"""What in the data does not fit together: told beside the figures, whoever measured them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from lanes.comparing import factors
from lanes.comparing.comparison import Column, Flag
from lanes.comparing.grouping import Group, Launch
from lanes.comparing.metrics import METRICS
from lanes.comparing.summarising import Reading, readings
from lanes.comparing.values import number
from lanes.results.quality import unrankable

_SAME = 0.005
"""Figures closer than that are one figure, rounded."""


def flags(shown: Sequence[Group], pool: Sequence[Launch], columns: Sequence[Column]) -> tuple[Flag, ...]:
    """All doubts about the lanes that are shown; `pool` are all launches that are known, theirs included."""
    return tuple(
        dict.fromkeys((*_instruments(columns), *_versions(shown), *_quoted(shown, pool), *_told(shown, pool)))
    )


def _instruments(columns: Sequence[Column]) -> Iterator[Flag]:
    """One column, two instruments: they do not count alike."""
    for column in columns:
        by: dict[str, list[str]] = defaultdict(list)
        for lane, entry in column.entries.items():
            by[entry.instrument].append(lane)
        if len(by) > 1:
            told = "; ".join(f"{instrument} for {', '.join(lanes)}" for instrument, lanes in by.items())
            yield Flag(
                kind="instruments",
                sentence=f"{column.title} is not of one instrument: {told}",
                lanes=tuple(column.entries),
            )


def _versions(shown: Sequence[Group]) -> Iterator[Flag]:
    """Scores by two versions of an instrument do not compare: scenarios are graded differently."""
    by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for group in shown:
        for launch in group.launches:
            for one in readings(launch):
                if (
                    one.version
                    and "score" in one.metrics
                    and group.name not in by[one.instrument][one.version]
                ):
                    by[one.instrument][one.version].append(group.name)
    for instrument, versions in by.items():
        if len(versions) > 1:
            told = "; ".join(f"{version} for {', '.join(lanes)}" for version, lanes in versions.items())
            pairs = itertools.combinations(({"version": version} for version in versions), 2)
            why = next((found for a, b in pairs if (found := unrankable(a, b))), None)
            more = f" ({why})" if why and instrument == "tooleval" else ""
            yield Flag(
                kind="versions",
                sentence=f"scores of {instrument} by different versions do not compare: {told}{more}",
                lanes=tuple(lane for lanes in versions.values() for lane in lanes),
            )


def _quoted(shown: Sequence[Group], pool: Sequence[Launch]) -> Iterator[Flag]:
    """A figure that is quoted for a lane, although the lane's own measurement reads otherwise."""
    measured = [launch for launch in pool if not launch.quoted]
    every = [(launch, one) for launch in measured for one in readings(launch)]
    for group in shown:
        for launch in group.launches:
            if not launch.quoted:
                continue
            own = [(other, one) for other, one in every if _same_lane(other, launch)]
            for quote in readings(launch):
                yield from _quote(group, quote, own, every)


def _quote(
    group: Group,
    quote: Reading,
    own: Sequence[tuple[Launch, Reading]],
    every: Sequence[tuple[Launch, Reading]],
) -> Iterator[Flag]:
    for metric, figure in quote.metrics.items():
        value = figure["median"]
        held = [one.metrics[metric]["median"] for _, one in own if _same_point(one, quote, metric)]
        if not held or any(_close(value, other) for other in held):
            continue
        sentence = (
            f"{_title(metric)} of {group.name} ({quote.name}) is quoted as {number(value)}, "
            f"and its own run read {' and '.join(number(other) for other in held)}"
        )
        others = [
            launch
            for launch, one in every
            if _same_point(one, quote, metric) and one.metrics[metric]["median"] == value
        ]
        if others:
            sentence += f": {number(value)} is what {others[0].run} measured, {_unlike(others[0], own[0][0])}"
        yield Flag(kind="quoted", sentence=sentence, lanes=(group.name,))


def _unlike(other: Launch, own: Launch) -> str:
    found = factors.differences([("other", other.factors), ("own", own.factors)])
    told = [f"{one.factor} {one.values['other'] or 'not set'}" for one in found]
    return f"with {', '.join(told)}" if told else "another launch of it"


def _told(shown: Sequence[Group], pool: Sequence[Launch]) -> Iterator[Flag]:
    """What engines told of themselves: one lane with two values, two engines with one."""
    names = {launch.lane["name"]: group.name for group in shown for launch in group.launches}
    identities = {_identity(launch) for group in shown for launch in group.launches}
    by_lane: dict[tuple[str, str, str], dict[float, str]] = defaultdict(dict)
    by_value: dict[tuple[str, float], dict[str, str]] = defaultdict(dict)
    for launch in pool:
        for metric, value in _numbers(launch.lane["lane_metrics"]):
            if _identity(launch) in identities:
                by_lane[_identity(launch), launch.lane["name"], metric].setdefault(value, launch.run)
            if engine := launch.lane["engine"]:
                by_value[metric, value].setdefault(engine, launch.lane["name"])
    for (_, lane, metric), values in by_lane.items():
        if len(values) > 1 and max(values) > min(values) * (1 + _SAME):
            told = " and ".join(f"{number(value)} ({run})" for value, run in values.items())
            yield Flag(
                kind="one lane, two values",
                sentence=f"{metric.replace('_', ' ')} of {lane}: {told}",
                lanes=(names[lane],),
            )
    for (metric, value), engines in by_value.items():
        if len(engines) > 1 and any(lane in names for lane in engines.values()):
            yield Flag(
                kind="two engines, one value",
                sentence=f"{metric.replace('_', ' ')}: {number(value)} for {' and '.join(engines.values())}, of different engines: "
                "one may be copied from the other",
                lanes=tuple(names.get(lane, lane) for lane in engines.values()),
            )


def _identity(launch: Launch) -> str:
    return repr((launch.lane["name"], sorted(launch.factors.items())))


def _same_lane(one: Launch, other: Launch) -> bool:
    return _identity(one) == _identity(other)


def _same_point(one: Reading, other: Reading, metric: str) -> bool:
    return (
        (one.instrument, one.name) == (other.instrument, other.name) and metric in one.metrics and one.counts
    )


def _numbers(told: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in told.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            yield name, float(value)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME * max(abs(a), abs(b))


def _title(metric: str) -> str:
    return METRICS[metric].title if metric in METRICS else metric
