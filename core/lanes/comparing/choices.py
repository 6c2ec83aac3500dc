"""Which lane suits which shape of work, in words that name the figures: an interactive agent, a batch, a
node, a watt, and the user's own weights.

An order by figures as they stand is no claim: the sentence says whether the first place was shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from lanes.comparing.comparison import Choice, Column, Figure, Side
from lanes.comparing.metrics import DECODE, METRICS
from lanes.comparing.values import number

_TOTAL = ("batch_decode_tps", "steady_tps", "span_tps", "load_tps", *DECODE)
"""Tokens a second of all streams, by what a cell has."""


@frozen(kw_only=True)
class _Aspect:
    """What a shape asks of a lane: None where the lane does not tell. `shown` says whether its value was shown
    to be the best of all."""

    title: str
    unit: str
    higher: bool
    of: Callable[[Side], float | None]
    shown: Callable[[Side], bool] = lambda side: False
    where: Callable[[Side], str] = lambda side: ""
    """At which cell a lane has the value, where lanes may have theirs at different ones."""

    def text(self, side: Side) -> str:
        value = self.of(side)
        where = f" at {self.where(side)}" if self.where(side) else ""
        return f"{self.title} {number(value)}{self.unit}{where}" if value is not None else ""


def choices(
    sides: Sequence[Side], columns: Sequence[Column], weights: Mapping[str, float] | None = None
) -> tuple[Choice, ...]:
    """A choice for each shape of which two lanes at least have the figures.

    `weights` maps figures (`score`, `decode_tps`, ...) to how much they count. Raises KeyError with the
    figure's name where no two lanes have all of them.
    """
    turn = _column(columns, "median turn s", "median turn", " s", False)
    ttft = _column(columns, "TTFT s", "TTFT", " s", False)
    prefill = _column(columns, "prefill tok/s", "prefill", " tok/s", True)
    stream = _column(columns, "decode tok/s c1", "decode", " tok/s", True)
    quality = _column(columns, "quality", "quality", "", True)
    contention = _Aspect(title="contention", unit=" times", higher=False, of=_contention)
    total = _Aspect(
        title="decode of all streams",
        unit=" tok/s",
        higher=True,
        of=lambda s: _total(s, columns)[0],
        shown=lambda s: _total(s, columns)[2],
        where=lambda s: _total(s, columns)[1],
    )
    shapes = (
        ("interactive agent", (turn, ttft, prefill, contention, stream)),
        ("batch", (total, quality)),
        ("quality", (quality,)),
        ("per node", (_per(total, " a node", _nodes),)),
        ("per watt", (_per(total, " a watt", _watts),)),
    )
    found = [choice for shape, aspects in shapes if (choice := _choice(shape, aspects, sides))]
    if weights:
        found.append(_weighted(sides, weights))
    return tuple(found)


def _choice(shape: str, aspects: Sequence[_Aspect], sides: Sequence[Side]) -> Choice | None:
    """Order lanes by the first aspect that two of them tell; the others count where all of those tell them."""
    lanes: list[Side] = []
    used: list[_Aspect] = []
    # A lane that did not come through has figures, and is nothing to choose.
    able = _able(sides)
    for aspect in aspects:
        telling = [side for side in able if aspect.of(side) is not None]
        if not used and len(telling) > 1:
            lanes, used = telling, [aspect]
        elif used and all(side in telling for side in lanes):
            used.append(aspect)
    if not used:
        return None
    ordered = sorted(lanes, key=lambda side: _rank(used[0], side))
    first = ordered[0]
    places = [f"{side.name} ({', '.join(aspect.text(side) for aspect in used)})" for side in ordered]
    said = f"{shape}: {places[0]}, then {', then '.join(places[1:])}"
    if not used[0].shown(first):
        said += f". Not shown by launches: {_few(lanes)}"
    if len({used[0].where(side) for side in lanes}) > 1:
        said += "; and not of the same cell"
    if out := [f"{side.name} ({side.status})" for side in sides if side.status not in _ABLE]:
        said += f". Not in it: {', '.join(out)}"
    return Choice(
        shape=shape,
        figures=tuple(aspect.title for aspect in used),
        lanes=tuple(side.name for side in ordered),
        front=tuple(side.name for side in ordered if not any(_beats(other, side, used) for other in lanes)),
        scores={},
        sentence=said,
    )


_ABLE = ("measured", "serving")


def _able(sides: Sequence[Side]) -> list[Side]:
    """The lanes that can be chosen: quoted figures do not stand beside the measured ones."""
    quoted = all(side.quoted for side in sides)
    return [side for side in sides if side.status in _ABLE and (quoted or not side.quoted)]


def _few(lanes: Sequence[Side]) -> str:
    most = max(side.launches for side in lanes)
    return "one launch of each" if most == 1 else "the difference is unresolved"


def _rank(aspect: _Aspect, side: Side) -> float:
    value = aspect.of(side) or 0.0
    return -value if aspect.higher else value


def _beats(one: Side, other: Side, aspects: Sequence[_Aspect]) -> bool:
    """Whether `one` is nowhere behind, and somewhere ahead."""
    pairs = [(_rank(aspect, one), _rank(aspect, other)) for aspect in aspects]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _column(columns: Sequence[Column], name: str, title: str, unit: str, higher: bool) -> _Aspect:
    entries = next((column.entries for column in columns if column.title == name), {})
    return _Aspect(
        title=title,
        unit=unit,
        higher=higher,
        of=lambda side: entries[side.name].figure.median if side.name in entries else None,
        shown=lambda side: side.name in entries and entries[side.name].figure.best,
    )


def _figures(side: Side, names: Sequence[str]) -> list[Figure]:
    """Of each point the first of these figures that it has."""
    held = [next((p.figures[name] for name in names if name in p.figures), None) for p in side.points]
    return [figure for figure in held if figure is not None]


def _total(side: Side, columns: Sequence[Column]) -> tuple[float | None, str, bool]:
    """The most tokens a second of all streams at the overview's prompt and depth, the cell's name, and whether
    it was shown to be the best."""
    held = []
    for column in columns:
        entry = column.entries.get(side.name)
        point = side.point(entry.instrument, entry.point) if entry else None
        if point is None or not point.cell:
            continue
        names = _TOTAL if point.cell["concurrency"] != 1 else DECODE
        if found := next((point.figures[name] for name in names if name in point.figures), None):
            held.append((found.median, point.name, found.best))
    return max(held, default=(None, "", False))


def _contention(side: Side) -> float | None:
    return max((figure.median for figure in _figures(side, ("contention",))), default=None)


def _nodes(side: Side) -> float | None:
    nodes = side.factors.get("nodes", "")
    return float(nodes) if nodes.isdigit() and int(nodes) else None


def _watts(side: Side) -> float | None:
    return max((figure.median for figure in _figures(side, ("gpu_power_w",))), default=None)


def _per(aspect: _Aspect, of_what: str, by: Callable[[Side], float | None]) -> _Aspect:
    def share(side: Side) -> float | None:
        value, parts = aspect.of(side), by(side)
        return value / parts if value is not None and parts else None

    return _Aspect(
        title=aspect.title + of_what, unit=aspect.unit, higher=aspect.higher, of=share, where=aspect.where
    )


def _weighted(sides: Sequence[Side], weights: Mapping[str, float]) -> Choice:
    """Order by the weighted mean of the logs of each figure's ratio to the best one: 1 is best in everything."""
    values = {
        side.name: {name: best for name in weights if (best := _best(side, name)) is not None}
        for side in _able(sides)
    }
    lanes = [name for name, held in values.items() if len(held) == len(weights)]
    for name in weights:
        if sum(name in held for held in values.values()) < 2 or len(lanes) < 2:
            raise KeyError(name)
    scores = {}
    for lane in lanes:
        logs = 0.0
        for name, weight in weights.items():
            every = [values[other][name] for other in lanes]
            ratio = (
                values[lane][name] / max(every) if METRICS[name].higher else min(every) / values[lane][name]
            )
            logs += weight * math.log(ratio)
        scores[lane] = math.exp(logs / sum(weights.values()))
    ordered = sorted(scores, key=lambda lane: -scores[lane])
    told = "; ".join(
        f"{lane} {scores[lane]:.3f} ({', '.join(f'{METRICS[n].title} {number(values[lane][n])}' for n in weights)})"
        for lane in ordered
    )
    return Choice(
        shape="your weights",
        figures=tuple(weights),
        lanes=tuple(ordered),
        front=(ordered[0],),
        scores=scores,
        sentence=f"your weights, 1 is best in everything: {told}",
    )


def _best(side: Side, name: str) -> float | None:
    """A lane's best value of a figure, over all cells; None where it has none above 0."""
    held = [figure.median for figure in _figures(side, (name,)) if figure.median > 0]
    if not held:
        return None
    return max(held) if METRICS[name].higher else min(held)
