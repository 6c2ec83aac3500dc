"""`lanes report`."""

from __future__ import annotations

from pathlib import Path

import click

from lanes.cli import output


@click.command("report")
@click.option(
    "--bug", "run", metavar="RUN", help="Bundle what failed in this run for the engine's maintainers."
)
@click.option("--lane", metavar="NAME", help="Which lane of the run (default: the one that failed).")
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path),
    help="Write to this folder, or archive when it ends in .tar.gz (default: lanes-bug-RUN.tar.gz here).",
)
@output.as_json
def command(run: str | None, lane: str | None, target: Path | None, as_json: bool) -> None:
    """Bundle what failed in a run for the engine's maintainers.

    --bug RUN: versions, image digests, the command line, the prompt, logs and a page in Markdown, with
    secrets taken out.
    """
    from lanes import paths
    from lanes.bugs import bundle
    from lanes.errors import UsageError
    from lanes.results.store import Store

    if run is None:
        raise UsageError("say what to report: --bug RUN", "`lanes history` lists the runs")
    with Store(paths.history()) as store:
        document = store.document(run)
    index = bundle.choose(document, lane)
    made = bundle.write(document, index, target or Path(f"lanes-bug-{document['run']}.tar.gz"))
    if as_json:
        output.print_json({"path": str(made.path), "files": list(made.files), "hidden": made.hidden})
        return
    click.echo(str(made.path))
    click.echo(
        f"{len(made.files)} files, {made.hidden} secrets hidden: read README.md in it before you send it",
        err=True,
    )
