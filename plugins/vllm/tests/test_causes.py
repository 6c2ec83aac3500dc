"""Why it failed: each known line in the middle of a noisy log."""

from __future__ import annotations

import pytest
from lanes.types import Cause, Exit, Postmortem
from lanes_vllm.causes import diagnose

NOISE = (
    "INFO 10-18 09:12:01 [gpu_model_runner.py:4979] Starting to load model /models/toy...",
    "Loading safetensors checkpoint shards:  12% Completed | 6/48 [01:02<07:14, 10.3s/it]",
    "WARNING 10-18 09:12:03 [envs.py:12] Unknown vLLM environment variable detected: VLLM_FOO",
    "(EngineCore pid=88) INFO 10-18 09:12:04 Free memory on device cuda:0 (100.1/121.7 GiB)",
)
ECHO = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def found(*log: str, **others: tuple[str, ...]) -> list[Cause]:
    logs = {0: log, **{int(rank[1:]): lines for rank, lines in others.items()}}
    return list(diagnose(Postmortem(phase="loading", logs=logs)))


@pytest.mark.parametrize(
    ("line", "name", "transient"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "no-room-for-kv-cache",
            False,
        ),
        (
            "ValueError: Free memory on device cuda:0 (10.0/121.7 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 109.5 GiB). Decrease GPU memory utilization",
            "gpu-memory-taken",
            False,
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (1048576), (90.0 GiB KV cache "
            "is needed",
            "context-too-long",
            False,
        ),
        (
            "ValueError: World size (4) is larger than the number of available GPUs (1) in this node.",
            "too-few-gpus",
            False,
        ),
        (
            "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
            "loading for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
            "ready-timeout",
            True,
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/engram/rows-00001.bin'",
            "engram-missing",
            False,
        ),
        ("rsync: write failed on \"/engram\": No space left on device (28)", "disk-full", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out-of-gpu-memory", False),
        ("CUDA error: no kernel image is available for execution on the device", "no-gpu-code", False),
        ("the provided PTX was compiled with an unsupported toolchain.", "driver-too-old", False),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas-too-old", False),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-busy", True),
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)", "network", False),
        ("exec /usr/local/bin/vllm: exec format error", "wrong-architecture", False),
        ("vllm serve: error: unrecognized arguments: --zzz", "argument-refused", False),
        ("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", "argument-refused", False),
        ("OSError: [Errno 98] Address already in use", "port-in-use", True),
        ("TimeoutError: RPC call to execute_model timed out.", "rank-lost", False),
        ("ERROR 10-18 09:12:08 [core.py:1584] EngineCore failed to start.", "engine-died", False),
        (ECHO, "engine-died", False),
    ],
)  # fmt: skip
def test_each_known_line_is_found_in_a_noisy_log(line: str, name: str, transient: bool) -> None:
    [cause] = found(*NOISE, line, *NOISE)
    assert (cause.name, cause.transient, cause.lines) == (name, transient, (line,))
    assert cause.meaning and cause.advice


def test_noise_is_no_cause() -> None:
    assert found(*NOISE) == []


def test_the_root_cause_above_is_the_cause_below_too() -> None:
    line = "ValueError: No available memory for the cache blocks."
    causes = found("EngineCore failed to start.", *NOISE, line, ECHO, r1=(*NOISE, ECHO))
    assert [cause.name for cause in causes] == ["no-room-for-kv-cache"]


def test_what_came_before_it_was_ready_is_no_cause() -> None:
    ready = "INFO:     Application startup complete."
    assert [c.name for c in found("NCCL error: unhandled system error", ready, ECHO)] == ["engine-died"]


def test_the_systems_kill_is_told_by_the_exit() -> None:
    causes = diagnose(Postmortem(phase="loading", logs={0: NOISE}, exits={1: Exit(oom_killed=True)}))
    assert [(cause.name, cause.rank) for cause in causes] == [("out-of-memory", 1)]
