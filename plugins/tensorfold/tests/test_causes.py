"""Why it failed: each known line in the middle of a noisy log, and one failure over two ranks."""

from __future__ import annotations

import re

import pytest
from lanes.types import Cause, Exit, Postmortem
from lanes_tensorfold.causes import READY, SLOTS, diagnose

NOISE = (
    "[tensorfold] loading DeepSeek-V4.1-Flash: DeepSeek V4.1 (deepseek_v41) on CUDA, rank 0 of 2",
    "[boot] weights 41.2s",
    "W some option is deprecated and will be removed",
    "GET /health 503",
)
SERVING = "[tensorfold] serving: 4 slot(s) x 262144"
STOCK = "[tensorfold] serving toy at http://127.0.0.1:8080/v1 on CUDA (sampling: greedy; drafts: on)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
STORE = "torch.distributed.DistNetworkError: TCPStore: connection was closed"


def found(*log: str, exits: dict[int, Exit] | None = None, other: tuple[str, ...] = ()) -> list[Cause]:
    logs = {0: log, 1: other} if other else {0: log}
    return list(diagnose(Postmortem(phase="loading", logs=logs, exits=exits or {})))


@pytest.mark.parametrize(
    ("line", "name", "transient"),
    [
        (
            "tensorfold: DeepSeek V4.1 has no CUDA engine yet: serve it on Apple Silicon",
            "no-cuda-path",
            False,
        ),
        ("tensorfold: --tp 2 needs --master: rank 0's address on the link", "no-master", False),
        ("tensorfold: --rank 1 needs --tp 2", "no-master", False),
        ("tensorfold: /model is neither a directory nor a Hugging Face repo id", "no-model", False),
        ("tensorfold serve: error: unrecognized arguments: --contxt", "argument-refused", False),
        ("tensorfold serve: error: argument --kv-dtype: invalid choice: 'fp8'", "argument-refused", False),
        ("[tensorfold] serving: 0 slot(s) x 262144", "no-slots", True),
        (OOM, "out-of-gpu-memory", False),
        ("NVRM: nvAssertOkFailedNoLog: NV_ERR_NO_MEMORY", "out-of-gpu-memory", False),
        ("RuntimeError: RoCE proxy failed: RDMA write to rank 1 vendor_err 0x81", "roce-failed", True),
        ("RuntimeError: RoCE all-reduce on rank 0: timed out waiting for rank 1", "roce-failed", True),
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)", "network", False),
        ("CUDA error: no kernel image is available for execution on the device", "no-gpu-code", False),
        ("the provided PTX was compiled with an unsupported toolchain.", "driver-too-old", False),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-busy", True),
        ("exec /usr/bin/python: exec format error", "wrong-architecture", False),
        ("OSError: [Errno 98] Address already in use", "port-in-use", True),
        (STORE, "rank-lost", False),
    ],
)
def test_each_known_line_is_found_in_a_noisy_log(line: str, name: str, transient: bool) -> None:
    [cause] = found(*NOISE, line, *NOISE)
    assert (cause.name, cause.transient, cause.lines) == (name, transient, (line,))
    assert cause.meaning and cause.advice


def test_noise_is_no_cause() -> None:
    assert found(*NOISE, SERVING, STOCK, "[tensorfold] rank 1 ready in 41.2s, following rank 0") == []


def test_what_came_before_it_was_ready_is_no_cause() -> None:
    assert [c.name for c in found(OOM, SERVING, "RuntimeError: RoCE proxy failed: x")] == ["roce-failed"]
    assert [c.name for c in found(OOM, STOCK, *NOISE)] == []


def test_a_fail_fast_names_itself_where_nothing_better_is_known() -> None:
    both = {0: Exit(code=70), 1: Exit(code=70)}
    [cause] = found(*NOISE, SERVING, "IndexError: page 9 of 8", exits=both)
    assert cause.name == "fail-fast" and cause.transient and "70" in cause.meaning
    assert cause.lines == ("IndexError: page 9 of 8",)


def test_a_fail_fast_is_the_echo_of_what_a_log_tells() -> None:
    both = {0: Exit(code=70), 1: Exit(code=70)}
    [cause] = found(*NOISE, STORE, other=(*NOISE, OOM), exits=both)
    assert (cause.name, cause.rank, cause.transient) == ("out-of-gpu-memory", 1, False)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_a_rank_that_was_ended_takes_the_other_with_it(signal: str) -> None:
    exits = {0: Exit(code=70), 1: Exit(signal=signal)}
    [cause] = found(*NOISE, SERVING, STORE, exits=exits)
    assert (cause.name, cause.rank, cause.transient) == ("rank-lost", 1, False)
    assert "memory" in cause.advice


def test_the_systems_kill_is_told_by_the_exit() -> None:
    [cause] = found(*NOISE, exits={0: Exit(code=70), 1: Exit(oom_killed=True, signal="SIGKILL")})
    assert (cause.name, cause.rank) == ("out-of-memory", 1)


def test_an_ordinary_end_is_no_fail_fast() -> None:
    assert found(*NOISE, exits={0: Exit(code=1), 1: Exit(code=0)}) == []


def test_no_slots_are_not_ready() -> None:
    assert re.search(SLOTS, SERVING) and not re.search(SLOTS, "[tensorfold] serving: 0 slot(s) x 262144")
    assert re.search(READY, STOCK)
