"""`lanes run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lanes.cli import options, output


@click.command("run")
@click.option(
    "--engine", "engines", multiple=True, help="An engine, with its default recipe; may be repeated."
)
@click.option("--recipe", "recipes", multiple=True, help="A recipe, by name or file; may be repeated.")
@options.lane
@options.vantage
@options.plan
@output.as_json
def command(
    engines: tuple[str, ...],
    recipes: tuple[str, ...],
    model: str | None,
    settings: tuple[tuple[str, str], ...],
    arch: str | None,
    cluster: str | None,
    take_over: str | None,
    port: int | None,
    despite: tuple[str, ...],
    allowed: Mapping[str, str | None],
    retries: int,
    dry_run: bool,
    node: str | None,
    python: str | None,
    as_json: bool,
    **plan: Any,
) -> int:
    """Bring lanes up, measure each alike, take them down, and compare.

    Each lane is checked, staged, launched, measured and stopped in turn; one that fails or cannot run
    is a row with its reason. Every pass is kept as it ends: see `lanes history`.
    """
    from lanes import interrupts, measuring, paths, records, runs
    from lanes.cli import dryrun, figures
    from lanes.cli.progress import Screen
    from lanes.journal import Journal
    from lanes.results.store import Store

    bounds, places = options.bind(engines, recipes, model, settings, arch, cluster, real=not dry_run)
    made, chosen = options.what(**plan)
    vantage = options.vantage_of(node, python, cluster)
    if dry_run:
        return dryrun.show(bounds, places, despite, made, as_json, allowed, chosen)
    interrupts.install()
    if vantage is not None:
        vantage.check(place.http_host for place in places)
    measure = measuring.measure if vantage is None else vantage.measure
    for record, how in records.mend_all():
        click.echo(f"lanes: cleaned up after {record.id}: {how.sentence}", err=True)
    with Store(paths.history()) as store:
        with Screen() as screen:
            journal = Journal(store, screen, command="run")
            code = 130
            try:
                outcomes = runs.run(
                    bounds, places, made, journal, chosen, port, despite, take_over, allowed, retries, measure
                )
                code = runs.exit_code(outcomes)
            finally:
                journal.end(code)
        document = store.document(journal.run)
    if as_json:
        output.print_json(document)
    else:
        figures.show(document)
        click.echo(f"run {journal.run}: `lanes history show {journal.run}` shows it again", err=True)
    return code
