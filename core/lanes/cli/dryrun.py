"""What `--dry-run` shows: the findings, what would be staged, every process, and the plan."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from lanes import describe, lifecycle
from lanes.cli import findings, output
from lanes.nodes import Place
from lanes.settings import NOTHING, Allowed
from lanes.types import Build, Copy, HostScript

if TYPE_CHECKING:
    from lanes.bench.plan import Plan
    from lanes.instruments import Chosen


def show(
    bounds: Sequence[lifecycle.Bound],
    places: Sequence[Place],
    despite: Collection[str],
    plan: Plan | None,
    as_json: bool,
    allowed: Allowed = NOTHING,
    chosen: Sequence[Chosen] = (),
) -> int:
    """Print the preview of each lane; return 3 when one cannot run, else 0."""
    previews = [
        (b, lifecycle.preview(b, place, despite, allowed)) for b, place in zip(bounds, places, strict=True)
    ]
    if as_json:
        output.print_json([_data(bound, preview) for bound, preview in previews])
    else:
        for (bound, preview), place in zip(previews, places, strict=True):
            click.echo(
                f"{bound.lane.name} ({bound.engine.plugin.title}) on {findings.where(place)}: "
                f"{findings.summary(preview.judgement)}"
            )
            _print(preview)
        if plan is not None:
            cells = "; ".join(str(c) for c in plan.cells)
            passes = f"{plan.passes} passes"
            if plan.until is not None:
                passes = f"passes until intervals are within {plan.until:.3g} of the median"
            for one in chosen:
                instrument = one.instrument
                click.echo(f"measure {instrument.name}: {instrument.summary} ({instrument.cost})")
                if lacking := instrument.needs():
                    click.echo(f"  it would fail: {lacking}")
            if any(one.instrument.name == "probe" for one in chosen):
                click.echo(f"  {cells}; {plan.warmups} warm-ups and {passes} each")
    return 3 if any(preview.judgement.status for _, preview in previews) else 0


def _data(bound: lifecycle.Bound, preview: lifecycle.Preview) -> dict[str, Any]:
    return {
        "lane": bound.lane.name,
        "engine": bound.engine.name,
        "recipe": describe.recipe(bound.lane),
        "verdict": preview.judgement.verdict.value,
        "serving": preview.judgement.serving.value,
        "findings": [describe.finding(f) for f in preview.findings],
        "stage": [
            {"kind": type(i).__name__, **describe.plain(i)}
            | ({"text": preview.scripts[i.name]} if isinstance(i, HostScript) else {})
            for i in preview.items
        ],
        "launch": describe.launch(preview.launch) if preview.launch else None,
        "limited": list(preview.limited),
        "problem": preview.problem,
    }


def _print(preview: lifecycle.Preview) -> None:
    for line in findings.lines(preview.findings):
        click.echo(f"  {line}")
    for item in preview.items:
        if isinstance(item, HostScript):
            click.echo(f"  script {item.name} ({item.reason}), on each node:")
            for line in preview.scripts[item.name].splitlines():
                click.echo(f"    | {line}")
            continue
        size = getattr(item, "size_bytes", None)
        click.echo(
            f"  stage {type(item).__name__.lower()} {item.name}"
            + (f" from {item.source} to {item.target} on each node" if isinstance(item, Copy) else "")
            + (
                f" {item.tag} from {' and '.join((item.context, *item.patches))}"
                if isinstance(item, Build)
                else ""
            )
            + (f", {size / 1e6:,.0f} MB" if size else "")
        )
    if preview.launch is None:
        click.echo(f"  launch: cannot be told: {preview.problem}")
        return
    for process in preview.launch.processes:
        env = "".join(f"{k}={shlex.quote(v)} " for k, v in describe.hide(process.env).items())
        click.echo(f"  rank {process.rank}: {env}{shlex.join(process.argv)}")
    if len(preview.launch.processes) > 1:
        ranks = ", ".join(str(process.rank) for process in preview.launch.in_order)
        click.echo(f"  started in this order: ranks {ranks}")
    for change in preview.limited:
        click.echo(f"  the cluster's file changes {change}")
    if preview.launch.endpoint:
        click.echo(f"  endpoint: {preview.launch.endpoint.url}, model {preview.launch.endpoint.model}")
