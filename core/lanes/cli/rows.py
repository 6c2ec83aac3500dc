"""What instruments other than the probe found: a table for each, a line a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lanes.cli import output

if TYPE_CHECKING:
    from rich.table import Table

_MARKED = "bold red"
_COLUMNS = 7
"""Figures that have a column each; more of them share one."""


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """A table for each instrument of each lane that has rows."""
    for lane in document["lanes"]:
        for instrument in lane["instruments"]:
            if instrument.get("rows"):
                yield _table(lane["name"], instrument)


def _table(lane: str, instrument: dict[str, Any]) -> Table:
    from rich.text import Text

    rows = instrument["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["figures"]))
    reasons = any(row["reason"] for row in rows)
    if len(names) > _COLUMNS:
        made = output.table("what", "found", "why", "figures", title=f"{lane}: {instrument['name']}")
        for row in rows:
            said = ", ".join(f"{name} {_figure(value)}" for name, value in row["figures"].items())
            found = Text(row["status"], style=_MARKED if row["fault"] else "")
            made.add_row(row["name"], found, row["reason"] or "", said)
        return made
    made = output.table(
        "what",
        "found",
        *(f"{name}>" for name in names),
        *(["why"] if reasons else []),
        title=f"{lane}: {instrument['name']}",
    )
    for row in rows:
        figures = [_figure(row["figures"].get(name)) for name in names]
        found = Text(row["status"], style=_MARKED if row["fault"] else "")
        made.add_row(row["name"], found, *figures, *([row["reason"] or ""] if reasons else []))
    return made


def _figure(value: float | Mapping[str, Any] | None) -> str:
    from lanes.cli.figures import interval, number

    if value is None:
        return ""
    return interval(dict(value)) if isinstance(value, Mapping) else number(value)


def notes(document: dict[str, Any]) -> Iterator[str]:
    """What became of instruments that did not end well."""
    for lane in document["lanes"]:
        for instrument in lane["instruments"]:
            if instrument.get("status") not in (None, "done", "running"):
                reason = f": {instrument['reason']}" if instrument["reason"] else ""
                yield f"{lane['name']}, {instrument['name']} {instrument['status']}{reason}"
