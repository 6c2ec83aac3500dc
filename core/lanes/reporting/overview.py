"""What the page begins with: what was found, which lane for what, and all figures side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lanes._version import __version__
from lanes.comparing import saying
from lanes.comparing.comparison import Comparison, Figure, Point
from lanes.comparing.judging import signed
from lanes.comparing.metrics import METRICS
from lanes.comparing.values import count, number, text
from lanes.reporting.model import Block, Cell, Column, Item, Items, Section, Text, Tone, table

_GOOD = ("ok", "measured", "serving", "done")
_WAITING = ("running", "interrupted", "skipped")


def tone(status: str) -> Tone:
    """How a lane's or a cell's own word is told."""
    if status in _GOOD:
        return "good"
    return "doubt" if status in _WAITING else "bad"


def title(comparison: Comparison) -> str:
    """What the page is about."""
    names = [side.name for side in comparison.sides]
    if not names:
        return "No lane"
    if len(names) == 2:
        return f"{names[0]} against {names[1]}"
    return names[0] if len(names) == 1 else f"{len(names)} lanes side by side"


def facts(comparison: Comparison, documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What the page is of."""
    runs = list(dict.fromkeys(run for side in comparison.sides for run in side.runs))
    shown = [document for document in documents if document["run"] in runs]
    yield "Lanes", str(len(comparison.sides))
    launches = sum(side.launches for side in comparison.sides)
    if launches > len(comparison.sides):
        yield "Launches", str(launches)
    yield "Runs" if len(runs) > 1 else "Run", _some(runs)
    times = sorted(document["started_at"] for document in shown if document.get("started_at"))
    if times:
        days = list(
            dict.fromkeys(time.strftime("%Y-%m-%d", time.localtime(at)) for at in (times[0], times[-1]))
        )
        yield "Measured on", " to ".join(days)
    sources: dict[str, list[str]] = {}
    for told in (d["provenance"] for d in shown if d.get("provenance")):
        sources.setdefault(str(told["by"]), []).append(str(told["source"]))
    if sources:
        yield "Reported by others", _some([_source(by, of) for by, of in sources.items()])
    if len(comparison.sides) > 1:
        yield "A difference counts from", f"{100 * comparison.margin:g}%"
    yield "Written by", f"lanes {__version__} on {time.strftime('%Y-%m-%d %H:%M')}"


_SOME = 6


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return ", ".join(names[:_SOME]) + more


def _source(by: str, of: Sequence[str]) -> str:
    """Who told it, and where; of several parts of one source what they have in common."""
    parts = len(dict.fromkeys(of))
    if parts == 1:
        return f"{by} ({of[0]})"
    heads = list(dict.fromkeys(one.partition(", ")[0] for one in of))
    return f"{by} ({heads[0]}, {parts} parts)" if len(heads) == 1 else f"{by} ({parts} sources)"


def summary(comparison: Comparison) -> Section:
    """What was shown and what was not, how lanes ended, and which lane for what."""
    blocks: list[Block] = []
    resolved = [one for one in comparison.verdicts if one.judgement.word != "unresolved"]
    if len(comparison.sides) > 1 and not resolved:
        blocks.append(Text(text=_nothing(comparison)))
    for heading, lines, how in (
        ("Verdicts", saying.verdicts(comparison, "the table of verdicts"), ""),
        ("How lanes ended", (line for side in comparison.sides for line in saying.lane_ends(side)), "bad"),
        ("Which lane for what", saying.choices(comparison), ""),
        ("What does not fit", (flag.sentence for flag in comparison.flags), "doubt"),
    ):
        items = tuple(Item(text=line, tone=how) for line in lines)  # type: ignore[arg-type]
        if items:
            blocks.append(Items(title=heading, items=items))
    return Section(ident="summary", title="In short", blocks=tuple(blocks))


def _nothing(comparison: Comparison) -> str:
    most = max(side.launches for side in comparison.sides)
    why = "one launch of each lane can show none" if most == 1 else "the launches do not resolve it"
    return f"No difference between the lanes was shown: {why}. That does not say that they are equal."


def side_by_side(comparison: Comparison, labels: Mapping[str, str]) -> Section:
    """A row a lane, then a row for each cell and lane, then what a reader should know of them."""
    blocks: list[Block] = []
    if any(name != label for name, label in labels.items()):
        lines = tuple(Item(text=f"{label}: {name}") for name, label in labels.items())
        blocks.append(Items(items=lines))
    blocks.append(_lanes(comparison, labels))
    if any(point.cell for side in comparison.sides for point in side.points):
        blocks.append(_cells(comparison, labels))
    bad = tuple(
        Item(text=line, tone="bad")
        for side in comparison.sides
        for line in saying.point_ends(side, (point for point in side.points if point.cell))
    )
    if bad:
        blocks.append(Items(title="Cells that are not ok", items=bad))
    if comparison.verdicts:
        blocks.append(_verdicts(comparison, labels))
    notes = tuple(Item(text=line) for line in saying.notes(comparison))
    if notes:
        blocks.append(Items(title="Notes", items=notes, quiet=True))
    return Section(ident="figures", title="Side by side", blocks=tuple(blocks))


def shown(figure: Figure | None) -> Cell:
    """A figure with its interval, marked where it was shown to be the best."""
    if figure is None:
        return Cell(text="")
    return Cell(text=text(figure), tone="best" if figure.best else "")


def _lanes(comparison: Comparison, labels: Mapping[str, str]) -> Block:
    told = list(dict.fromkeys(name for side in comparison.sides for name in side.lane_metrics))
    rows = []
    for side in comparison.sides:
        entries = [column.entries.get(side.name) for column in comparison.columns]
        rows.append(
            (
                Cell(text=labels[side.name]),
                Cell(text=saying.status(side), tone=tone(side.status)),
                Cell(text=str(side.launches)),
                *(shown(entry.figure if entry else None) for entry in entries),
                *(Cell(text=_told(side.lane_metrics.get(name))) for name in told),
            )
        )
    heads = [f"{column.title}>" for column in comparison.columns]
    own = (Column(title=name.replace("_", " "), numeric=True) for name in told)
    return table("Lanes", ("lane", "status", "launches>", *heads, *own), rows)


def _told(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return str(value)


def _cells(comparison: Comparison, labels: Mapping[str, str]) -> Block:
    metrics = saying.metrics(comparison)
    several = len({instrument for instrument, _ in comparison.points}) > 1
    rows = []
    for instrument, name in comparison.points:
        for side in comparison.sides:
            point = side.point(instrument, name)
            if point is None or not point.cell:
                continue
            rows.append(
                (
                    Cell(text=name),
                    Cell(text=instrument if several else ""),
                    Cell(text=labels[side.name] if len(labels) > 1 else ""),
                    Cell(text=point_status(point), tone=tone(point.status)),
                    *(shown(point.figures.get(metric.name)) for metric in metrics),
                    Cell(text=_over(point)),
                )
            )
    heads = [f"{metric.title}>" for metric in metrics]
    return table("Every cell", ("cell", "by", "lane", "status", *heads, "over>"), rows)


_WORDS: dict[str, Tone] = {
    "faster": "good",
    "better": "good",
    "slower": "bad",
    "worse": "bad",
    "unresolved": "doubt",
}


def _verdicts(comparison: Comparison, labels: Mapping[str, str]) -> Block:
    """All verdicts, each a second lane held against a first one."""
    rows = []
    for one in comparison.verdicts:
        found = one.judgement
        unit = "blocks" if found.paired else "launches"
        interval = f" [{signed(found.lo)}, {signed(found.hi)}]" if found.lo and found.hi else ""
        rows.append(
            (
                Cell(text=f"{one.point}, {METRICS[one.metric].title}"),
                Cell(text=f"{labels[one.b]} against {labels[one.a]}"),
                Cell(text=found.word, tone=_WORDS.get(found.word, "")),
                Cell(text=f"{signed(found.ratio)}{interval}" if found.ratio is not None else ""),
                Cell(text=number(found.p_adjusted)),
                Cell(
                    text=f"{found.n_a} {unit}" if found.paired else f"{found.n_b} against {found.n_a} {unit}"
                ),
                Cell(text=one.cause or ""),
            )
        )
    heads = ("figure", "lanes", "verdict", "ratio>", "p>", "over", "the one thing that differs")
    return table("Verdicts", heads, rows)


def _over(point: Point) -> str:
    return next((count(figure) for figure in point.figures.values()), "")


def point_status(point: Point) -> str:
    """The cell's own word, and in how many launches it was not good."""
    return (
        f"{point.status}, {point.bad} of {point.launches}"
        if point.bad and point.launches > 1
        else point.status
    )
