"""Can DeepInfer run here, and be measured? Its blockers, in the order of their weight."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from lanes import gates
from lanes.types import Finding, Kind, Lane, Node, Recipe, Verdict

VERSION = "0.1.0"
_DATE = datetime.date(2026, 10, 21)
_README = "the README of deepseek-ai/DeepInfer"
_GATE = "deep_cluster/hardware/device.py, is_sm_major_10()"
_BUILD = "build.sh and the README of deepseek-ai/DeepInfer"
_MODELS = "DeepSeek-V4.1"


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """The three blockers of the assessment of 2026-10-21, as far as they hold for these nodes.

    Its gate also admits Ascend 950, which is no GPU that `lanes` knows.
    """
    yield gates.serving(
        available=False,
        reason="DeepInfer is offline inference only: a Python library and an example, with no server to measure",
        source=_README,
        engine_version=VERSION,
        date=_DATE,
        recheck_when="the repository grows a serving path",
    )
    hardware = gates.sm_only(
        nodes,
        ("10",),
        source=_GATE,
        why='it ends with RuntimeError("unknown GPU type")',
        engine_version=VERSION,
        date=_DATE,
        recheck_when="the repository grows a target for sm_120 or sm_121",
    )
    if hardware is not None:
        yield hardware
    for node in nodes:
        yield _build(node, refused=hardware is not None and hardware.verdict is Verdict.UNRUNNABLE)
    if lane.recipe is not None:
        yield _model(lane.recipe)


def _build(node: Node, *, refused: bool) -> Finding:
    """It comes as sources with four CUDA projects: what building costs, and where nobody says that it works.

    On x86_64 that is work, no obstacle. On arm64, where the GPU is not admitted either, it is one.
    """
    cost = "GCC 13, CUDA 13, Python 3.12, four vendored CUDA projects and NCCL 2.32.3 installed by force"
    if node.arch is None:
        verdict, reason = (
            Verdict.UNKNOWN,
            f"it must be built ({cost}), and the host's architecture is not known",
        )
    elif node.arch in ("x86_64", "amd64"):
        verdict, reason = Verdict.DEGRADED, f"it must be built first: {cost}"
    elif refused:
        verdict = Verdict.UNRUNNABLE
        reason = (
            f"building it is a project here: {cost}, for {node.arch}, which is no documented target, and with "
            "kernels for another GPU"
        )
    else:
        verdict = Verdict.UNKNOWN
        reason = f"it must be built ({cost}), and {node.arch} is no documented target"
    return Finding(
        question="build",
        kind=Kind.CONFIGURATION,
        verdict=verdict,
        reason=reason,
        source=_BUILD,
        engine_version=VERSION,
        date=_DATE,
        next_step="build it with DEEPINFER_ACCELERATOR=nvidia ./build.sh from a checkout with its submodules",
        recheck_when="a build for this host is documented or published",
    )


def _model(recipe: Recipe) -> Finding:
    named = recipe.model.repo or recipe.model.path or recipe.model.name
    known = _MODELS.lower() in named.lower()
    return Finding(
        question="model",
        kind=Kind.CONFIGURATION,
        verdict=Verdict.RUNNABLE if known else Verdict.UNKNOWN,
        reason=f"{named} is of the one family that it supports, {_MODELS}"
        if known
        else f"it supports {_MODELS} alone (DeepseekV41ForCausalLM), and whether {named} is that is not known",
        source=_README,
        engine_version=VERSION,
        date=_DATE,
        next_step=None if known else f"name a checkpoint of {_MODELS}",
    )
