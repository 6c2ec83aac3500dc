"""The hooks: what `lanes` asks of SGLang."""

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
    Phase,
    Placement,
    Postmortem,
    Rehearsal,
    Staged,
    StageItem,
    StopPlan,
)

from lanes_sglang import causes, checks, installed, processes, rehearsal
from lanes_sglang.options import SglangOptions

LANES_CONTRACT = 1


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    """The version is that of a SGLang beside this plugin; one in an image is not known."""
    return EngineInfo(
        version=installed.version(),
        summary="SGLang: serves LLMs on NVIDIA GPUs, on one node or several",
        homepage="https://github.com/sgl-project/sglang",
        recipes="lanes_sglang.recipes",
        default_recipes={4: ("dsv41-flash-1017-4x-sglang",)},
    )


@lanes.hookimpl
def lanes_options() -> type[SglangOptions]:
    return SglangOptions


@lanes.hookimpl
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:
    return tuple(checks.check(lane, nodes))


@lanes.hookimpl
def lanes_stage(lane: Lane) -> Sequence[StageItem]:
    """The image; the weights are read where they are, and core adds what the recipe copies."""
    image = lane.recipe.image if lane.recipe else None
    return (Image(name="image", reference=image),) if image else ()


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    image = lane.recipe.image if lane.recipe else None
    return processes.launch(lane, placement, staged.paths.get("image", image) if image else None)


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    """Only rank 0 tells: the others answer /health from a server that stands for nothing.

    /health generates a token, and 503 means that SGLang still starts. Reading the weights from a NAS may
    take an hour and a half, so the deadline is long; a rank that dies is noticed at once.
    """
    return Ladder(
        rungs=(HttpRung(name="healthy", path="/health", loading=frozenset({503})), CanaryRung()),
        deadline_s=3 * 3600.0,
        phases=(
            Phase(name="loading the weights", pattern=r"Load weight begin\. avail mem="),
            Phase(name="loading the weights", pattern=r"checkpoint shards:\s+(?P<percent>\d+)%"),
            Phase(name="weights loaded", pattern=r"Load weight end\. elapsed="),
            Phase(name="capturing CUDA graphs", pattern=r"Capture .*CUDA graph begin\."),
            Phase(name="KV cache made", pattern=r"max_total_num_tokens="),
            Phase(name="ready", pattern=r"The server is fired up and ready to roll!"),
        ),
    )


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(lane, postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    """Rank 0 first: the others wait for its broadcast and end with it."""
    return StopPlan(
        order=tuple(sorted(process.rank for process in launch.processes)), signal="SIGTERM", patience_s=30.0
    )


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    return rehearsal.rehearsal(lane, launch)
