"""`lanes check`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lanes.cli import options, output


@click.command("check")
@click.argument("recipe")
@click.option("--arch", metavar="A", help="On nodes with this GPU: gb10, h200, sm_90, gfx942.")
@click.option("--node", metavar="H", help="On the machine that `ssh H` reaches.")
@click.option("--cluster", metavar="C", help="On this cluster, by name or file.")
@options.settings
@options.despite
@options.allow_script
@output.as_json
def command(
    recipe: str,
    arch: str | None,
    node: str | None,
    cluster: str | None,
    settings: tuple[tuple[str, str], ...],
    despite: tuple[str, ...],
    allowed: Mapping[str, str | None],
    as_json: bool,
) -> int:
    """Explain whether the lane of RECIPE can run, here or elsewhere, and how that is known.

    Nothing is downloaded and nothing is started. Ends with 3 when it cannot run, or cannot be measured.
    """
    from lanes import checks, describe, observations, paths, verdicts
    from lanes.cli import findings

    (bound,), (place,) = options.bind([], [recipe], None, settings, arch, cluster, node)
    found = checks.examine(bound.engine, bound.lane, place.nodes, allowed)
    if (asked := bound.lane.recipe) is not None:
        seen = observations.known(paths.history(), paths.observations())
        version = bound.engine.ask("lanes_engine").version
        name = bound.engine.name
        found = (*found, *observations.findings(seen, name, version, place.nodes, asked.name, asked.image))
    judged = verdicts.judge(found, despite)
    if as_json:
        output.print_json(
            {
                "schema": "lanes.check/1",
                "lane": bound.lane.name,
                "engine": bound.engine.name,
                "cluster": place.name,
                "nodes": [describe.plain(one) for one in place.nodes],
                "verdict": judged.verdict.value,
                "serving": judged.serving.value,
                "status": judged.status,
                "kinds": findings.by_kind(found),
                "findings": [describe.finding(one) for one in found],
                "overrides": [one for one in despite if any(f.question == one for f in found)],
            }
        )
    else:
        click.echo(
            f"{bound.lane.name} ({bound.engine.name}) on {findings.where(place)}: {findings.summary(judged)}"
        )
        for line in findings.lines(found):
            click.echo(f"  {line}")
    return 3 if judged.status else 0
