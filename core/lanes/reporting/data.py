"""What a plot shows, in words and as a table: for those who cannot see it, and where there are no plots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lanes.comparing.values import number
from lanes.reporting.model import Curves, Plot, Spans, Strips, Table, table


def as_table(plot: Plot) -> Table:
    """The values of a plot; of a distribution what describes it."""
    if isinstance(plot, Curves):
        return table(
            plot.title,
            ("lane", f"{plot.x}>", f"{plot.y}>", "95% interval>", "over>"),
            [
                (
                    series.name,
                    number(dot.x),
                    number(dot.y),
                    f"{number(dot.lo)} to {number(dot.hi)}" if dot.lo < dot.hi else "",
                    dot.n,
                )
                for series in plot.series
                for dot in series.dots
            ],
        )
    if isinstance(plot, Strips):
        return table(
            plot.title,
            (
                "cell",
                "lane",
                "requests>",
                "least>",
                "a quarter below>",
                "median>",
                "a quarter above>",
                "most>",
            ),
            [
                (strip.where, strip.name, str(len(strip.values)), *map(number, quartiles(strip.values)))
                for strip in plot.strips
            ],
        )
    return table(
        plot.title,
        ("line", *(f"{kind} s>" for kind in plot.kinds), "until s>"),
        [
            (
                bar.name,
                *(_lasted(sum(s.end - s.start for s in bar.spans if s.kind == kind)) for kind in plot.kinds),
                number(max((s.end for s in bar.spans), default=0.0)),
            )
            for bar in plot.bars
        ],
    )


def _lasted(seconds: float) -> str:
    return number(seconds) if seconds else ""


def quartiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """The least value, the quartiles, the most."""
    if len(values) < 2:
        return (values[0],) * 5
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return min(values), low, median, high, max(values)


def in_words(plot: Plot) -> str:
    """What somebody sees at a glance, in a sentence or two."""
    if isinstance(plot, Curves):
        told = [
            f"{series.name} from {number(series.dots[0].y)} at {number(series.dots[0].x)} "
            f"to {number(series.dots[-1].y)} at {number(series.dots[-1].x)}"
            for series in plot.series
        ]
        return f"{plot.title}. {plot.y} against {plot.x}: {'; '.join(told)}."
    if isinstance(plot, Strips):
        told = [f"{s.where}, {s.name}: median {number(quartiles(s.values)[2])}" for s in plot.strips]
        return f"{plot.title}. {plot.x}, a mark for each request. {'; '.join(told)}."
    return f"{plot.title}. {'; '.join(_line(plot, index) for index in range(len(plot.bars)))}."


def _line(plot: Spans, index: int) -> str:
    bar = plot.bars[index]
    return f"{bar.name}: " + ", ".join(f"{s.kind} {number(s.end - s.start)} s" for s in bar.spans)
