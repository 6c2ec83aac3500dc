"""`lanes bench`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import options, output

if TYPE_CHECKING:
    from lanes.away.here import Client
    from lanes.instruments.base import Subject
    from lanes.types import Endpoint


@click.command("bench")
@click.argument("lane", required=False)
@click.option("--url", help="The server's address, with or without /v1.")
@click.option("--model", help="The model's name there (default: the only one it lists).")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the API key.")
@options.vantage
@click.option("--cluster", metavar="C", help="With --from: the cluster, by name or file, that NODE is of.")
@click.option("--away", is_flag=True, hidden=True, help="Be the client of a controller on another host.")
@options.plan
@output.as_json
def command(
    lane: str | None,
    url: str | None,
    model: str | None,
    api_key_env: str | None,
    node: str | None,
    python: str | None,
    cluster: str | None,
    away: bool,
    as_json: bool,
    **plan: Any,
) -> int:
    """Measure any OpenAI-compatible server (--url), or a LANE that `lanes serve` left serving.

    Without either: the only lane that runs.
    """
    if away:
        from lanes.away import there

        return there.serve()
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
    if cluster is not None and node is None:
        raise UsageError("--cluster goes with --from", "say from which of its nodes to measure")
    made, chosen = options.what(**plan)
    vantage = options.vantage_of(node, python, cluster)
    interrupts.install()
    with contextlib.ExitStack() as held:
        client = held.enter_context(vantage.client()) if vantage else None
        subject, endpoint = _target(lane, url, model, api_key_env, client)
        store = held.enter_context(Store(paths.history()))
        with Screen() as screen:
            journal = Journal(store, screen, command="bench")
            index = journal.lane(name=subject.name, engine=subject.engine, cluster="", url=endpoint.url)
            journal.record("phase", lane=index, phase="measuring")
            code = 130
            status, reason, next_step = "interrupted", "interrupted by the user", None
            try:
                plan_of_run = attrs.evolve(made, comparison=journal.run)
                measure = client.measure if client else measuring.measure
                found = measure(chosen, endpoint, plan_of_run, journal, index, subject)
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
    lane: str | None, url: str | None, model: str | None, api_key_env: str | None, client: Client | None
) -> tuple[Subject, Endpoint]:
    """What to measure, and where it is, as the `client` sees it."""
    from lanes.instruments.base import Subject

    if url is not None and client is not None:
        endpoint = client.discover(url, model, api_key_env)
        return Subject(name=endpoint.model), endpoint
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
    if client is not None:
        client.reaches(record.endpoint.url)
    subject = Subject(name=record.lane, engine=record.engine, alive=lambda: health.death(record.folder))
    return subject, record.endpoint
