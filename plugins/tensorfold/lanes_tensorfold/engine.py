"""The hooks: what `lanes` asks of TensorFold."""

from __future__ import annotations

import importlib.metadata
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
    LogRung,
    Node,
    Phase,
    Placement,
    Postmortem,
    Rehearsal,
    Rung,
    Staged,
    StageItem,
    StopPlan,
)

from lanes_tensorfold import causes, checks, processes
from lanes_tensorfold.models import is_deepseek_v41
from lanes_tensorfold.options import TensorFoldOptions

LANES_CONTRACT = 1

_IMAGE_SIZES = {"dsv41-tf-1017": 24_500_000_000}
"""What the report says of the image that it built."""


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    """The version is that of a TensorFold beside this plugin; one in an image is not known."""
    return EngineInfo(
        version=_installed(),
        summary="TensorFold: serves quantized LLMs on one NVIDIA GPU, or on two machines with one each",
        homepage="https://github.com/ashhart/TensorFold",
        recipes="lanes_tensorfold.recipes",
        default_recipes={2: ("dsv41-flash-1017-2x-tensorfold",)},
    )


def _installed() -> str | None:
    try:
        return importlib.metadata.version("tensorfold")
    except importlib.metadata.PackageNotFoundError:
        return None


@lanes.hookimpl
def lanes_options() -> type[TensorFoldOptions]:
    return TensorFoldOptions


@lanes.hookimpl
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:
    return tuple(checks.check(lane, nodes))


@lanes.hookimpl
def lanes_stage(lane: Lane) -> Sequence[StageItem]:
    """The image; core adds what the recipe copies, and its scripts."""
    image = lane.recipe.image if lane.recipe else None
    if image is None:
        return ()
    return (Image(name="image", reference=image, size_bytes=_IMAGE_SIZES.get(image)),)


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    image = lane.recipe.image if lane.recipe else None
    return processes.launch(lane, placement, staged.paths.get("image", image) if image else None)


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    """Only rank 0 answers, and only once both ranks have loaded.

    The line that counts the slots is that of the engine for DeepSeek V4.1, which is not in stock
    TensorFold. It comes with fewer slots, or none, when the page cache had taken the memory.
    """
    rungs: tuple[Rung, ...] = (HttpRung(name="serving", path="/v1/models"),)
    if is_deepseek_v41(lane.recipe):
        rungs += (LogRung(name="has slots", pattern=causes.SLOTS),)
    phases = [Phase(name="loading the weights", pattern=r"\[tensorfold\] loading ")]
    if lane.recipe is not None and lane.recipe.nodes > 1:
        phases.append(Phase(name="rank 1 has loaded", pattern=r"\[tensorfold\] rank 1 ready in", rank=1))
    phases.append(Phase(name="ready", pattern=causes.READY))
    return Ladder(rungs=(*rungs, CanaryRung()), deadline_s=1800.0, phases=tuple(phases))


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    """Rank 0 first, so that no request is under way when rank 1 leaves it."""
    return StopPlan(
        order=tuple(sorted(process.rank for process in launch.processes)), signal="SIGTERM", patience_s=30.0
    )


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """TensorFold documents no dummy weights, and no way to have its flags read or a kernel run by itself."""
    return Rehearsal(
        flags="TensorFold reads its flags only when it starts",
        kernels="TensorFold has no small check of its kernels",
        dummy="TensorFold has no dummy weights: `lanes serve` tries it with its own",
    )
