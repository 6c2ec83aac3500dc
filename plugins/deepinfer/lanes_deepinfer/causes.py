"""Why DeepInfer failed, from what it prints."""

from __future__ import annotations

from collections.abc import Sequence

from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Postmortem

_KNOWN = (
    known(
        "gpu-not-admitted",
        r"unknown GPU type",
        "DeepInfer admits GPUs of compute capability 10.x alone, and this is another",
        "run it on B200, GB200 or B300, or take another engine",
    ),
    known(
        "no-gpu-code",
        r"no kernel image is available for execution",
        "the build holds no code for this GPU",
        "build it on this machine, or take another engine",
    ),
    known(
        "not-installed",
        r"No module named '?(deepinfer|deep_cluster)",
        "DeepInfer is not installed in the interpreter that the recipe names",
        "build it with DEEPINFER_ACCELERATOR=nvidia ./build.sh, and set the option python",
    ),
    known(
        "no-checkout",
        r"can't open file .*offline_inference\.py",
        "the example is not there: it is in the repository, not in the package",
        "set the option checkout to the folder of the repository",
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA out of memory|CUDA error: out of memory",
        "the GPU's memory does not suffice",
        "spread the model over more GPUs, or stop what else uses them",
    ),
)


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    return causes.find(postmortem, _KNOWN)
