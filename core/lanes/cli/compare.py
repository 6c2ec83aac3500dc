"""`lanes compare`."""

from __future__ import annotations

from typing import Any

import click

from lanes.cli import output


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@output.as_json
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Show the lanes of several runs in one table: figures with intervals and n, and a row with its reason
    for every lane that could not run, could not be measured, or failed.

    It names no winner: passes of one launch understate how much launches differ.
    """
    from lanes import paths
    from lanes.cli import figures
    from lanes.results.store import Store

    with Store(paths.history()) as store:
        documents = [store.document(run) for run in runs]
    lanes = _named(documents)
    if as_json:
        output.print_json({"schema": "lanes.compare/1", "lanes": lanes})
    else:
        figures.show({"lanes": lanes})


def _named(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All lanes, each with its run; lanes of one name are told apart by the run in their name."""
    lanes = [{**lane, "run": document["run"]} for document in documents for lane in document["lanes"]]
    names = [lane["name"] for lane in lanes]
    return [
        {**lane, "name": f"{lane['name']} ({lane['run']})"} if names.count(lane["name"]) > 1 else lane
        for lane in lanes
    ]
