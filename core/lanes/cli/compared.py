"""How a comparison is shown: lanes in a row, then cell by cell, then what may and what may not be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lanes.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from lanes.comparing.comparison import Comparison

_BEST = " *"


def show(comparison: Comparison) -> None:
    """Print it on stdout."""
    from lanes.comparing import saying

    console = output.console()
    labels = saying.labels(comparison)
    console.print(_lanes(comparison, labels))
    if any(side.points for side in comparison.sides):
        console.print(_cells(comparison, labels))
    for name, label in labels.items():
        if name != label:
            console.print(f"{label}: {name}", soft_wrap=True)
    for title, lines in (
        ("How lanes ended", list(saying.ends(comparison))),
        ("Verdicts", list(saying.verdicts(comparison))),
        ("What differs", list(saying.differences(comparison))),
        ("Which lane for what", list(saying.choices(comparison))),
        ("What does not fit", [flag.sentence for flag in comparison.flags]),
        ("Notes", list(saying.notes(comparison))),
    ):
        if lines:
            console.print(f"{title}:", style="bold")
            for line in lines:
                console.print(f"  - {line}", soft_wrap=True)


def _lanes(comparison: Comparison, labels: Mapping[str, str]) -> Table:
    """A row a lane."""
    from lanes.comparing import saying
    from lanes.comparing.values import number, text

    told = list(dict.fromkeys(name for side in comparison.sides for name in side.lane_metrics))
    made = output.table(
        "lane",
        "launches>",
        *(f"{column.title}>" for column in comparison.columns),
        *(f"{name.replace('_', ' ')}>" for name in told),
        "status",
    )
    made.columns[0].no_wrap = max(map(len, labels.values())) <= saying.LONG
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
            saying.status(side),
        )
    return made


def _cells(comparison: Comparison, labels: Mapping[str, str]) -> Table:
    """A row for each cell and lane, with the figures that are judged or shown in `lanes run`."""
    from lanes.comparing import saying
    from lanes.comparing.values import count, text

    metrics = saying.metrics(comparison)
    made = output.table("cell", "by", "lane", *(f"{metric.title}>" for metric in metrics), "n>", "status")
    made.columns[2].no_wrap = max(map(len, labels.values())) <= saying.LONG
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
