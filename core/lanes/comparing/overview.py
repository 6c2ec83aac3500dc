"""The table with a row a lane: quality, the time of a turn, prefill, and decode by streams, at one cell that
most lanes have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from lanes.comparing.comparison import Column, Entry, Point, Side
from lanes.comparing.metrics import DECODE

_Base = tuple[int, int, str]


def columns(sides: Sequence[Side]) -> tuple[Column, ...]:
    """The columns of which at least one lane has a figure."""
    base = _base(sides)
    found = [
        _column(sides, "quality", ("score",), lambda p: not p.cell),
        _column(sides, "responsiveness", ("responsiveness",), lambda p: not p.cell),
        _column(sides, "median turn s", ("median_turn_s",), lambda p: not p.cell),
    ]
    if base is not None:
        streams = sorted({int(p.cell["concurrency"]) for side in sides for p in side.points if _is(p, base)})
        for name, title in (("ttft_s", "TTFT s"), ("prefill_tps", "prefill tok/s")):
            found.append(_column(sides, title, (name,), lambda p: _is(p, base, 1)))
        for c in streams:
            found.append(
                _column(sides, f"decode tok/s c{c}", DECODE, lambda p, c=c: _is(p, base, c))  # type: ignore[misc]
            )
    return tuple(column for column in found if column.entries)


def _base(sides: Sequence[Side]) -> _Base | None:
    """The prompt and depth that most lanes have; of several the shallowest."""
    count: Counter[_Base] = Counter()
    for side in sides:
        count.update({key for point in side.points if (key := _key(point))})
    return min(count, key=lambda key: (-count[key], key[1], key[2] != "suffix", key[0]), default=None)


def _key(point: Point) -> _Base | None:
    cell = point.cell
    if not cell or cell.get("load", "burst") != "burst" or not point.figures:
        return None
    return cell["pp"], cell["depth"], cell.get("shape", "suffix")


def _is(point: Point, base: _Base, streams: int | None = None) -> bool:
    return _key(point) == base and (streams is None or point.cell["concurrency"] == streams)


def _column(sides: Sequence[Side], title: str, names: Sequence[str], fits: Callable[[Point], bool]) -> Column:
    """The column of the first of these figures; each lane's by the instrument that most lanes have it of."""
    held: list[tuple[str, Entry]] = []
    for side in sides:
        for point in side.points:
            if fits(point) and (entry := _entry(point, names)):
                held.append((side.name, entry))
    instruments = Counter(entry.instrument for _, entry in held)
    metric = Counter(entry.figure.metric for _, entry in held)
    entries: dict[str, Entry] = {}
    for name, entry in sorted(
        held, key=lambda h: (-instruments[h[1].instrument], -metric[h[1].figure.metric])
    ):
        entries.setdefault(name, entry)
    in_order = {side.name: entries[side.name] for side in sides if side.name in entries}
    return Column(title=title, metric=names[0], entries=in_order)


def _entry(point: Point, names: Sequence[str]) -> Entry | None:
    for name in names:
        if name in point.figures:
            return Entry(instrument=point.instrument, point=point.name, figure=point.figures[name])
    return None
