"""The hooks: what `lanes` asks of vLLM."""

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

from lanes_vllm import causes, checks, installed, processes, rehearsal
from lanes_vllm.options import VllmOptions

LANES_CONTRACT = 1


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    """The version is that of a vLLM beside this plugin; one in an image is not known."""
    return EngineInfo(
        version=installed.version(),
        summary="vLLM: serves LLMs on GPUs, on one node or several",
        homepage="https://github.com/vllm-project/vllm",
        recipes="lanes_vllm.recipes",
    )


@lanes.hookimpl
def lanes_options() -> type[VllmOptions]:
    return VllmOptions


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
    """vLLM opens its port when the engine is up: refused means that it loads, and 503 that it is dead."""
    return Ladder(
        rungs=(HttpRung(name="healthy", path="/health", loading=frozenset()), CanaryRung()),
        deadline_s=3 * 3600.0,
        phases=(
            Phase(name="loading the weights", pattern=r"Starting to load model"),
            Phase(name="loading the weights", pattern=r"checkpoint shards:\s+(?P<percent>\d+)%"),
            Phase(name="weights loaded", pattern=r"Model loading took"),
            Phase(name="capturing CUDA graphs", pattern=r"Capturing CUDA graphs.*?:\s+(?P<percent>\d+)%"),
            Phase(name="CUDA graphs captured", pattern=r"Graph capturing finished"),
            Phase(name="ready", pattern=r"Application startup complete\."),
        ),
    )


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    """Rank 0 first: it serves, and tells the others."""
    return StopPlan(
        order=tuple(sorted(process.rank for process in launch.processes)), signal="SIGTERM", patience_s=30.0
    )


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    return rehearsal.rehearsal(lane, launch)
