"""Why vLLM failed, from the lines it logs.

The patterns are from vLLM 0.33's sources where they are its own, and from reports where they come from
the libraries below it. The API server repeats that its engine died (`See root cause above`): an echo.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanes import causes
from lanes.causes import known
from lanes.types import Cause, Postmortem

_KNOWN = (
    known(
        "no-room-for-kv-cache",
        r"No available memory for the cache blocks",
        "the weights leave no room for a KV cache within gpu_memory_utilization",
        "raise gpu_memory_utilization, or spread the model over more GPUs",
    ),
    known(
        "gpu-memory-taken",
        r"Free memory on device .*is less than (desired GPU memory utilization|the engine's budget)",
        "the GPU has less free memory than gpu_memory_utilization asks for: something else uses it",
        "stop what else uses the GPU, or lower gpu_memory_utilization",
    ),
    known(
        "context-too-long",
        r"To serve at least one request with the model's max seq len",
        "the KV cache is too small for one request of max_model_len tokens",
        "lower max_model_len to what the line says is possible, or raise gpu_memory_utilization",
    ),
    known(
        "too-few-gpus",
        r"World size \(\d+\) is larger than the number of available GPUs",
        "the lane asks for more GPUs than the node has",
        "lower tensor_parallel_size, or use a recipe for more nodes",
    ),
    known(
        "ready-timeout",
        r"Timed out waiting for engine core processes|configured by VLLM_ENGINE_READY_TIMEOUT_S",
        "vLLM's engine was not ready within VLLM_ENGINE_READY_TIMEOUT_S, as happens when weights are read slowly",
        "raise VLLM_ENGINE_READY_TIMEOUT_S under [env], or copy the weights to each node",
        transient=True,
    ),
    known(
        "engram-missing",
        r"(FileNotFoundError|No such file or directory).*engram|engram.*No such file or directory",
        "Engram's files are not where vLLM looks, as when a volume holds symlinks that lead out of the container",
        "copy the files to the node ([[staging]]), or mount what the symlinks point to under the same path",
    ),
    known(
        "disk-full",
        r"No space left on device",
        "a disk of the node is full",
        "free some space; `lanes check` says how much the recipe's copies take",
    ),
    known(
        "out-of-gpu-memory",
        r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|NV_ERR_NO_MEMORY",
        "the GPU's memory did not suffice",
        "lower max_num_seqs or max_num_batched_tokens, or stop what else uses the GPU",
    ),
    known(
        "no-gpu-code",
        r"no kernel image is available for execution on the device",
        "this build of vLLM has no code for the GPU",
        "use a build for this GPU and this processor, see `lanes check`",
    ),
    known(
        "driver-too-old",
        r"provided PTX was compiled with an unsupported toolchain|CUDA driver version is insufficient",
        "the GPU's driver is older than the CUDA that this vLLM was built with",
        "update the driver",
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
        "argument-refused",
        r"error: (unrecognized arguments|ambiguous option|argument \S+: (invalid|expected))"
        r"|--enable-auto-tool-choice requires --tool-call-parser",
        "vLLM refuses an argument",
        "correct the option, or extra_args, in the recipe",
    ),
    known(
        "port-in-use",
        r"address already in use",
        "vLLM could not listen on its port: another process has it",
        "stop that process, or leave the ports to lanes, which looks for free ones",
        transient=True,
    ),
    known(
        "rank-lost",
        r"RPC call to \w+ timed out|TCPStore.*(closed|reset|broken|timed? ?out)|NCCL error: remote process exited",
        "a rank lost the others, as happens when one of them has ended",
        "look at the log of the rank that ended first",
        echo=True,
    ),
    known(
        "engine-died",
        r"EngineCore failed to start\.|Engine core initialization failed\.|See root cause above"
        r"|EngineDeadError",
        "vLLM's engine died",
        "see the lines above it in the log",
        echo=True,
    ),
)  # fmt: skip

_READY = r"Application startup complete\."


def diagnose(postmortem: Postmortem) -> Sequence[Cause]:
    """The causes of a failure, the first first."""
    return causes.find(postmortem, _KNOWN, got_over=_READY)
