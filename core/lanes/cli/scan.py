"""`lanes scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lanes.cli import output

if TYPE_CHECKING:
    from lanes.hardware.library import Library, Scan
    from lanes.hardware.verdict import Judgement

_SIGNS = {"runnable": "yes", "degraded": "partly", "unknown": "unknown", "unrunnable": "no"}
MAX_NAMED = 5
"""Libraries that are named for one and the same reason."""


@click.command("scan")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--arch", help="Judge for this GPU: sm_121, 12.1, gb10, dgx-spark, h200, gfx942 ...")
@click.option(
    "--decides",
    multiple=True,
    metavar="GLOB",
    help="Only libraries that match decide, e.g. '*common_ops*'; may be given several times.",
)
@output.as_json
@click.pass_context
def command(
    ctx: click.Context, paths: tuple[str, ...], arch: str | None, decides: tuple[str, ...], as_json: bool
) -> None:
    """Show which GPU code files hold: shared objects, wheels, folders, image tarballs; docker:REF is an
    image in the Docker engine.

    Only headers are read. With --arch, says whether that code runs there, by the rules of NVIDIA
    and AMD, and which library decides; ends with 3 when it cannot run.
    """
    from lanes.hardware.scan import scan
    from lanes.hardware.targets import parse_target
    from lanes.hardware.verdict import verdict

    if decides and not arch:
        raise click.UsageError("--decides says which libraries a verdict hangs on: it needs --arch")
    target = parse_target(arch) if arch else None
    found = scan(paths)
    judged = verdict(found, target, decides or None) if target else None
    if as_json:
        output.print_json(_document(found, judged))
    else:
        _show(found, judged)
    if judged and judged.verdict.value == "unrunnable":
        ctx.exit(3)


def _document(found: Scan, judged: Judgement | None) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": "lanes.scan/1", **found.as_dict()}
    return document | (judged.as_dict() if judged else {})


def _show(found: Scan, judged: Judgement | None) -> None:
    from rich.text import Text

    answers = {id(one.library): one for one in judged.libraries} if judged else {}
    table = output.table(
        "library", "host", "machine code", "PTX", *([f"on {judged.target.label}"] if judged else [])
    )
    shown = [library for library in found.libraries if library.codes]
    for library in shown:
        # As Text: a file may be named like rich's markup.
        row: list[str | Text] = [Text(library.name), library.machine or "", *map(Text, _columns(library))]
        if judged:
            one = answers[id(library)]
            row.append(("" if one.decides else "(informs) ") + _SIGNS[one.answer.verdict.value])
        table.add_row(*row)
    if shown:
        output.console().print(table)
    click.echo(f"{len(shown)} with GPU code, {len(found.libraries) - len(shown)} without")
    if shown:
        click.echo("all together: " + " ".join(code.name for code, _ in found.codes if not code.relocatable))
    for finding in [problem.finding() for problem in found.problems]:
        click.echo(f"problem: {finding.reason}")
    if judged:
        _show_verdict(judged)


def _show_verdict(judged: Judgement) -> None:
    """Why, library by library, and the verdict."""
    reasons: dict[str, list[str]] = {}
    for one in judged.libraries:
        if one.library.codes:
            line = f"{_SIGNS[one.answer.verdict.value]}, {one.answer.reason}"
            reasons.setdefault(line, []).append(one.library.name)
    for line, names in reasons.items():
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        click.echo(f"{', '.join(names[:MAX_NAMED])}{more}: {line}")
    for finding in judged.findings:
        click.echo(f"{finding.question}: {finding.verdict.value.upper()}: {finding.reason}")
        if finding.next_step:
            click.echo(f"    {finding.next_step}")


def _columns(library: Library) -> tuple[str, str]:
    """Machine code and PTX; code that only a linker reads is named in brackets."""
    ready: list[str] = []
    text: list[str] = []
    for code, _ in library.codes:
        column = text if code.kind.value in ("ptx", "lto") else ready
        if code.relocatable and code.kind.value == "sass":
            continue  # the linked code beside it is what runs
        column.append(code.name)
    return " ".join(ready), " ".join(text)
