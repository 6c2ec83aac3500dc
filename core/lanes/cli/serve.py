"""`lanes serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lanes.cli import options, output
from lanes.errors import LanesError

if TYPE_CHECKING:
    from lanes.lifecycle import Outcome


@click.command("serve")
@click.option("--engine", help="The engine, with its default recipe.")
@click.option("--recipe", help="The recipe, by name or file.")
@options.lane
@output.as_json
def command(
    engine: str | None,
    recipe: str | None,
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
    as_json: bool,
) -> int:
    """Bring a lane up and leave it serving.

    Returns when the lane is ready, with its address on stdout. `lanes status`, `lanes logs`,
    `lanes bench` and `lanes stop` work on it from any terminal.
    """
    from lanes import interrupts, paths, records, runs
    from lanes.cli import dryrun
    from lanes.cli.progress import Screen
    from lanes.journal import Journal
    from lanes.lifecycle import Attempt
    from lanes.results.store import Store

    bounds, places = options.bind(
        [engine] if engine else [],
        [recipe] if recipe else [],
        model,
        settings,
        arch,
        cluster,
        real=not dry_run,
    )
    if dry_run:
        return dryrun.show(bounds, places, despite, None, as_json, allowed)
    interrupts.install()
    for record, how in records.mend_all():
        click.echo(f"lanes: cleaned up after {record.id}: {how.sentence}", err=True)
    with Store(paths.history()) as store, Screen() as screen:
        journal = Journal(store, screen, command="serve")
        attempt = Attempt(bounds[0], places[0], journal, port, allowed, retries)
        outcome: Outcome | None = runs.INTERRUPTED
        code = 130
        try:
            endpoint = attempt.up(despite, take_over)
            serving = attempt.detach()
            outcome, code = None, 0
        except LanesError as error:
            outcome = attempt.failed(error)
            code = runs.exit_code([outcome])
        finally:
            if outcome is not None:
                outcome = attempt.stop(outcome)
            journal.end(code)
    if outcome is not None:
        raise _error(outcome, code)
    url, name = (endpoint.url, endpoint.model) if endpoint else (None, None)
    if as_json:
        output.print_json(
            {"id": serving.id, "lane": serving.lane, "url": url, "model": name, "run": journal.run}
        )
    else:
        click.echo(f"{serving.id} serves {name} at {url}")
        click.echo(f"measure it: lanes bench {serving.id}   stop it: lanes stop {serving.id}", err=True)
    return 0


def _error(outcome: Outcome, code: int) -> LanesError:
    error = LanesError(outcome.reason, outcome.next_step)
    error.exit_code = code
    return error
