"""Why TensorFold failed, from the lines it logs and the ways its ranks ended.

TensorFold's own messages are from its sources and from those of the patches for DeepSeek V4.1; the others
come from the libraries below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve
from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Postmortem

SLOTS = r"serving: [1-9]\d* slot\(s\)"
READY = r"serving: \d+ slot\(s\)|\[tensorfold\] serving .+ at http"
_LOADED = rf"{READY}|\[tensorfold\] rank 1 ready in"

FAIL_FAST = 70
"""The code with which both ranks end when a round failed on either."""

_KNOWN = (
    known(
        "no-cuda-path",
        r"has no CUDA engine yet",
        "this TensorFold has no CUDA engine for the model",
        "for DeepSeek V4.1 use an image with the patches of jayleaton/deepseek-v41-tensorfold-spark, "
        "otherwise another engine",
    ),
    known(
        "no-master",
        r"--tp 2 needs --master|--rank 1 needs --tp 2",
        "the ranks were not told of one another",
        "set nodes = 2 in the recipe and leave tp out",
    ),
    known(
        "no-model",
        r"is neither a directory nor a Hugging Face repo id",
        "there is no model where the recipe says",
        "correct model.path, which is the path that the process sees, in a container its mount",
    ),
    known(
        "argument-refused",
        r"error: (unrecognized arguments|ambiguous option|argument \S+: (invalid|expected))",
        "TensorFold refuses an argument",
        "correct the option, or extra_args, in the recipe",
    ),
    known(
        "no-slots",
        r"serving: 0 slot\(s\)",
        "the weights left no memory for a single request; before a load the page cache takes GPU memory too",
        "drop the page cache on both nodes, or lower context or parallel",
        transient=True,
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory|NV_ERR_NO_MEMORY",
        "the GPU's memory did not suffice",
        "stop what else uses memory on that node and drop the page cache, or lower context or parallel",
    ),
    known(
        "roce-failed",
        r"RoCE proxy failed|RoCE (collective|all-reduce)\b.*timed out",
        "the ranks' RoCE connection broke",
        "check both nodes' RoCE ports; the V4.1 launcher's next start goes over NCCL, slower, until "
        "/cache/roce-failed is deleted",
        transient=True,
    ),
    known(
        "network",
        r"NCCL error:? unhandled system error|unhandled system error \(run with NCCL_DEBUG",
        "NCCL could not connect the ranks",
        "check the interface and the GID index of each node, and that the nodes reach one another",
    ),
    known(
        "no-gpu-code",
        r"no kernel image is available for execution on the device",
        "this build of TensorFold, or of a library below it, has no code for the GPU",
        "use a build for this GPU, see `lanes check`",
    ),
    known(
        "driver-too-old",
        r"provided PTX was compiled with an unsupported toolchain|CUDA driver version is insufficient",
        "the GPU's driver is older than the CUDA that this TensorFold was built with",
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
        "the image is for another processor",
        "take the image for this processor (aarch64 on DGX Spark)",
    ),
    known(
        "port-in-use",
        r"address already in use",
        "TensorFold could not listen on a port: another process has it",
        "stop that process, or leave the ports to lanes, which looks for free ones",
        transient=True,
    ),
    known(
        "rank-lost",
        r"TCPStore.*(closed|reset|broken|timed? ?out)|NCCL error: remote process exited",
        "a rank lost the other, as happens when that one has ended",
        "look at the log of the rank that ended first",
        echo=True,
    ),
)

_FAILED_FAST = Cause(
    name="fail-fast",
    meaning="a round failed on a rank, and TensorFold ended both with code 70, so that none waits for the other",
    advice="the exception stands in the log above the end; start again once, and lower context or parallel if "
    "memory was short",
    transient=True,
)
_RANK_LOST = Cause(
    name="rank-lost",
    meaning="a rank was ended from outside, and the other followed with code 70",
    advice="look who ended it (dmesg, earlyoom): when memory ran short, lower context or parallel before "
    "another start",
)


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    found = causes.find(postmortem, _KNOWN, got_over=_LOADED)
    if all(cause.name in ("killed", "rank-lost") for cause in found):
        # What the exits tell of two ranks is more than a lost connection, or one rank's signal.
        return tuple(_by_exits(postmortem)) or found
    return found


def _by_exits(postmortem: Postmortem) -> Iterator[Cause]:
    fast = [rank for rank, end in sorted(postmortem.exits.items()) if end.code == FAIL_FAST]
    killed = [rank for rank, end in sorted(postmortem.exits.items()) if end.signal]
    if fast and killed:
        yield evolve(_RANK_LOST, rank=killed[0])
    elif fast:
        yield evolve(_FAILED_FAST, rank=fast[0], lines=_last_words(postmortem.logs.get(fast[0], ())))


def _last_words(log: Sequence[str]) -> tuple[str, ...]:
    """The exceptions that a log names, the last three: what they mean is not known here."""
    return tuple(line for line in log if "Error" in line or "Exception" in line)[-3:]
