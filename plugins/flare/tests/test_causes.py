"""Why it failed: each known line in the middle of a noisy log."""

from __future__ import annotations

import pytest
from lanes.types import Cause, Exit, Postmortem
from lanes_flare.causes import diagnose

NOISE = (
    "INFO validated: sm_121, 1M ctx, 16 concurrency, MTP 1-6, 74.7 GiB/rank, 130 graphs",
    "INFO RoCE: two rails a peer",
    "POST /v1/chat/completions 200 tool_choice=auto",
    "W some option is deprecated and will be removed",
)
CRASH = (
    "tensor-parallel peer failed: RoCE proxy failed: two-shot op {0} abandoned: kernel timed out at seq {0}"
)


def found(*log: str, http: str | None = None, other: tuple[str, ...] = ()) -> list[Cause]:
    return list(diagnose(Postmortem(phase="measuring", logs={0: log, 1: other}, http=http)))


@pytest.mark.parametrize(
    ("line", "name", "transient"),
    [
        (CRASH.format("N"), "roce-crash", False),
        (CRASH.format(40961), "roce-crash", False),
        ("ERROR RoCE proxy failed: RDMA write to rank 1: vendor_err 0x81", "roce-failed", False),
        ('500 Internal Server Error: {"tool_choice": "required"}', "tool-choice", False),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "out-of-gpu-memory", False),
        ("NVRM: nvAssertOkFailedNoLog: NV_ERR_NO_MEMORY", "out-of-gpu-memory", False),
        ("CUDA error: no kernel image is available for execution on the device", "no-gpu-code", False),
        ("the provided PTX was compiled with an unsupported toolchain.", "driver-too-old", False),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-busy", True),
        ("exec /opt/flare: exec format error", "wrong-architecture", False),
        ("Error: Address already in use (os error 98)", "port-in-use", True),
        ("ERROR tensor-parallel peer failed: connection reset", "peer-failed", False),
    ],
)
def test_each_known_line_is_found_in_a_noisy_log(line: str, name: str, transient: bool) -> None:
    [cause] = found(*NOISE, line, *NOISE)
    assert (cause.name, cause.transient, cause.lines) == (name, transient, (line,))
    assert cause.meaning and cause.advice


def test_noise_is_no_cause() -> None:
    assert found(*NOISE, 'POST /v1/chat/completions 200: tool_choice: "required"') == []


def test_the_crash_comes_before_what_follows_it() -> None:
    causes = found(*NOISE, "tensor-parallel peer failed: gone", other=(*NOISE, CRASH.format(7)))
    assert [(cause.name, cause.rank) for cause in causes] == [("roce-crash", 1)]
    assert "agent's size" in causes[0].meaning and "another revision" in causes[0].advice


def test_what_http_said_is_read_too() -> None:
    [cause] = found(*NOISE, http='HTTP 500 for tool_choice "required"')
    assert cause.name == "tool-choice"


def test_the_systems_kill_is_told_by_the_exit() -> None:
    [cause] = diagnose(Postmortem(phase="loading", logs={0: NOISE}, exits={2: Exit(oom_killed=True)}))
    assert (cause.name, cause.rank) == ("out-of-memory", 2)
