"""`lanes report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import output
from lanes.cli.options import Quantity

if TYPE_CHECKING:
    from lanes.reporting.model import Report

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}


@click.command("report")
@click.argument("what", nargs=-1, metavar="[RUN|LANE|FILE]...")
@click.option("--since", metavar="D", help="All runs since then: `2h`, `7d`, or a date such as 2026-10-18.")
@click.option(
    "--by",
    metavar="FACTOR",
    help="Put launches together by a factor's value (ep_size), whatever else differs.",
)
@click.option(
    "--margin",
    type=Quantity("SHARE", "lanes.bench.units", "share"),
    default="5%",
    show_default=True,
    help="The difference that counts.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("md", "html")),
    help="How to write it (default: by the file's ending, else md).",
)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    help="Write to this file (default: stdout). With --bug: to this folder, or archive when it ends in .tar.gz "
    "(default: lanes-bug-RUN.tar.gz here).",
)
@click.option("--force", is_flag=True, help="Write over a file that exists.")
@click.option(
    "--bug", "run", metavar="RUN", help="Bundle what failed in this run for the engine's maintainers."
)
@click.option(
    "--lane", metavar="NAME", help="With --bug: which lane of the run (default: the one that failed)."
)
@output.as_json
def command(
    what: tuple[str, ...],
    since: str | None,
    by: str | None,
    margin: float,
    form: str | None,
    target: Path | None,
    force: bool,
    run: str | None,
    lane: str | None,
    as_json: bool,
) -> None:
    """Write a report of lanes, or bundle what failed for the engine's maintainers.

    The report is Markdown, or one HTML file that needs nothing else. It takes what `lanes compare` takes, and
    has the verdicts, all figures with their intervals, plots, what instruments found, what differs between the
    lanes, and the logs of those that failed; secrets are taken out.

    --bug RUN bundles what failed in a run for the engine's maintainers instead: versions, image digests, the
    command line, the prompt, logs and a page in Markdown.
    """
    from lanes.errors import UsageError

    if run is not None:
        if what or since or by or form or force:
            raise UsageError(
                "--bug RUN is a report of its own, of one run", "leave the others out, or leave --bug out"
            )
        _bug(run, lane, target, as_json)
        return
    if lane is not None:
        raise UsageError("--lane belongs to --bug", "name lanes without it: `lanes report LANE`")
    if not what and since is None:
        raise UsageError(
            "say what to report: runs, lanes, files, --since 7d, or --bug RUN",
            "`lanes history` lists the runs",
        )
    file = target if target != Path("-") else None
    _report(_page(what, since, by, margin), form, file, force, as_json)


def _page(what: tuple[str, ...], since: str | None, by: str | None, margin: float) -> Report:
    from lanes.bugs.secrets import Redactor, known_of_all
    from lanes.cli import compare
    from lanes.comparing import grouping
    from lanes.comparing.compare import chosen
    from lanes.reporting.build import build
    from lanes.reporting.hidden import without_secrets

    documents, only = compare.gather(what, since)
    comparison = compare.of(documents, only, by, margin, None)
    groups = chosen(grouping.launches(documents), only, by)
    shown = [launch.lane for group in groups for launch in group.launches]
    return without_secrets(build(documents, comparison, groups), Redactor(known_of_all(shown)))


def _report(report: Report, form: str | None, file: Path | None, force: bool, as_json: bool) -> None:
    from lanes.reporting import markdown, writing

    if as_json and file is None:
        output.print_json({"schema": "lanes.report/1", **_plain(report)})
        return
    if file is not None and file.exists() and not force:
        raise writing.exists(file)
    if (form or _ENDINGS.get(file.suffix.lower() if file else "", "md")) == "html":
        import gc

        # A library of plots and a page: nothing of them is garbage before the program ends.
        gc.disable()
        try:
            from lanes.reporting import html

            text = html.page(report)
        finally:
            gc.enable()
    else:
        text = markdown.page(report)
    if file is None:
        click.echo(text, nl=False)
        return
    writing.write(text, file, force)
    if as_json:
        output.print_json({"path": str(file)})
    else:
        click.echo(str(file))


def _plain(report: Report) -> dict[str, Any]:
    import cattrs.preconf.json

    data: dict[str, Any] = cattrs.preconf.json.make_converter().unstructure(report)
    return data


def _bug(run: str, lane: str | None, target: Path | None, as_json: bool) -> None:
    from lanes import paths
    from lanes.bugs import bundle
    from lanes.results.store import Store

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
