"""Why it failed: each known line in the middle of a noisy log, and one failure over several ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lanes.types import Cause, Exit, Lane, Postmortem
from lanes_sglang.causes import diagnose

ANY = Lane(name="toy", engine="sglang")
NOISE = (
    "[2026-10-18 09:12:01 TP0] Load weight begin. avail mem=117.31 GB",
    "Loading safetensors checkpoint shards:  12% Completed | 6/48 [01:02<07:14, 10.3s/it]",
    "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9",
    "[2026-10-18 09:12:01] server_args=ServerArgs(watchdog_timeout=1800, dist_timeout=None)",
    "[W socket.cpp:759] [c10d] The client socket has failed to connect to [::]:20000 (errno: 97)",
)
SKEW = (
    "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish "
    "loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."
)
DIED = "RuntimeError: Rank 0 scheduler died during initialization (exit code: {}). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."
ENGRAM = "RuntimeError: engram layer 1: a lookup of 190608 ids exceeds SPARK_ENGRAM_MAX_IDS=131072"
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."


def found(*log: str, lane: Lane = ANY, **others: tuple[str, ...]) -> list[Cause]:
    logs = {0: log, **{int(rank[1:]): lines for rank, lines in others.items()}}
    return list(diagnose(lane, Postmortem(phase="loading", logs=logs)))


def names(*log: str, **others: tuple[str, ...]) -> list[str]:
    return [cause.name for cause in found(*log, **others)]


@pytest.mark.parametrize(
    ("line", "name", "transient"),
    [
        (SKEW, "load-skew", True),
        (ENGRAM, "engram-ids", False),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            "mem_fraction_static=0.7",
            "no-room-for-kv-cache",
            False,
        ),
        (DIED.format(-9), "out-of-memory", False),
        ("Prefill out of memory. Try to lower your batch size.", "prefill-out-of-memory", False),
        ("Decode out of memory. Try to lower your batch size.", "decode-out-of-memory", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out-of-gpu-memory", False),
        ("NVRM: nvAssertOkFailedNoLog: NV_ERR_NO_MEMORY", "out-of-gpu-memory", False),
        (
            "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
            "detokenizer-hung",
            False,
        ),
        ("[sgl_kernel] CRITICAL: Could not load any common_ops library!", "no-gpu-code", False),
        (
            "CUDA error: no kernel image is available for execution on the device",
            "no-gpu-code",
            False,
        ),
        ("the provided PTX was compiled with an unsupported toolchain.", "driver-too-old", False),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas-too-old", False),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-busy", True),
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)", "network", False),
        ("exec /usr/local/bin/sglang: exec format error", "wrong-architecture", False),
        (
            "ValueError: --enable-deepseek-v4-fp4-indexer requires SM100, SM120, or gfx95 GPUs",
            "no-fp4-indexer",
            False,
        ),
        (
            "sglang: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode",
            "argument-refused",
            False,
        ),
        ("sglang: error: unrecognized arguments: --enable-ep-moe", "argument-refused", False),
        ("sglang: error: argument --load-format: invalid choice: 'x'", "argument-refused", False),
        ("ERROR: [Errno 98] error while attempting to bind on address: address already in use", "port-in-use", True),
        ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog", False),
        (SIGQUIT, "scheduler-died", False),
        ("Scheduler hit an exception: Traceback (most recent call last):", "scheduler-died", False),
        (DIED.format(1), "scheduler-died", False),
        ("torch.distributed.DistNetworkError: TCPStore: connection was closed", "rank-lost", False),
    ],
)  # fmt: skip
def test_each_known_line_is_found_in_a_noisy_log(line: str, name: str, transient: bool) -> None:
    [cause] = found(*NOISE, line, *NOISE)
    assert (cause.name, cause.transient, cause.lines) == (name, transient, (line,))
    assert cause.meaning and cause.advice


def test_noise_is_no_cause() -> None:
    assert names(*NOISE, "Scheduler soft watchdog timeout (self.watchdog_timeout=60, self.soft=True)") == []


@pytest.mark.parametrize(
    "echo", [SIGQUIT, "Scheduler hit an exception: Traceback", "Scheduler watchdog timeout (self.soft=False)"]
)
def test_an_echo_gives_way_to_a_cause_on_any_rank(echo: str) -> None:
    assert names(echo, *NOISE, r2=(*NOISE, "Prefill out of memory.")) == ["prefill-out-of-memory"]


def test_a_rank_that_died_is_why_the_others_waited() -> None:
    causes = found(*NOISE, SKEW, r1=(*NOISE, DIED.format(-9), *NOISE))
    assert [cause.name for cause in causes] == ["out-of-memory", "load-skew"]
    assert not causes[0].transient and causes[0].rank == 1


def test_a_wait_for_ranks_that_only_loaded_is_transient() -> None:
    store = "TCPStore: connection reset by peer"
    [cause] = found(*NOISE, SKEW, SIGQUIT, r1=(*NOISE, store), r3=(*NOISE, store))
    assert cause.name == "load-skew" and cause.transient and "480 s" in cause.meaning


def test_what_came_before_it_was_ready_is_no_cause() -> None:
    ready = "[2026-10-18 09:52:01] The server is fired up and ready to roll!"
    assert names("NCCL error: unhandled system error", ready, ENGRAM) == ["engram-ids"]


def test_an_exceeded_budget_says_what_to_set(seed_lane: Callable[..., Lane]) -> None:
    lane = seed_lane(chunked_prefill_size="8192", **{"env.SPARK_ENGRAM_MAX_IDS": '"131072"'})
    [cause] = found(*NOISE, ENGRAM, SIGQUIT, lane=lane)
    assert 'SPARK_ENGRAM_MAX_IDS = "262144"' in cause.advice and not cause.transient


def test_the_systems_kill_is_told_by_the_exit() -> None:
    causes = diagnose(ANY, Postmortem(phase="loading", logs={0: NOISE}, exits={2: Exit(oom_killed=True)}))
    assert [(cause.name, cause.rank) for cause in causes] == [("out-of-memory", 2)]
