"""`lanes engines`."""

from __future__ import annotations

import click

from lanes.cli import output


@click.command("engines")
@output.as_json
def command(as_json: bool) -> None:
    """List the engines and extensions that are installed; a broken one with what is wrong."""
    from lanes.errors import PluginError
    from lanes.plugins import ENGINES, Plugins

    plugins = Plugins()
    rows = []
    for plugin in plugins.all:
        row = {
            "name": plugin.name,
            "kind": "engine" if plugin.group == ENGINES else "extension",
            "distribution": plugin.distribution,
            "version": None,
            "summary": "",
            "problem": plugin.problem,
        }
        if plugin.group == ENGINES and plugin.problem is None:
            try:
                info = plugins.engine(plugin.name).ask("lanes_engine")
                row.update(version=info.version, summary=info.summary)
            except PluginError as error:
                row["problem"] = error.message
        rows.append(row)
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        click.echo("No engine is installed. `pip install lanes-llamacpp` brings llama.cpp.")
        return
    table = output.table("name", "kind", "from", "version", "what")
    for row in rows:
        what = f"broken: {row['problem']}" if row["problem"] else str(row["summary"])
        table.add_row(
            str(row["name"]), str(row["kind"]), str(row["distribution"]), str(row["version"] or ""), what
        )
    output.console().print(table)
