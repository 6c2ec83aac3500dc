"""`lanes history export` and `lanes history import`."""

from __future__ import annotations

from pathlib import Path

import click

from lanes.errors import UsageError
from lanes.results.flat import FORMATS


@click.command("export")
@click.argument("what", nargs=-1, metavar="[RUN|LANE|FILE]...")
@click.option("--since", metavar="D", help="All runs since then: `2h`, `7d`, or a date such as 2026-10-18.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="How to write it (default: by the file's ending, else csv).",
)
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to (default: stdout).",
)
def export(what: tuple[str, ...], since: str | None, form: str | None, file: Path | None) -> None:
    """Write figures as a table, a row a figure: CSV, JSON, Markdown or Parquet."""
    from lanes.cli.compare import gather
    from lanes.errors import LanesError
    from lanes.results import flat

    if not what and since is None:
        raise UsageError(
            "say what to export: runs, lanes, files, or --since 7d", "`lanes history` lists runs"
        )
    documents, only = gather(what, since)
    ending = file.suffix.lower().lstrip(".") if file else ""
    form = form or (ending if ending in FORMATS else "csv")
    rows = [row for row in flat.rows(documents) if not only or row["lane"] in only or row["run"] in only]
    if form == "parquet":
        if file is None:
            raise UsageError("Parquet is no text", "name a file with --output")
        flat.write_parquet(rows, file)
        return
    text = flat.text(rows, form)
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LanesError(f"{file} cannot be written: {error}", "name another file") from None


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lane", help="What to call the lane (default: as the model is called there).")
def take_in(files: tuple[Path, ...], lane: str | None) -> None:
    """Take results of others into the history: reports of llama-benchy, tool-eval-bench, `vllm bench serve` and
    aiperf, and documents of lanes.

    They keep whose they are. What a report does not tell, such as what the lane was made of, is not known
    to `lanes compare` either.
    """
    from lanes import paths
    from lanes.comparing import foreign
    from lanes.owners import Owner
    from lanes.results.store import Store

    documents = [document for file in files for document in foreign.read(file, lane)]
    with Store(paths.history()) as store:
        for document in documents:
            run = store.keep(document, Owner.me())
            names = ", ".join(one["name"] for one in document["lanes"])
            click.echo(f"run {run}: {names}")
