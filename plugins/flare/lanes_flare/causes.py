"""Why FLARE failed, from the lines it logs. Its own are from the report on its package for four Sparks."""

from __future__ import annotations

from collections.abc import Sequence

from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Postmortem

_KNOWN = (
    known(
        "roce-timeout",
        r"RoCE proxy failed.*kernel timed out|two-shot op \d+ abandoned",
        "an exchange between ranks over RoCE was abandoned because a kernel timed out, as the package for four "
        "Sparks does on the first agent-sized prompt",
        "starting it again does not help: measure short prompts only, take another engine, or try a later "
        "revision of the package",
    ),
    known(
        "roce-failed",
        r"RoCE proxy failed",
        "the RoCE connection between ranks failed",
        "check the RoCE ports of the nodes (the package uses two rails a peer), and what the line says after it",
    ),
    known(
        "tool-choice-required",
        r"tool_choice\W{1,5}required\b.*\b500\b|\b500\b.*tool_choice\W{1,5}required\b",
        'FLARE answers HTTP 500 to tool_choice "required"',
        'ask with tool_choice "auto", or leave those scenarios out',
    ),
    known(
        "no-gpu-code",
        r"no kernel image is available for execution on the device|CUDA_ERROR_NO_BINARY_FOR_GPU",
        "this package has no code for the GPU",
        "fetch the revision for this GPU: gb10 for DGX Spark, gb202 for RTX 5090 and RTX PRO 6000",
    ),
    known(
        "driver-too-old",
        r"provided PTX was compiled with an unsupported toolchain|CUDA driver version is insufficient",
        "the GPU's driver is older than the CUDA that this package was built with",
        "update the driver",
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY|NV_ERR_NO_MEMORY",
        "the GPU's memory did not suffice",
        "stop what else uses memory on that node and drop the page cache, which is GPU memory on a DGX Spark",
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
        "FLARE could not listen on a port: another process has it",
        "stop that process, or let the command hold {port}, for which lanes looks for a free one",
        transient=True,
    ),
    known(
        "peer-failed",
        r"tensor-parallel peer failed",
        "another rank failed, and this one ended with it",
        "look at the log of the rank that failed first",
        echo=True,
    ),
)


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    return causes.find(postmortem, _KNOWN)
