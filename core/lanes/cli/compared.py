"""How a comparison is shown: lanes in a row, then cell by cell, then what may and what may not be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lanes.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from lanes.comparing.comparison import Comparison, Side, Verdict

_BEST = " *"


def show(comparison: Comparison) -> None:
    """Print it on stdout."""
    console = output.console()
    labels = _labels(comparison)
    console.print(_lanes(comparison, labels))
    if any(side.points for side in comparison.sides):
        console.print(_cells(comparison, labels))
    for name, label in labels.items():
        if name != label:
            console.print(f"{label}: {name}", soft_wrap=True)
    for title, lines in (
        ("How lanes ended", list(_ends(comparison))),
        ("Verdicts", list(_verdicts(comparison))),
        ("What differs", list(_differences(comparison))),
        ("Which lane for what", list(_choices(comparison))),
        ("What does not fit", [flag.sentence for flag in comparison.flags]),
        ("Notes", list(_notes(comparison))),
    ):
        if lines:
            console.print(f"{title}:", style="bold")
            for line in lines:
                console.print(f"  - {line}", soft_wrap=True)


_LONG = 32


def _labels(comparison: Comparison) -> dict[str, str]:
    """What lanes are called in tables: letters, where names leave no room for figures."""
    names = [side.name for side in comparison.sides]
    if max(map(len, names), default=0) <= _LONG or len(names) > 26:
        return {name: name for name in names}
    return {name: chr(ord("A") + index) for index, name in enumerate(names)}


def _lanes(comparison: Comparison, labels: Mapping[str, str]) -> Table:
    """A row a lane."""
    from lanes.comparing.values import number, text

    told = list(dict.fromkeys(name for side in comparison.sides for name in side.lane_metrics))
    made = output.table(
        "lane",
        "launches>",
        *(f"{column.title}>" for column in comparison.columns),
        *(f"{name.replace('_', ' ')}>" for name in told),
        "status",
    )
    made.columns[0].no_wrap = max(map(len, labels.values())) <= _LONG
    for side in comparison.sides:
        figures = []
        for column in comparison.columns:
            entry = column.entries.get(side.name)
            figures.append(text(entry.figure) + (_BEST if entry.figure.best else "") if entry else "")
        metrics = [side.lane_metrics.get(name, "") for name in told]
        made.add_row(
            labels[side.name],
            str(side.launches),
            *figures,
            *(number(m) if isinstance(m, int | float) else str(m) for m in metrics),
            _status(side),
        )
    return made


def _status(side: Side) -> str:
    others = "".join(f", {count} {status}" for status, count in side.failures.items())
    return f"{side.status}{others}"


def _ends(comparison: Comparison) -> Iterator[str]:
    """Why a lane is not measured, and what was overruled."""
    for side in comparison.sides:
        said = [f"{side.status}: {side.reason}"] if side.reason and side.status != "measured" else []
        if side.overrides:
            said.append(f"despite {', '.join(side.overrides)}")
        if said and side.next_step:
            said.append(side.next_step)
        if said:
            yield f"{side.name}: {'; '.join(said)}"
        cells: dict[str, list[str]] = {}
        for point in side.points:
            if point.reason:
                cells.setdefault(f"{point.status}: {point.reason}", []).append(point.name)
        for reason, names in cells.items():
            yield f"{side.name}, {', '.join(names)}: {reason}"


def _cells(comparison: Comparison, labels: Mapping[str, str]) -> Table:
    """A row for each cell and lane, with the figures that are judged or shown in `lanes run`."""
    from lanes.comparing.metrics import METRICS
    from lanes.comparing.values import count, text

    held = {name for side in comparison.sides for point in side.points for name in point.figures}
    metrics = [metric for metric in METRICS.values() if metric.name in held and _wanted(metric.name, held)]
    made = output.table("cell", "by", "lane", *(f"{metric.title}>" for metric in metrics), "n>", "status")
    made.columns[2].no_wrap = max(map(len, labels.values())) <= _LONG
    made.columns[0].no_wrap = True
    last = None
    for instrument, name in comparison.points:
        for side in comparison.sides:
            point = side.point(instrument, name)
            if point is None:
                continue
            figures = [point.figures.get(metric.name) for metric in metrics]
            n = next((count(figure) for figure in figures if figure), "")
            status = point.status
            if point.bad and point.launches > 1:
                status += f", {point.bad} of {point.launches}"
            head = (name, instrument) if (name, instrument) != last else ("", "")
            last = (name, instrument)
            made.add_row(
                *head,
                labels[side.name],
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


_SAID = 6


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """What was shown, then what was not, the likeliest first."""
    shown = [one for one in comparison.verdicts if one.judgement.word != "unresolved"]
    rest = [one for one in comparison.verdicts if one.judgement.word == "unresolved"]
    rest.sort(key=lambda one: one.judgement.p)
    yield from (_verdict(one) for one in (*shown, *rest[:_SAID]))
    if len(rest) > _SAID:
        yield f"{len(rest) - _SAID} more figures are unresolved: --json has them"


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
    if any(figure.unit == "pass" and figure.n > 2 for figure in figures):
        yield "intervals over the passes of one launch: another launch may lie outside"
    by: dict[str, list[str]] = {}
    for side in comparison.sides:
        if side.reported:
            by.setdefault(side.reported, []).append(side.name)
    for who, lanes in by.items():
        yield f"reported by {who}, not measured by this program: {', '.join(lanes)}"
    for text, lanes in _cell_notes(comparison).items():
        yield f"{', '.join(lanes)}: {text}"


def _cell_notes(comparison: Comparison) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for side in comparison.sides:
        for point in side.points:
            for note in point.notes:
                lanes = found.setdefault(note, [])
                if side.name not in lanes:
                    lanes.append(side.name)
    return found
