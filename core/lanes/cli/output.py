"""What commands share in showing things: JSON for programs, tables for people."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def print_json(value: Any) -> None:
    # Escapes are understood whatever the terminal's encoding is; half a character of a log is no UTF-8.
    click.echo(json.dumps(value, indent=2))


def console() -> Console:
    """The console for results. Piped output is not cut to a width; text of others (recipes, logs) is
    shown as it is, never taken for markup."""
    from rich.console import Console

    piped = not Console().is_terminal
    return Console(
        width=160 if piped else None,
        color_system=None if piped else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )


def table(*columns: str, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        name = column.removesuffix(">")
        made.add_column(name, justify="right" if column.endswith(">") else "left", overflow="fold")
    return made


def ago(at: float) -> str:
    """How long ago, in the largest unit that says enough."""
    seconds = max(0.0, time.time() - at)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
