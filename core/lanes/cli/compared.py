"""How a comparison is shown: lanes in a row, then cell by cell, then what may and what may not be said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lanes.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from lanes.comparing.comparison import Comparison, Side, Verdict

_BEST = " *"


def show(comparison: Comparison) -> None:
    """Print it on stdout."""
    console = output.console()
    console.print(_lanes(comparison))
    if any(side.points for side in comparison.sides):
        console.print(_cells(comparison))
    for title, lines in (
        ("Verdicts", [_verdict(one) for one in comparison.verdicts]),
        ("What differs", list(_differences(comparison))),
        ("Which lane for what", list(_choices(comparison))),
        ("What does not fit", [flag.sentence for flag in comparison.flags]),
        ("Notes", list(_notes(comparison))),
    ):
        if lines:
            console.print(f"{title}:", style="bold")
            for line in lines:
                console.print(f"  - {line}", soft_wrap=True)


def _lanes(comparison: Comparison) -> Table:
    """A row a lane."""
    from lanes.comparing.values import number, text

    told = list(dict.fromkeys(name for side in comparison.sides for name in side.lane_metrics))
    made = output.table(
        "lane", "launches>", *(f"{column.title}>" for column in comparison.columns), *told, "status"
    )
    for side in comparison.sides:
        figures = []
        for column in comparison.columns:
            entry = column.entries.get(side.name)
            figures.append(text(entry.figure) + (_BEST if entry.figure.best else "") if entry else "")
        metrics = [side.lane_metrics.get(name, "") for name in told]
        made.add_row(
            side.name,
            str(side.launches),
            *figures,
            *(number(m) if isinstance(m, int | float) else str(m) for m in metrics),
            _status(side),
        )
    return made


def _status(side: Side) -> str:
    status = side.status
    if side.overrides:
        status += f" (despite {', '.join(side.overrides)})"
    if side.reason and side.status != "measured":
        status += f": {side.reason}"
    others = ", ".join(f"{count} {status}" for status, count in side.failures.items())
    return f"{status}; of {side.launches} launches {others}" if others else status


def _cells(comparison: Comparison) -> Table:
    """A row for each cell and lane, with the figures that are judged or shown in `lanes run`."""
    from lanes.comparing.metrics import METRICS
    from lanes.comparing.values import count, text

    held = {name for side in comparison.sides for point in side.points for name in point.figures}
    metrics = [metric for metric in METRICS.values() if metric.name in held and _wanted(metric.name, held)]
    made = output.table("cell", "by", "lane", *(f"{metric.title}>" for metric in metrics), "n>", "status")
    last = None
    for instrument, name in comparison.points:
        for side in comparison.sides:
            point = side.point(instrument, name)
            if point is None:
                continue
            figures = [point.figures.get(metric.name) for metric in metrics]
            n = next((count(figure) for figure in figures if figure), "")
            status = point.status if point.reason is None else f"{point.status}: {point.reason}"
            if point.bad and point.launches > 1:
                status += f" ({point.bad} of {point.launches} launches)"
            head = (name, instrument) if (name, instrument) != last else ("", "")
            last = (name, instrument)
            made.add_row(
                *head,
                side.name,
                *(text(f) + (_BEST if f.best else "") if f else "" for f in figures),
                n,
                status,
            )
    return made


_SHOWN = (
    "ttft_s",
    "prefill_tps",
    "decode_tps",
    "stream_decode_tps",
    "span_tps",
    "batch_prefill_tps",
    "batch_decode_tps",
)


def _wanted(name: str, held: set[str]) -> bool:
    from lanes.comparing.metrics import METRICS

    if name == "span_tps" and "stream_decode_tps" not in held:
        return False
    return name in _SHOWN or METRICS[name].judged or name in ("contention", "responsiveness")


def _verdict(one: Verdict) -> str:
    said = one.judgement.sentence
    if one.cause is not None:
        return f"{said}. One thing differs: {one.cause}"
    if one.judgement.word in ("unresolved", "no difference"):
        return said
    return f"{said}. No cause can be named: not exactly one thing is known to differ"


def _differences(comparison: Comparison) -> Iterator[str]:
    for one in comparison.differences:
        by_value: dict[str, list[str]] = {}
        for lane, value in one.values.items():
            by_value.setdefault(value if value is not None else "not told", []).append(lane)
        if len(comparison.sides) == 2:
            yield f"{one.factor}: {' / '.join(by_value)}"
        else:
            yield f"{one.factor}: " + "; ".join(f"{v} ({', '.join(lanes)})" for v, lanes in by_value.items())


def _choices(comparison: Comparison) -> Iterator[str]:
    for choice in comparison.choices:
        yield choice.sentence
        if len(choice.figures) > 1 and not choice.scores and len(choice.front) < len(choice.lanes):
            yield f"{choice.shape}, beaten by none in all of {', '.join(choice.figures)}: {', '.join(choice.front)}"


def _notes(comparison: Comparison) -> Iterator[str]:
    figures = [
        figure for side in comparison.sides for point in side.points for figure in point.figures.values()
    ]
    if any(figure.best for figure in figures):
        yield "* shown to be better than every other lane's, over launches"
    if any(figure.unit == "launch" for figure in figures):
        yield "medians with 95% intervals over launches"
    if any(figure.unit == "pass" and figure.n > 1 for figure in figures):
        yield "intervals over the passes of one launch: another launch may lie outside"
    for side in comparison.sides:
        if side.reported:
            yield f"{side.name}: reported by {side.reported}, not measured by this program"
    for text, lanes in _cell_notes(comparison).items():
        yield f"{', '.join(lanes)}: {text}"
    for side in comparison.sides:
        if side.next_step:
            yield f"{side.name}: {side.next_step}"


def _cell_notes(comparison: Comparison) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for side in comparison.sides:
        for point in side.points:
            for note in point.notes:
                lanes = found.setdefault(note, [])
                if side.name not in lanes:
                    lanes.append(side.name)
    return found
