"""The hooks: what `lanes` asks of DeepInfer."""

from __future__ import annotations

from collections.abc import Sequence

import lanes
from lanes.types import (
    Cause,
    EngineInfo,
    Finding,
    Ladder,
    Lane,
    Launch,
    LogRung,
    Node,
    Placement,
    Postmortem,
    Process,
    Rehearsal,
    Staged,
    StageItem,
    StopPlan,
    Trial,
)

from lanes_deepinfer import causes, checks
from lanes_deepinfer.options import DeepInferOptions

LANES_CONTRACT = 1


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    return EngineInfo(
        version=checks.VERSION,
        summary="DeepInfer: DeepSeek's inference framework for SM 10.x; offline, with no server yet",
        homepage="https://github.com/deepseek-ai/DeepInfer",
        recipes="lanes_deepinfer.recipes",
        default_recipes={1: ("dsv41-flash-1017-deepinfer",)},
    )


@lanes.hookimpl
def lanes_options() -> type[DeepInferOptions]:
    return DeepInferOptions


@lanes.hookimpl
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:
    return tuple(checks.check(lane, nodes))


@lanes.hookimpl
def lanes_stage(lane: Lane) -> Sequence[StageItem]:
    """Nothing: how the example finds its weights is not documented outside the repository."""
    return ()


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    """The offline example. It has no endpoint."""
    options = lane.options if isinstance(lane.options, DeepInferOptions) else DeepInferOptions()
    env = {**options.env, **(lane.recipe.env if lane.recipe else {})}
    argv = (options.python, "examples/offline_inference.py")
    return Launch(processes=(Process(rank=0, argv=argv, env=env, cwd=options.checkout),))


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    """A program that answers by itself: it is at work when it has printed anything at all."""
    return Ladder(rungs=(LogRung(name="at work", pattern=r"\S"),), deadline_s=3600.0)


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    return StopPlan(order=(0,), signal="SIGTERM", patience_s=30.0)


_GATE = """
try:
    from deep_cluster.hardware.device import is_sm_major_10
except ImportError as error:
    print(f'its gate cannot be asked: {error}'); raise SystemExit(69)
if not is_sm_major_10():
    print('RuntimeError: unknown GPU type'); raise SystemExit(1)
print('deep_cluster takes this GPU')
"""
"""The gate that every start passes, without the rest."""


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """Its gate asks the GPU; flags the example has none, and dummy weights are not documented."""
    return Rehearsal(
        flags="the offline example is started without flags",
        kernels=Trial(argv=(launch.processes[0].argv[0], "-c", _GATE)),
        dummy="DeepInfer documents no dummy weights",
    )
