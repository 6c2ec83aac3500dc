"""A command line is read as SGLang's own parser reads it."""

from __future__ import annotations

import argparse

import pytest
from lanes_sglang import flags
from lanes_sglang.flags import Fault


def only(*arguments: str) -> flags.Problem:
    [problem] = flags.read(arguments).problems
    return problem


def test_the_snapshot_is_whole() -> None:
    known = flags.known()
    assert len(known) == 553
    assert known["--tp-size"].dest == known["--tensor-parallel-size"].dest == "tp_size"
    assert "safetensors" in known["--load-format"].choices
    assert {flag.kind for flag in known.values()} == {"", "str", "int", "float", "json", "size", "other"}


def test_what_is_right_has_no_problem() -> None:
    words = (
        "--tp-size 4 --context-length 1M --chunked-prefill-size -1 --enable-metrics --mem-fraction-static=0.8"
    )
    settings = flags.read([*words.split(), "--cuda-graph-bs-decode", "1", "2", "4"])
    assert settings.problems == ()
    assert settings.number("tp_size") == 4 and settings.number("chunked_prefill_size") == -1
    assert settings.text("mem_fraction_static") == "0.8" and settings.on("enable_metrics")
    assert settings.values["cuda_graph_bs_decode"] == ("1", "2", "4")
    assert settings.number("context_length") is None and settings.number("ep_size") is None


def test_an_ambiguous_flag_names_what_it_could_be() -> None:
    problem = only("--cuda-graph-max-bs", "8")
    assert problem.fault is Fault.REFUSED
    assert "--cuda-graph-max-bs-decode" in problem.reason and "--cuda-graph-max-bs-prefill" in problem.reason


def test_a_short_name_works_while_only_one_begins_so() -> None:
    settings = flags.read(["--tp", "4"])
    assert settings.problems == () and settings.number("tp_size") == 4


@pytest.mark.parametrize("flag", ["--enable-ep-moe", "--chunk-prefill-size", "--zzz", "-x"])
def test_an_unknown_flag_is_told_with_its_neighbours(flag: str) -> None:
    problem = only(flag, "8")
    assert problem.fault is Fault.UNKNOWN and flag in problem.reason and problem.next_step
    if flag == "--chunk-prefill-size":
        assert "--chunked-prefill-size" in problem.next_step


@pytest.mark.parametrize(
    ("arguments", "fault", "says"),
    [
        (("--load-format", "saftensors"), Fault.CHOICE, "does not take 'saftensors'"),
        (("--tp-size", "four"), Fault.REFUSED, "a whole number, not 'four'"),
        (("--tp-size", "4.5"), Fault.REFUSED, "a whole number, not '4.5'"),
        (("--mem-fraction-static", "most"), Fault.REFUSED, "a number, not 'most'"),
        (("--context-length", "1 million"), Fault.REFUSED, "65536 or 64Ki, not '1 million'"),
        (("--tp-size",), Fault.REFUSED, "needs a value"),
        (("--tp-size", "--enable-metrics"), Fault.REFUSED, "needs a value"),
        (("--enable-metrics=yes",), Fault.REFUSED, "is a switch"),
        (("--enable-metrics", "yes"), Fault.REFUSED, "'yes' follows no flag"),
        (("--tp-size", "4", "--tensor-parallel-size", "8"), Fault.TWICE, "--tp-size 4 and --tensor-par"),
        (("--enable-tf32-matmul", "--no-enable-tf32-matmul"), Fault.TWICE, "takes the last"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], fault: Fault, says: str) -> None:
    problem = only(*arguments)
    assert problem.fault is fault and says in problem.reason and problem.next_step


def test_argparse_agrees(snapshot_parser: argparse.ArgumentParser) -> None:
    """A parser made from the snapshot takes what is found right, and refuses what is found wrong."""
    parser = snapshot_parser
    right = ["--model-path", "x", "--tp", "4", "--chunked-prefill-size", "-1", "--lora-paths"]
    assert flags.read(right).problems == () and parser.parse_args(right).tp_size == 4
    for wrong in (
        ["--cuda-graph-max-bs", "8"],
        ["--load-format", "saftensors"],
        ["--enable-metrics", "yes"],
        ["--tp-size"],
        ["--enable-ep-moe"],
    ):
        assert flags.read(wrong).problems
        with pytest.raises(argparse.ArgumentError):
            parser.parse_args(wrong)


@pytest.mark.parametrize(
    "arguments", [("--tp-size", "4", "--tensor-parallel-size", "4"), ("--enable-metrics", "--enable-metrics")]
)
def test_the_same_said_twice_does_no_harm(arguments: tuple[str, ...]) -> None:
    assert only(*arguments).fault is Fault.REPEATED
