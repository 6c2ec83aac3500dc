"""What a person is told before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from lanes import recipes, verdicts
from lanes.plugins import Plugins
from lanes.types import Disk, Evidence, Finding, Gpu, Kind, Lane, Model, Mount, Node, Verdict
from lanes_vllm.checks import check

LaneOf = Callable[..., Lane]
GIB = 2**30


def ask(question: str, lane: Lane, nodes: Sequence[Node]) -> Finding:
    [finding] = [f for f in check(lane, nodes) if f.question == question]
    return finding


def questions(lane: Lane, nodes: Sequence[Node]) -> set[str]:
    return {finding.question for finding in check(lane, nodes)}


@pytest.fixture
def blocked() -> Lane:
    """The report's lane that was blocked."""
    plugins = Plugins()
    recipe = recipes.find("dsv41-flash-1017-2x-vllm", plugins)
    return attrs.evolve(recipes.lane(recipe, plugins.engine("vllm")), cluster="2nodes-dac")


@pytest.mark.parametrize(
    ("target", "arch", "verdict"),
    [
        ("12.1", "aarch64", Verdict.RUNNABLE),  # sm_120f
        ("9.0", "x86_64", Verdict.RUNNABLE),
        ("7.5", "x86_64", Verdict.RUNNABLE),
        ("10.3", "x86_64", Verdict.RUNNABLE),
        ("7.0", "x86_64", Verdict.UNRUNNABLE),
        ("7.5", "aarch64", Verdict.UNRUNNABLE),
        ("gfx942", "x86_64", Verdict.UNKNOWN),  # AMD has builds of its own
    ],
)
def test_the_kernels_by_gpu_and_host(target: str, arch: str, verdict: Verdict) -> None:
    node = Node(name=target, arch=arch, gpus=(Gpu(name=target, target=target),), hypothetical=True)
    findings = list(check(Lane(name="vllm", engine="vllm", cluster="planned"), [node]))
    assert verdicts.fold(findings, Kind.HARDWARE)[0] is verdict, findings
    assert verdicts.fold(findings, Kind.SERVING)[0] is Verdict.RUNNABLE


def test_the_reports_block_is_told(blocked: Lane, spark: Node) -> None:
    finding = ask("engram-volume", blocked, [spark, spark])
    assert finding.verdict is Verdict.UNRUNNABLE and finding.evidence is Evidence.OBSERVED
    assert "196 GiB" in finding.reason and "dangle" in finding.reason
    assert finding.next_step and finding.recheck_when and finding.date is not None


@pytest.mark.parametrize(("free", "blocks"), [(100, True), (400, False)])
def test_the_block_is_about_room(blocked: Lane, spark: Node, free: int, blocks: bool) -> None:
    disk = Disk(path="/var/lib/lanes/engram", total_bytes=900 * GIB, free_bytes=free * GIB)
    nodes = [attrs.evolve(spark, hypothetical=False, disks=(disk,))] * 2
    finding = ask("disk", blocked, nodes)
    assert (finding.verdict is Verdict.UNRUNNABLE) is blocks
    assert ("engram-volume" in questions(blocked, nodes)) is blocks


def test_symlinks_that_leave_the_container(lane_of: LaneOf, spark: Node, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "rows-00001.bin").symlink_to("/nas/engram/rows-00001.bin")
    (tmp_path / "volume" / "latest").symlink_to("rows-00001.bin")
    here = attrs.evolve(spark, hypothetical=False)

    def lane(*mounts: Mount) -> Lane:
        return lane_of(image="x:v1", cluster="local", recipe={"mounts": mounts})

    volume = Mount(source=str(tmp_path / "volume"), target="/engram")
    finding = ask("mounts", lane(volume), [here])
    assert finding.verdict is Verdict.UNRUNNABLE and finding.evidence is Evidence.PROBED
    assert "/nas/engram/rows-00001.bin" in finding.reason
    whole = lane(volume, Mount(source="/nas", target="/nas"))
    assert "mounts" not in questions(whole, [here])
    assert "mounts" not in questions(attrs.evolve(lane(volume), cluster="far"), [here])


@pytest.mark.parametrize(
    ("question", "options", "verdict"),
    [
        ("spread", {"nodes": 2, "tensor_parallel_size": 3}, Verdict.UNRUNNABLE),
        ("rendezvous", {"nodes": 2, "tensor_parallel_size": 2, "rendezvous": ""}, Verdict.UNRUNNABLE),
        ("rendezvous", {"tensor_parallel_size": 2, "extra_args": ("--nnodes", "2")}, Verdict.UNRUNNABLE),
        (
            "rendezvous",
            {"nodes": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
            Verdict.UNRUNNABLE,
        ),
        ("tools", {"enable_auto_tool_choice": True}, Verdict.UNRUNNABLE),
        ("tools", {"tool_call_parser": "beam"}, Verdict.DEGRADED),
        ("ready-timeout", {"recipe": {"patience_s": 3600.0}}, Verdict.DEGRADED),
        (
            "expandable-segments",
            {"quantization": "exl3", "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
            Verdict.RUNNABLE,
        ),
        ("flags", {"extra_args": ("--data-parallel", "2")}, Verdict.UNRUNNABLE),
        ("flags", {"extra_args": ("--zzz",)}, Verdict.UNKNOWN),
        ("flags", {"extra_args": ("--zzz",), "version": "0.33.0"}, Verdict.UNRUNNABLE),
        ("flags", {"extra_args": ("-tp", "2"), "tensor_parallel_size": 4}, Verdict.UNRUNNABLE),
        ("model", {"model": Model(name="toy")}, Verdict.UNRUNNABLE),
        ("version", {"image": "vllm/vllm-openai:v0.33.0"}, Verdict.RUNNABLE),
        ("version", {"image": "vllm/vllm-openai:nightly"}, Verdict.UNKNOWN),
    ],
)
def test_what_is_wrong_is_told(
    lane_of: LaneOf, spark: Node, question: str, options: dict[str, Any], verdict: Verdict
) -> None:
    finding = ask(question, lane_of(**{"image": "x:v1", **options}), [spark, spark])
    assert finding.verdict is verdict and finding.kind is Kind.CONFIGURATION and finding.source
    assert finding.next_step or verdict is Verdict.RUNNABLE


def test_what_goes_together_is_not_told(lane_of: LaneOf, spark: Node) -> None:
    lane = lane_of(
        nodes=2,
        image="x:v1",
        env={"VLLM_ENGINE_READY_TIMEOUT_S": "3600"},
        recipe={"patience_s": 3600.0},
        tensor_parallel_size=2,
        tool_call_parser="beam",
        enable_auto_tool_choice=True,
    )
    assert not {"spread", "rendezvous", "tools", "ready-timeout", "model"} & questions(lane, [spark, spark])


def test_a_program_that_is_not_on_this_machine(
    lane_of: LaneOf, spark: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = attrs.evolve(spark, hypothetical=False)
    [finding] = [f for f in check(lane_of(cluster="local"), [here]) if f.question == "program"]
    assert finding.verdict is Verdict.UNRUNNABLE and finding.evidence is Evidence.PROBED
