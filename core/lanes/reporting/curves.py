"""Rates and times against depth, against streams and against the rate of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from lanes.comparing.comparison import Comparison, Point
from lanes.comparing.values import count
from lanes.reporting.model import Block, Curves, Dot, Plots, Section, Series, Text

MOST = 12
"""Plots of one kind; the tables have the rest."""

_STREAM = ("stream_decode_tps", "decode_tps")
_ALL = ("batch_decode_tps", "span_tps")


@frozen(kw_only=True)
class _Axis:
    """One thing that was varied: `of` is its value, None where it does not apply; `figures` are what is drawn
    against it, each the first that a cell has, with what it is called."""

    title: str
    of: Callable[[Mapping[str, Any]], float | None]
    key: str
    figures: tuple[tuple[str, tuple[str, ...]], ...]


_AXES = (
    _Axis(
        title="tokens of context before the prompt",
        of=lambda cell: cell["depth"] if cell.get("rate") is None else None,
        key="depth",
        figures=(
            ("prefill tok/s", ("prefill_tps",)),
            ("decode of one stream tok/s", _STREAM),
            ("TTFT s", ("ttft_s",)),
        ),
    ),
    _Axis(
        title="streams at once",
        of=lambda cell: cell["concurrency"] if cell.get("rate") is None else None,
        key="concurrency",
        figures=(
            ("all streams together tok/s", _ALL),
            ("decode of one stream tok/s", _STREAM),
            ("TTFT s", ("ttft_s",)),
            ("load tok/s", ("load_tps",)),
            ("TTFT p99 s", ("ttft_p99_s",)),
        ),
    ),
    _Axis(
        title="requests a second",
        of=lambda cell: cell.get("rate"),
        key="rate",
        figures=(
            ("load tok/s", ("load_tps",)),
            ("TTFT p99 s", ("ttft_p99_s",)),
            ("goodput/s", ("goodput_rps",)),
        ),
    ),
)


def section(comparison: Comparison) -> Section:
    """A plot for each figure and each thing that was varied, all lanes in it."""
    blocks: list[Block] = []
    for axis in _AXES:
        plots = list(_plots(comparison, axis))
        if plots:
            blocks.append(Plots(plots=tuple(plots[:MOST])))
        if len(plots) > MOST:
            blocks.append(Text(text=f"{len(plots) - MOST} more are in the table of every cell."))
    if blocks:
        blocks.insert(0, Text(text=_LEAD))
    return Section(ident="curves", title="Depth and concurrency", blocks=tuple(blocks))


_LEAD = (
    "Medians with 95% intervals; cells that are not ok are left out. Values of x stand at equal distances."
)

_Rest = tuple[Any, ...]


def _plots(comparison: Comparison, axis: _Axis) -> Iterator[Curves]:
    """The plots, those of the fullest sets of cells first."""
    found: dict[tuple[str, _Rest], list[tuple[int, str, float, Point]]] = {}
    for number, side in enumerate(comparison.sides):
        for point in side.points:
            x = axis.of(point.cell) if point.cell else None
            if x is not None and point.status == "ok":
                key = (point.instrument, _rest(point.cell, axis))
                found.setdefault(key, []).append((number, side.name, float(x), point))
    sizes = Counter({key: len({x for _, _, x, _ in held}) for key, held in found.items()})
    several = len({instrument for instrument, _ in found}) > 1
    for key in sorted(found, key=lambda one: (-sizes[one], list(found).index(one))):
        if sizes[key] > 1:
            where = _where(key[1]) + (f" by {key[0]}" if several else "")
            for title, names in axis.figures:
                series = _series(found[key], names)
                if any(len(one.dots) > 1 for one in series):
                    yield Curves(title=f"{_short(title)}, {where}", x=axis.title, y=title, series=series)


def _short(title: str) -> str:
    return title.removesuffix(" tok/s").removesuffix(" s")


def _rest(cell: Mapping[str, Any], axis: _Axis) -> _Rest:
    """All of the cell that is held fast."""
    kept = ("pp", "tg", "depth", "concurrency", "shape", "load")
    return tuple((name, cell.get(name)) for name in kept if name != axis.key)


def _where(rest: _Rest) -> str:
    held = dict(rest)
    parts = [
        f"ctx{held.get('depth', '')} tg{held['tg']}"
        if held.get("shape") == "ctx"
        else f"pp{held['pp']} tg{held['tg']}"
    ]
    if held.get("depth") and held.get("shape") != "ctx":
        parts.append(f"at depth {held['depth']}")
    if (held.get("concurrency") or 1) > 1:
        parts.append(f"{held['concurrency']} streams")
    if held.get("load") == "closed":
        parts.append("closed load")
    return ", ".join(parts)


def _series(held: Sequence[tuple[int, str, float, Point]], names: tuple[str, ...]) -> tuple[Series, ...]:
    by: dict[tuple[int, str], list[Dot]] = {}
    for number, lane, x, point in held:
        figure = next((point.figures[name] for name in names if name in point.figures), None)
        # What is one stream's for one is all streams' too.
        if figure is None and names == _ALL and point.cell["concurrency"] == 1:
            figure = point.figures.get("decode_tps")
        if figure is not None:
            dot = Dot(x=x, y=figure.median, lo=figure.lo, hi=figure.hi, n=count(figure))
            by.setdefault((number, lane), []).append(dot)
    return tuple(
        Series(name=lane, number=number, dots=tuple(sorted(dots, key=lambda dot: dot.x)))
        for (number, lane), dots in by.items()
    )
