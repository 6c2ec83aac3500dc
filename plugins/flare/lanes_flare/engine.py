"""The hooks: what `lanes` asks of FLARE."""

from __future__ import annotations

from collections.abc import Sequence

import lanes
from lanes.types import (
    CanaryRung,
    Cause,
    EngineInfo,
    Finding,
    HttpRung,
    Image,
    Ladder,
    Lane,
    Launch,
    Node,
    Placement,
    Postmortem,
    Rehearsal,
    Rung,
    Staged,
    StageItem,
    StopPlan,
)

from lanes_flare import causes, checks, processes
from lanes_flare.options import FlareOptions

LANES_CONTRACT = 1


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    """Its version is not known: the package that a recipe's command starts has it."""
    return EngineInfo(
        summary="FLARE: NVIDIA's engine in Rust for compute capability 12.x, started by a recipe's own command",
        recipes="lanes_flare.recipes",
        default_recipes={4: ("dsv41-flash-1017-4x-flare",)},
    )


@lanes.hookimpl
def lanes_options() -> type[FlareOptions]:
    return FlareOptions


@lanes.hookimpl
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:
    return tuple(checks.check(lane, nodes))


@lanes.hookimpl
def lanes_stage(lane: Lane) -> Sequence[StageItem]:
    """The image; core adds what the recipe copies, and its scripts."""
    image = lane.recipe.image if lane.recipe else None
    return (Image(name="image", reference=image),) if image else ()


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    image = lane.recipe.image if lane.recipe else None
    return processes.launch(lane, placement, staged.paths.get("image", image) if image else None)


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    """The recipe's health path, and a first answer. How long FLARE loads a large model is not known; a
    recipe's patience_s says it better than this deadline."""
    path = processes.options_of(lane).health
    healthy: tuple[Rung, ...] = (HttpRung(name="healthy", path=path),) if path else ()
    return Ladder(rungs=(*healthy, CanaryRung()), deadline_s=1800.0)


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    """The head first, so that no request is under way when the others leave."""
    return StopPlan(
        order=tuple(sorted(process.rank for process in launch.processes)), signal="SIGTERM", patience_s=30.0
    )


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """What FLARE may have of this is published nowhere."""
    return Rehearsal(
        flags=f"{processes.UNPUBLISHED}, nor whether it reads flags without starting",
        kernels="whether FLARE has a small check of its kernels is published nowhere",
        dummy="whether FLARE has dummy weights is published nowhere: `lanes serve` tries it with its own",
    )
