"""Why it failed: from the logs of real failures in `logs/`, and from how the process ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from lanes.types import Exit, Postmortem
from lanes_llamacpp.causes import diagnose

LOGS = Path(__file__).parent / "logs"


def lines(name: str) -> tuple[str, ...]:
    return tuple((LOGS / f"{name}.log").read_text().splitlines())


def names(*log: str, http: str | None = None, end: Exit | None = None) -> list[str]:
    exits = {} if end is None else {0: end}
    found = diagnose(Postmortem(phase="loading", logs={0: log}, exits=exits, http=http))
    return [cause.name for cause in found]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("missing", "model-missing"),
        ("not-gguf", "model-not-gguf"),
        ("truncated", "model-truncated"),
        ("version", "gguf-version"),
        ("unknown-architecture", "architecture-unknown"),
        ("port-in-use", "port-in-use"),
        ("kv-cache-too-large", "out-of-memory"),
        ("buffers-too-large", "out-of-memory"),
        ("flash-attention-off", "flash-attention-needed"),
    ],
)
def test_real_failures_have_one_cause(log: str, cause: str) -> None:
    assert names(*lines(log), end=Exit(code=1)) == [cause]


def test_a_healthy_log_has_none() -> None:
    assert names(*lines("healthy")) == []


def test_what_was_got_over_is_no_cause() -> None:
    assert names(*lines("kv-cache-too-large"), *lines("healthy"), end=Exit(signal="SIGSEGV")) == ["crashed"]


def test_an_echo_alone_is_better_than_nothing() -> None:
    assert names("E srv load_model: failed to load model, 'x.gguf'") == ["model-not-loaded"]


def test_an_abort_after_a_cause_is_its_echo() -> None:
    assert names("CUDA error: out of memory", end=Exit(signal="SIGABRT")) == ["out-of-gpu-memory"]


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (Exit(signal="SIGKILL"), "killed"),
        (Exit(signal="SIGKILL", oom_killed=True), "out-of-memory"),
        (Exit(signal="SIGILL"), "cpu-too-old"),
        (Exit(signal="SIGABRT"), "aborted"),
    ],
)
def test_the_way_it_ended_tells(end: Exit, cause: str) -> None:
    assert names(*lines("healthy"), end=end) == [cause]


def test_a_prompt_that_is_too_long() -> None:
    said = (
        "HTTP 400: request (6024 tokens) exceeds the available context size (1024 tokens), try increasing it"
    )
    assert names(*lines("healthy"), http=said) == ["context-too-small"]
    assert names(*lines("healthy"), said) == [], "in a log it may be an earlier request's"
