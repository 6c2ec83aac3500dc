"""`lanes caps`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import output

if TYPE_CHECKING:
    from lanes.capabilities import Capability


@click.command("caps")
@click.option("--arch", "archs", multiple=True, metavar="A", help="Only this architecture; may be repeated.")
@click.option("--engine", "engines", multiple=True, metavar="E", help="Only this engine; may be repeated.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what this history saw of lanes, for another site.",
)
@click.option("--by", help="With --export: who saw it (default: this machine's name).")
@click.option(
    "--import",
    "taken",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take in what another site saw: it counts as observed, with whose it is.",
)
@output.as_json
def command(
    archs: tuple[str, ...],
    engines: tuple[str, ...],
    markdown: bool,
    export: Path | None,
    by: str | None,
    taken: Path | None,
    as_json: bool,
) -> None:
    """Show which engine runs on which GPU architecture, why not, and how that is known.

    Needs no GPU: each engine is asked about hardware that need not be here. `lanes check RECIPE --arch A`
    explains one lane; what only a recipe knows (sizes, options) is not asked here. A lane that was measured, here
    or at a site whose file was imported, is an observation of its engine's version on that GPU.
    """
    from lanes import capabilities, observations, paths
    from lanes.plugins import Plugins

    if taken is not None:
        count = observations.take_in(taken, paths.observations())
        click.echo(f"{count} observations taken in from {taken}", err=True)
        return
    seen = observations.known(paths.history(), paths.observations())
    if export is not None:
        import socket

        observations.write(export, seen, by or socket.gethostname())
        click.echo(f"{len(seen)} observations written to {export}", err=True)
        return
    plugins = Plugins()
    names = engines or tuple(p.name for p in plugins.engines if p.problem is None)
    found = list(capabilities.report(plugins, names, archs or capabilities.architectures(), seen))
    if as_json:
        output.print_json({"schema": "lanes.caps/1", "capabilities": [_data(one) for one in found]})
    elif markdown:
        click.echo("\n".join(_markdown(found)))
    else:
        _show(found)


def _data(one: Capability) -> dict[str, Any]:
    from lanes import describe

    return {
        "engine": one.engine,
        "arch": one.arch,
        "hardware": one.hardware.value,
        "serving": one.serving.value,
        "findings": [describe.finding(finding) for finding in one.findings],
    }


def _matrix(found: Sequence[Capability]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: an architecture a row, an engine a column."""
    engines = list(dict.fromkeys(one.engine for one in found))
    cells = {(one.arch, one.engine): one.word for one in found}
    archs = list(dict.fromkeys(one.arch for one in found))
    return ["GPU", *engines], [
        [_titled(arch), *(cells[arch, engine] for engine in engines)] for arch in archs
    ]


def _titled(arch: str) -> str:
    """`GB10 (sm_121)`."""
    from lanes.hardware.targets import parse_target

    target = parse_target(arch)
    return f"{arch} ({target.arch})" if target.arch != arch else arch


def _reasons(found: Sequence[Capability]) -> Iterator[tuple[str, list[str], str]]:
    """Per engine the reasons, each with the architectures that it holds for: (engine, archs, text)."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for one in found:
        for finding in one.findings:
            text = f"{finding.question}: {finding.verdict.value} ({finding.evidence.value}): {finding.reason}"
            text += f" [{finding.source}]"
            if finding.recheck_when and finding.verdict.value != "runnable":
                text += f"; look again when {finding.recheck_when}"
            # What is said of each GPU alike is said once.
            text = text.replace(one.arch, "this GPU")
            grouped.setdefault((one.engine, text), []).append(one.arch)
    for (engine, text), archs in grouped.items():
        yield engine, archs, text


def _show(found: Sequence[Capability]) -> None:
    heads, rows = _matrix(found)
    table = output.table(*heads)
    for row in rows:
        table.add_row(*row)
    console = output.console()
    console.print(table)
    for engine, archs, text in _reasons(found):
        console.print(
            f"{engine}, {_several(archs, found)}: {text}", markup=False, highlight=False, style="dim"
        )


def _markdown(found: Sequence[Capability]) -> Iterator[str]:
    heads, rows = _matrix(found)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    engine = None
    for name, archs, text in _reasons(found):
        if name != engine:
            engine = name
            yield f"\n## {engine}\n"
        yield f"- {_several(archs, found)}: {text}"


def _several(archs: Sequence[str], found: Sequence[Capability]) -> str:
    everywhere = len(archs) == len({one.arch for one in found})
    return "everywhere" if everywhere and len(archs) > 1 else ", ".join(archs)
