"""What lies behind the medians: the TTFT of each request, when the streams of a pass ran, how a boot went."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lanes.comparing.comparison import Comparison
from lanes.comparing.grouping import Group
from lanes.reporting.model import Bar, Block, Plots, Section, Span, Spans, Strip, Strips, Text
from lanes.results.document import cell_name

Cell = Mapping[str, Any]

_LINES = 24
"""Lines of a plot; more of them nobody reads."""


def first_tokens(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """The time to the first token of every measured request, by cell and lane."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for number, group in enumerate(groups):
        for instrument, cell in _cells(group):
            for one in _measured(cell):
                values = [f["ttft_s"] for f in one.get("stream_figures") or () if "ttft_s" in f]
                by_lane = found.setdefault((instrument, cell_name(cell)), {})
                by_lane.setdefault(number, []).extend(values)
    several = len({instrument for instrument, _ in found}) > 1
    strips = [
        Strip(
            name=comparison.sides[number].name,
            where=f"{name} by {instrument}" if several else name,
            number=number,
            values=tuple(values),
        )
        for (instrument, name), by_lane in found.items()
        for number, values in by_lane.items()
        if len(values) > 1
    ]
    blocks: list[Block] = []
    if strips:
        blocks.append(Text(text=_STRIPS))
        plot = Strips(title="TTFT of each request", x="TTFT s", strips=tuple(strips[:_LINES]))
        blocks.append(Plots(plots=(plot,)))
    if len(strips) > _LINES:
        blocks.append(Text(text=f"The first {_LINES} of {len(strips)} cells and lanes are drawn."))
    return Section(ident="ttft", title="Time to the first token", blocks=tuple(blocks))


_STRIPS = (
    "Each mark is a measured request of any launch of the lane; the upright line is the median, the thick one holds the "
    "half of them in the middle."
)


def timelines(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """When each stream of a pass waited for its first token and when it decoded, for each lane's fullest cell."""
    plots = [
        plot
        for side, group in zip(comparison.sides, groups, strict=True)
        if (plot := _timeline(side.name if len(groups) > 1 else "", group)) is not None
    ]
    blocks: tuple[Block, ...] = ()
    if plots:
        blocks = (Text(text=_TIMELINES), Plots(plots=tuple(plots[:_LANES])))
    return Section(ident="timelines", title="Timeline of a pass", blocks=blocks)


_LANES = 8
_TIMELINES = (
    "The last pass of the cell with the most streams: when each was sent, had its first token, and its last."
)


def _timeline(lane: str, group: Group) -> Spans | None:
    fullest: tuple[int, Cell, Mapping[str, Any]] | None = None
    for _, cell in _cells(group):
        for one in _measured(cell):
            held = sum(1 for _ in _streams(one))
            if held and (fullest is None or held >= fullest[0]):
                fullest = (held, cell, one)
    if fullest is None:
        return None
    streams = sorted(_streams(fullest[2]))
    zero = streams[0][0]
    bars = tuple(
        Bar(
            name=f"stream {number}",
            spans=(
                Span(kind=_WAIT, start=at - zero, end=at - zero + ttft),
                Span(kind=_DECODE, start=at - zero + ttft, end=at - zero + e2e),
            ),
        )
        for number, (at, ttft, e2e) in enumerate(streams[:_LINES], 1)
    )
    return Spans(
        title=", ".join(filter(None, (lane, cell_name(fullest[1])))),
        x="seconds since the first was sent",
        kinds=(_WAIT, _DECODE),
        bars=bars,
    )


_WAIT, _DECODE = "until the first token", "decode"


def _streams(one: Mapping[str, Any]) -> Iterator[tuple[float, float, float]]:
    """(Unix seconds of the send, TTFT, whole answer) of each stream that has all three."""
    for stream, figures in zip(one.get("streams") or (), one.get("stream_figures") or (), strict=False):
        ttft, e2e = figures.get("ttft_s"), figures.get("e2e_s")
        if stream.get("t0_ns") and ttft is not None and e2e is not None and e2e >= ttft:
            yield stream["t0_ns"] / 1e9, ttft, e2e


def boots(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """How long each phase took from the start of a launch until the lane served."""
    bars: list[Bar] = []
    for side, group in zip(comparison.sides, groups, strict=True):
        taken: dict[str, list[float]] = {}
        for launch in group.launches:
            for phase, seconds in _phases(launch.lane).items():
                taken.setdefault(phase, []).append(seconds)
        spans: list[Span] = []
        for phase, held in taken.items():
            start = spans[-1].end if spans else 0.0
            spans.append(Span(kind=phase, start=start, end=start + statistics.median(held)))
        if spans:
            over = f", {len(group.launches)} launches" if len(group.launches) > 1 else ""
            failed = "" if side.status in ("measured", "serving") else f" ({side.status})"
            bars.append(Bar(name=f"{side.name}{failed}{over}", spans=tuple(spans)))
    kinds = tuple(dict.fromkeys(span.kind for bar in bars for span in bar.spans))
    blocks: tuple[Block, ...] = ()
    if bars:
        plot = Spans(title="Boot phases", x="seconds", kinds=kinds, bars=tuple(bars[:_LINES]))
        blocks = (Text(text=_BOOTS), Plots(plots=(plot,)))
    return Section(ident="boot", title="From launch to service", blocks=blocks)


_BOOTS = "Of a lane with several launches each phase is the median of theirs. What was measured afterwards is not in it."


def _phases(lane: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in lane["boot"]:
        if one["phase"] not in ("measuring", "stopping") and one["seconds"] is not None:
            found[one["phase"]] = found.get(one["phase"], 0.0) + one["seconds"]
    return found


def _cells(group: Group) -> Iterator[tuple[str, Cell]]:
    """The good cells of all launches, with whose they are."""
    for launch in group.launches:
        for instrument in launch.lane["instruments"]:
            for cell in instrument["cells"]:
                if cell["status"] == "ok":
                    yield instrument["name"], cell


def _measured(cell: Cell) -> Iterator[Mapping[str, Any]]:
    yield from (one for one in cell["passes"] if not one.get("warmup") and not one.get("error"))
