"""A command line is read as vLLM's own parser reads it."""

from __future__ import annotations

import pytest
from lanes_vllm import flags
from lanes_vllm.flags import Fault


def only(*arguments: str) -> flags.Problem:
    [problem] = flags.read(arguments).problems
    return problem


def test_the_snapshot_has_every_spelling() -> None:
    known = flags.known()
    assert len(known) == 485
    assert known["-tp"].dest == known["--tensor-parallel-size"].dest == "tensor_parallel_size"
    assert known["--enable-expert-parallel"].dest == known["--no-enable-expert-parallel"].dest
    assert {"--headless", "--nnodes", "--node-rank", "--master-addr", "--master-port", "-q"} <= set(known)


def test_what_is_right_has_no_problem() -> None:
    words = "-tp 2 --max_model_len 64k --max-num-batched-tokens=8192 --enforce-eager --served-model-name a b"
    settings = flags.read(words.split())
    assert settings.problems == ()
    assert settings.number("tensor_parallel_size") == 2 and settings.text("max_model_len") == "64k"
    assert settings.on("enforce_eager") and settings.values["served_model_name"] == ("a", "b")
    assert flags.read(["--max-model-len", "auto"]).problems == ()


def test_json_may_come_by_its_keys() -> None:
    words = "--speculative-config.method eagle --speculative-config.num_speculative_tokens 3"
    settings = flags.read(words.split())
    assert settings.problems == () and settings.given("speculative_config")


def test_a_switch_has_opposites() -> None:
    assert flags.read(["--enable-auto-tool-choice"]).on("enable_auto_tool_choice")
    for opposite in ("--no-enable-auto-tool-choice", "--disable-auto-tool-choice"):
        settings = flags.read([opposite])
        assert not settings.on("enable_auto_tool_choice") and settings.given("enable_auto_tool_choice")


@pytest.mark.parametrize(
    ("arguments", "fault", "says"),
    [
        (("--max-modl-len", "8"), Fault.UNKNOWN, "no flag --max-modl-len"),
        (("--data-parallel", "2"), Fault.REFUSED, "ambiguous"),
        (("--safetensors-load-strategy", "mmap"), Fault.CHOICE, "does not take 'mmap'"),
        (("-tp", "two"), Fault.REFUSED, "a whole number, not 'two'"),
        (("--gpu-memory-utilization", "most"), Fault.REFUSED, "a number, not 'most'"),
        (("--max-model-len",), Fault.REFUSED, "needs a value"),
        (("--enforce-eager=1",), Fault.REFUSED, "is a switch"),
        (("-tp", "2", "--tensor-parallel-size", "4"), Fault.TWICE, "takes the last"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], fault: Fault, says: str) -> None:
    problem = only(*arguments)
    assert problem.fault is fault and says in problem.reason and problem.next_step


def test_the_nearest_flag_is_named() -> None:
    assert "--max-model-len" in only("--max-modl-len", "8").next_step


def test_middleware_may_be_given_twice() -> None:
    assert flags.read(["--middleware", "a", "--middleware", "b"]).problems == ()


@pytest.mark.parametrize(
    "arguments", [("-tp", "4", "--tensor-parallel-size", "4"), ("--enforce-eager", "--enforce-eager")]
)
def test_the_same_said_twice_does_no_harm(arguments: tuple[str, ...]) -> None:
    assert only(*arguments).fault is Fault.REPEATED
