"""`lanes status`."""

from __future__ import annotations

import click

from lanes.cli import output


@click.command("status")
@click.option("--all", "everything", is_flag=True, help="Show ended lanes too.")
@output.as_json
def command(everything: bool, as_json: bool) -> None:
    """Show which lanes run, and what became of those that were killed.

    It only looks; `lanes stop` cleans up.
    """
    from lanes import records

    rows = [(record, records.standing(record)) for record in records.every()]
    if not everything:
        rows = [(record, how) for record, how in rows if how.state != "ended"]
    if as_json:
        output.print_json(
            [
                {
                    "id": record.id,
                    "lane": record.lane,
                    "engine": record.engine,
                    "run": record.run,
                    "state": how.state,
                    "sentence": how.sentence,
                    "url": record.endpoint.url if record.endpoint else None,
                    "model": record.endpoint.model if record.endpoint else None,
                    "started_at": record.started_at,
                    "folder": str(record.folder),
                }
                for record, how in rows
            ]
        )
        return
    if not rows:
        click.echo("No lane is running.")
        return
    table = output.table("lane", "engine", "state", "started", "endpoint", "what")
    for record, how in rows:
        url = record.endpoint.url if record.endpoint and how.runs else ""
        table.add_row(record.id, record.engine, how.state, output.ago(record.started_at), url, how.sentence)
    output.console().print(table)
    if any(how.needs_mending for _, how in rows):
        click.echo("`lanes stop` cleans up; every pass that had ended is in `lanes history`.")
