"""Plots as inline SVG, drawn by matplotlib; the only module that imports it.

Names of lanes stand in the page's legend, or shortened beside their line. Colours are drawn as marked values and become the
page's own, which follow the reader's scheme.
"""

from __future__ import annotations

import io
import math
import random
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lanes.errors import UsageError
from lanes.reporting.data import quartiles
from lanes.reporting.model import Curves, Plot, Spans, Strips

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = 8
_MARKS = "os^DvPXp"
_LINES = ("-", (0, (5, 2)), (0, (1, 1.5)))
"""Colours and marks come round together; lines tell the rounds apart."""

_INK, _SOFT, _GRID = "#000001", "#000002", "#000003"
_SERIES = tuple(f"#0001{number:02x}" for number in range(COLOURS))
_PAGE = {_INK: "var(--ink)", _SOFT: "var(--soft)", _GRID: "var(--grid)", "#000004": "var(--paper)"} | {
    colour: f"var(--s{number})" for number, colour in enumerate(_SERIES)
}
_PAPER = "#000004"

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def draw(plot: Plot, ident: str, words: str) -> str:
    """The plot as `<svg role="img">` with `words` (escaped already) as its text. `ident` is unique in the page.

    Raises `UsageError` where matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.backends import backend_svg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "the plots of an HTML report are drawn by matplotlib, which is not here",
            "pip install 'lanes-core[report]', or write Markdown with --format md",
        ) from None
    style: Any = {**_STYLE, "svg.hashsalt": ident}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # A letter that its font lacks is only measured wrong: the reader's own font shows it.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=_size(plot), layout="constrained")
        axes = figure.add_subplot()
        if isinstance(plot, Curves):
            _curves(axes, plot)
        elif isinstance(plot, Strips):
            _strips(axes, plot)
        else:
            _spans(axes, plot)
        written = io.StringIO()
        canvas: Any = backend_svg.FigureCanvasSVG(figure)
        canvas.print_svg(written, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(written.getvalue(), ident, words)


def _size(plot: Plot) -> tuple[float, float]:
    """Width and height in inches."""
    if isinstance(plot, Curves):
        return 4.4, 2.9
    lines = len(plot.strips) if isinstance(plot, Strips) else len(plot.bars)
    return 9.0, 0.9 + 0.3 * lines


def _curves(axes: Axes, plot: Curves) -> None:
    xs = sorted({dot.x for series in plot.series for dot in series.dots})
    for place, series in enumerate(plot.series):
        colour, mark, line = _look(series.number)
        # Intervals at one x would hide each other.
        aside = 1.5 * (place - (len(plot.series) - 1) / 2)
        at = [xs.index(dot.x) + aside / 100 * min(len(xs), 6) for dot in series.dots]
        axes.errorbar(
            at,
            [dot.y for dot in series.dots],
            yerr=[
                [max(dot.y - dot.lo, 0.0) for dot in series.dots],
                [max(dot.hi - dot.y, 0.0) for dot in series.dots],
            ],
            color=colour, marker=mark, markersize=5, linestyle=line, linewidth=1.6, capsize=3, elinewidth=1.2,
        )  # fmt: skip
    axes.set_xticks(range(len(xs)), [_tick(x) for x in xs])
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.grid(visible=False, axis="x")
    held = [dot.y for series in plot.series for dot in series.dots]
    if min(held) > 0 and max(held) / min(held) > _DECADES:
        axes.set_yscale("log")
        _plain(axes.yaxis)
    else:
        # No mark is cut at the upper edge.
        most = max(dot.hi for series in plot.series for dot in series.dots)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.05 * max(most, *held)))
        axes.yaxis.set_major_formatter(lambda value, _: _tick(value))


_DECADES = 30
"""Values that lie further apart are drawn on a logarithmic scale."""


def _strips(axes: Axes, plot: Strips) -> None:
    spread = random.Random(0)
    for line, strip in enumerate(plot.strips):
        colour, mark, _ = _look(strip.number)
        values = _some(strip.values)
        axes.scatter(
            values, [line + spread.uniform(-0.22, 0.22) for _ in values],
            s=14, marker=mark, facecolors="none", edgecolors=colour, linewidths=0.9,
        )  # fmt: skip
        _, low, median, high, _ = quartiles(strip.values)
        axes.plot([low, high], [line, line], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([median, median], [line - 0.34, line + 0.34], color=_INK, linewidth=2)
    axes.set_yticks(range(len(plot.strips)), [_short(strip.where) for strip in plot.strips])
    axes.set_ylim(len(plot.strips) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(plot.x)
    held = [value for strip in plot.strips for value in strip.values]
    if min(held) > 0 and max(held) / min(held) > _DECADES:
        axes.set_xscale("log")
        _plain(axes.xaxis)
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: _tick(value))


_MOST = 200


def _some(values: Sequence[float]) -> list[float]:
    """All values, or so many of them that they still look alike."""
    held = sorted(values)
    if len(held) <= _MOST:
        return held
    return [held[round(i * (len(held) - 1) / (_MOST - 1))] for i in range(_MOST)]


def _spans(axes: Axes, plot: Spans) -> None:
    for line, bar in enumerate(plot.bars):
        for span in bar.spans:
            number = plot.kinds.index(span.kind)
            axes.barh(
                line, span.end - span.start, left=span.start, height=0.62,
                color=_SERIES[number % COLOURS], edgecolor=_PAPER, linewidth=0.8,
            )  # fmt: skip
    axes.set_yticks(range(len(plot.bars)), [_short(bar.name) for bar in plot.bars])
    axes.set_ylim(len(plot.bars) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    axes.set_xlabel(plot.x)
    axes.xaxis.set_major_formatter(lambda value, _: _tick(value))


_NAME = 34


def _short(name: str) -> str:
    """The name, or its beginning and its end."""
    return name if len(name) <= _NAME else f"{name[: _NAME // 2 - 3]}\u2026{name[-_NAME // 2 :]}"


def _look(number: int) -> tuple[str, str, Any]:
    at = number % COLOURS
    return _SERIES[at], _MARKS[at], _LINES[number // COLOURS % len(_LINES)]


def _plain(axis: Any) -> None:
    """Numbers as they are on a logarithmic axis: a few between the powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(lambda value, _: _tick(value))
    axis.set_minor_locator(NullLocator())


def _tick(value: float) -> str:
    if value and (abs(value) < 1e-3 or not math.isfinite(value)):
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


_UNUSED = re.compile(r'<g id="[^"]*">')
_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)')


def _inline(written: str, ident: str, words: str) -> str:
    """The drawing as part of a page: no head, no style and no id but its own, and the page's colours."""
    body = written[written.index("<svg") :]
    body = body[body.index(">") + 1 :]
    view = re.search(r'viewBox="([^"]*)"', written)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = _ID.sub(rf"\g<1>{ident}-", _UNUSED.sub("<g>", body)).replace("xlink:href", "href")
    body = re.sub(r"#000[01]\d[0-9a-f]\b", lambda found: _PAGE.get(found.group(), found.group()), body)
    body = re.sub(r">\s+<", "><", body)
    box = view.group(1) if view else "0 0 1 1"
    return f'<svg class="plot" viewBox="{box}" role="img" aria-label="{words}">{body.strip()}'


_SHAPES = (
    '<circle cx="11" cy="6" r="4"/>',
    '<path d="M7 2h8v8h-8z"/>',
    '<path d="M11 1.5l4.5 8.5h-9z"/>',
    '<path d="M11 1l5 5-5 5-5-5z"/>',
    '<path d="M11 10.5l4.5-8.5h-9z"/>',
    '<path d="M9.5 2h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z"/>',
    '<path d="M8.5 1.5l2.5 2.5 2.5-2.5 2 2-2.5 2.5 2.5 2.5-2 2-2.5-2.5-2.5 2.5-2-2 2.5-2.5-2.5-2.5z"/>',
    '<path d="M11 1.5l4.5 3.3-1.7 5.2h-5.6l-1.7-5.2z"/>',
)
"""The marks of matplotlib, in the same order."""


def swatch(number: int) -> str:
    """The colour and mark of a lane, for a legend."""
    at = number % COLOURS
    dash = ("", "5 2", "1 2")[number // COLOURS % len(_LINES)]
    style = f"stroke:var(--s{at});fill:var(--s{at})"
    line = f'<path d="M0 6h22" stroke-width="2" stroke-dasharray="{dash}"/>'
    return f'<svg width="22" height="12" aria-hidden="true" style="{style}">{line}{_SHAPES[at]}</svg>'


def block(number: int) -> str:
    """The colour of a kind of span, for a legend."""
    fill = f"fill:var(--s{number % COLOURS})"
    return f'<svg width="14" height="12" aria-hidden="true" style="{fill}"><path d="M0 0h14v12H0z"/></svg>'
