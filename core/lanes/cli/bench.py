"""`lanes bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lanes.cli import options, output

if TYPE_CHECKING:
    from lanes.instruments.base import Subject
    from lanes.types import Endpoint


@click.command("bench")
@click.argument("lane", required=False)
@click.option("--url", help="The server's address, with or without /v1.")
@click.option("--model", help="The model's name there (default: the only one it lists).")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the API key.")
@options.plan
@output.as_json
def command(
    lane: str | None, url: str | None, model: str | None, api_key_env: str | None, as_json: bool, **plan: Any
) -> int:
    """Measure any OpenAI-compatible server (--url), or a LANE that `lanes serve` left serving.

    Without either: the only lane that runs.
    """
    import attrs

    from lanes import interrupts, measuring, paths
    from lanes.cli import figures
    from lanes.cli.progress import Screen
    from lanes.errors import UsageError
    from lanes.journal import Journal
    from lanes.lifecycle import Outcome
    from lanes.results.store import Store
    from lanes.runs import UNBELIEVED, exit_code

    if lane is not None and url is not None:
        raise UsageError("name a lane or a --url, not both")
    made, chosen = options.what(**plan)
    interrupts.install()
    subject, endpoint = _target(lane, url, model, api_key_env)
    with Store(paths.history()) as store:
        with Screen() as screen:
            journal = Journal(store, screen, command="bench")
            index = journal.lane(name=subject.name, engine=subject.engine, cluster="", url=endpoint.url)
            journal.record("phase", lane=index, phase="measuring")
            code = 130
            status, reason, next_step = "interrupted", "interrupted by the user", None
            try:
                plan_of_run = attrs.evolve(made, comparison=journal.run)
                found = measuring.measure(chosen, endpoint, plan_of_run, journal, index, subject)
                status, reason, next_step = found.status, found.reason, found.next_step
                outcome = Outcome(status=status, lacking=found.failed)
                code = exit_code([outcome])
                if status not in ("measured", "unrunnable") and next_step is None:
                    next_step = UNBELIEVED if found.served else "look at the server's own log"
            finally:
                journal.record("lane-end", lane=index, status=status, reason=reason, next_step=next_step)
                journal.end(code)
        document = store.document(journal.run)
    if as_json:
        output.print_json(document)
    else:
        figures.show(document)
        click.echo(f"run {journal.run}: `lanes history show {journal.run}` shows it again", err=True)
    return code


def _target(
    lane: str | None, url: str | None, model: str | None, api_key_env: str | None
) -> tuple[Subject, Endpoint]:
    """What to measure, and where it is."""
    from lanes.instruments.base import Subject

    if url is not None:
        from lanes.bench.discover import discover

        endpoint = discover(url, model, api_key_env)
        return Subject(name=endpoint.model), endpoint
    from lanes import health, records
    from lanes.errors import UsageError

    record = records.choose(lane)
    how = records.standing(record)
    if record.endpoint is None or not how.runs:
        raise UsageError(f"{record.id} cannot be measured: {how.sentence}", "`lanes stop` cleans up")
    subject = Subject(name=record.lane, engine=record.engine, alive=lambda: health.death(record.folder))
    return subject, record.endpoint
