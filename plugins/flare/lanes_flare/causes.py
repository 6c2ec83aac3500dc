"""Why FLARE failed, from the lines it logs.

Its own lines are those that the report saw; the others come from CUDA and the system below it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Postmortem

_KNOWN = (
    known(
        "roce-crash",
        r"two-shot op \w+ abandoned",
        "the ranks' exchange over RoCE timed out and ended FLARE; the gb10 package for four Sparks did so on the "
        "first prompt of an agent's size",
        "another start only helps until the next long prompt: try another revision of the package, or another engine",
    ),
    known(
        "roce-failed",
        r"RoCE proxy failed",
        "the ranks' RoCE connection broke",
        "check the RoCE ports and the GID index of each node, and the log of the rank that ended first",
    ),
    known(
        "tool-choice",
        r"\b500\b.*tool_choice.{1,9}required|tool_choice.{1,9}required.*\b500\b",
        'FLARE answers a request with tool_choice "required" with HTTP 500',
        'ask with tool_choice "auto"; FLARE itself goes on serving',
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|NV_ERR_NO_MEMORY",
        "the GPU's memory did not suffice",
        "stop what else uses memory on that node, or spread the model over more nodes",
    ),
    known(
        "no-gpu-code",
        r"no kernel image is available for execution on the device|CUDA_ERROR_NO_BINARY_FOR_GPU",
        "this package of FLARE has no code for the GPU",
        "take the package for this GPU: there is one for gb10 and one for gb202",
    ),
    known(
        "driver-too-old",
        r"provided PTX was compiled with an unsupported toolchain|CUDA driver version is insufficient",
        "the GPU's driver is older than the CUDA that this FLARE was built with",
        "update the driver",
    ),
    known(
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "another process still holds the GPU, most often the engine that ran before",
        "stop it, or wait until it has ended, and start again",
        transient=True,
    ),
    known(
        "wrong-architecture",
        r"exec format error",
        "the program or the image is for another processor",
        "take the one for this processor (aarch64 on DGX Spark)",
    ),
    known(
        "port-in-use",
        r"address already in use",
        "FLARE could not listen on its port: another process has it",
        "stop that process, or let command pass {port}, for which lanes looks for a free one",
        transient=True,
    ),
    known(
        "peer-failed",
        r"tensor-parallel peer failed",
        "a rank ended because another had failed",
        "look at the log of the rank that ended first",
        echo=True,
    ),
)  # fmt: skip


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    return causes.find(postmortem, _KNOWN)
