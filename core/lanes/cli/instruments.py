"""`lanes instruments`."""

from __future__ import annotations

from typing import Any

import click

from lanes.cli import output


@click.command("instruments")
@output.as_json
def command(as_json: bool) -> None:
    """List the ways to measure a lane, and what each lacks here.

    `lanes run` and `lanes bench` take them with --instrument, and their options with --with.
    """
    import attrs

    from lanes.instruments import PRESETS, known
    from lanes.plugins import Plugins

    every = known(Plugins())
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "summary": one.summary,
            "cost": one.cost,
            "lacks": one.needs(),
            "presets": [preset for preset, names in PRESETS.items() if one.name in names],
            "options": [field.name for field in attrs.fields(one.options)] if one.options else [],
        }
        for one in every.instruments.values()
    ]
    if as_json:
        output.print_json({"instruments": rows, "problems": [str(one) for one in every.problems]})
        return
    table = output.table("name", "what it finds out", "takes", "in presets", "options")
    for row in rows:
        what = f"{row['summary']}; here it lacks: {row['lacks']}" if row["lacks"] else row["summary"]
        presets, options = (", ".join(row[key]) for key in ("presets", "options"))
        table.add_row(row["name"], what, row["cost"], presets, options)
    output.console().print(table)
    for problem in every.problems:
        click.echo(f"broken: {problem}")
