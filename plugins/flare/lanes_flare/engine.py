"""The hooks: what `lanes` asks of FLARE."""

from __future__ import annotations

from collections.abc import Sequence

import lanes
from lanes.errors import UsageError
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
    Staged,
    StageItem,
    StopPlan,
)

from lanes_flare import causes, checks, processes
from lanes_flare.options import FlareOptions

LANES_CONTRACT = 1


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    """Which version a package holds cannot be told from outside."""
    return EngineInfo(
        summary="FLARE: NVIDIA's inference engine in Rust for GB10 and GB202, by the command that you give it",
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
    """The image, where there is one. A lane whose command nobody has said ends here, with no guess."""
    if missing := processes.options_of(lane).missing:
        raise UsageError(
            f"{lane.name} cannot be started: the recipe does not set {' and '.join(missing)}",
            "set it under [options], from your package's documentation",
        )
    image = lane.recipe.image if lane.recipe else None
    return (Image(name="image", reference=image),) if image else ()


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    image = lane.recipe.image if lane.recipe else None
    return processes.launch(lane, placement, staged.paths.get("image", image) if image else None)


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    """What it logs while it loads is not known, so silence means nothing."""
    path = processes.options_of(lane).health_path
    healthy = (HttpRung(name="healthy", path=path),) if path else ()
    return Ladder(rungs=(*healthy, CanaryRung()), deadline_s=1800.0)


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    """Rank 0 first, so that no request is under way when the others leave it."""
    return StopPlan(
        order=tuple(sorted(process.rank for process in launch.processes)), signal="SIGTERM", patience_s=30.0
    )
