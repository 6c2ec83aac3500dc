"""Why SGLang failed, from the lines it logs.

The patterns are from SGLang 0.5.23's sources where they are its own, and from reports where they come
from the libraries below it. `KV cache pool is full. Retract requests.` is none: SGLang gets over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import evolve
from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Lane, Postmortem

from lanes_sglang import arguments, engram, flags

_SKEW = "load-skew"
_ENGRAM = "engram-ids"

_KNOWN = (
    known(
        _SKEW,
        r"could finish the model loading, but there are other ranks that didn't finish loading",
        "a rank had loaded the weights and waited 480 s in vain for the others; SGLang has no flag for that",
        "start it again; if that does not help, copy the weights to each node or set "
        "weight_loader_prefetch_checkpoints",
        transient=True,
    ),
    known(
        _ENGRAM,
        r"a lookup of \d+ ids exceeds SPARK_ENGRAM_MAX_IDS=\d+",
        "a batch looked up more Engram ids than SPARK_ENGRAM_MAX_IDS allows",
        "raise SPARK_ENGRAM_MAX_IDS under [env] to 32 x chunked_prefill_size, or lower chunked_prefill_size",
    ),
    known(
        "no-room-for-kv-cache",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "the weights leave no room for a KV cache within mem_fraction_static",
        "raise mem_fraction_static, or spread the model over more GPUs",
    ),
    known(
        "out-of-memory",
        r"scheduler died during initialization \(exit code: -9\)",
        "the system killed a rank because the host's memory ran out",
        "lower mem_fraction_static, stop what else runs on that node, or use more nodes",
    ),
    known(
        "prefill-out-of-memory",
        r"Prefill out of memory",
        "a prompt found no room in the KV cache",
        "lower chunked_prefill_size or max_running_requests, or raise mem_fraction_static",
    ),
    known(
        "decode-out-of-memory",
        r"\bDecode out of memory",
        "a running request found no room in the KV cache",
        "lower max_running_requests, or raise mem_fraction_static",
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|NV_ERR_NO_MEMORY",
        "the GPU's memory did not suffice",
        "lower mem_fraction_static or chunked_prefill_size, or stop what else uses the GPU",
    ),
    known(
        "detokenizer-hung",
        r"Health check failed\. Server couldn't get a response from detokenizer",
        "SGLang hangs: its scheduler or detokenizer no longer answers",
        "look at the other ranks' logs for the one that stopped first",
    ),
    known(
        "no-gpu-code",
        r"Could not load any common_ops library|no kernel image is available for execution on the device",
        "this build of SGLang has no code for the GPU",
        "use a build of sglang-kernel for this GPU and this processor, see `lanes check`",
    ),
    known(
        "driver-too-old",
        r"provided PTX was compiled with an unsupported toolchain|CUDA driver version is insufficient",
        "the GPU's driver is older than the CUDA that this SGLang was built with",
        "update the driver, SGLang 0.5.23 is built with CUDA 13",
    ),
    known(
        "ptxas-too-old",
        r"Value 'sm_\d+[af]?' is not defined for option|ptxas.*sm_121a",
        "Triton's ptxas does not know this GPU",
        "set TRITON_PTXAS_PATH under [env] to the ptxas of CUDA 13",
    ),
    known(
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "another process still holds the GPU, most often the engine that ran before",
        "stop it, or wait until it has ended, and start again",
        transient=True,
    ),
    known(
        "network",
        r"NCCL error:? unhandled system error|unhandled system error \(run with NCCL_DEBUG",
        "NCCL could not connect the ranks",
        "check the interface and the GID index of each node, and that the nodes reach one another",
    ),
    known(
        "wrong-architecture",
        r"exec format error",
        "the image is for another processor",
        "take the image for this processor (aarch64 on DGX Spark)",
    ),
    known(
        "no-fp4-indexer",
        r"--enable-deepseek-v4-fp4-indexer requires",
        "this GPU has no FP4 indexer",
        "leave enable_deepseek_v4_fp4_indexer out",
    ),
    known(
        "argument-refused",
        r"error: (unrecognized arguments|ambiguous option|argument \S+: (invalid|expected))",
        "SGLang refuses an argument",
        "correct the option, or extra_args, in the recipe",
    ),
    known(
        "port-in-use",
        r"address already in use",
        "SGLang could not listen on its port: another process has it",
        "stop that process, or leave the ports to lanes, which looks for free ones",
        transient=True,
    ),
    known(
        "watchdog",
        r"(?<!soft )watchdog timeout(?!.*soft=True)",
        "a batch took longer than watchdog_timeout, and SGLang ended itself",
        "see the lines above it in the log; raise watchdog_timeout if the batch was only slow",
        echo=True,
    ),
    known(
        "rank-lost",
        r"TCPStore.*(closed|reset|broken|timed? ?out)|NCCL error: remote process exited",
        "a rank lost the others, as happens when one of them has ended",
        "look at the log of the rank that ended first",
        echo=True,
    ),
    known(
        "scheduler-died",
        r"Received sigquit from a child process|Scheduler hit an exception"
        r"|scheduler died during initialization",
        "SGLang's scheduler died",
        "see the lines above it in the log",
        echo=True,
    ),
)  # fmt: skip

_READY = r"The server is fired up and ready to roll!"


def diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    found = [_with_figures(lane, cause) for cause in causes.find(postmortem, _KNOWN, got_over=_READY)]
    # A rank that died leaves the others waiting for it: then the wait is no cause, and a second
    # start no help.
    return sorted(found, key=lambda cause: _is_wait(cause, found))


def _is_wait(cause: Cause, found: Sequence[Cause]) -> bool:
    return cause.name == _SKEW and any(c.name != _SKEW and c.rank != cause.rank for c in found)


def _with_figures(lane: Lane, cause: Cause) -> Cause:
    if cause.name != _ENGRAM or lane.recipe is None:
        return cause
    words = arguments.flags(lane, rank=0, ranks=lane.recipe.nodes, port="0", rendezvous="0:0", host=None)
    settings = flags.read(words)
    value = engram.advised(settings)
    if value is None or value < max(_looked_up(cause.lines), default=0):
        return cause
    return evolve(
        cause,
        advice=f'set {engram.VARIABLE} = "{value}" under [env], which suffices for chunks of '
        f"{settings.number('chunked_prefill_size')} tokens, or lower chunked_prefill_size",
    )


def _looked_up(lines: Sequence[str]) -> Iterator[int]:
    for line in lines:
        if match := re.search(r"a lookup of (\d+) ids", line):
            yield int(match[1])
