"""What a person is told before anything runs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from lanes import verdicts
from lanes.types import Artifact, Evidence, Finding, Gpu, Kind, Lane, Model, Mount, Node, Verdict
from lanes_tensorfold.checks import check

LaneOf = Callable[..., Lane]
GIB = 2**30
V41 = Model(name="DeepSeek-V4.1-Flash", repo="org/dsv41")


def counted(lane: Lane, nodes: Sequence[Node]) -> dict[str, Finding]:
    """The finding that counts for each question."""
    return {finding.question: finding for finding in verdicts.decisive(check(lane, nodes))}


def alone() -> Lane:
    return Lane(name="tensorfold", engine="tensorfold", cluster="planned")


def node_with(gpu: str) -> Node:
    return Node(name=gpu, arch="x86_64", gpus=(Gpu(name=gpu, target=gpu),), hypothetical=True)


@pytest.mark.parametrize(
    ("target", "verdict", "evidence", "says"),
    [
        ("12.1", Verdict.RUNNABLE, Evidence.OBSERVED, "it ran on two DGX Sparks"),
        ("12.0", Verdict.RUNNABLE, Evidence.DECLARED, "sm_120"),
        ("10.3", Verdict.RUNNABLE, Evidence.DECLARED, "sm_103"),
        ("10.0", Verdict.UNKNOWN, Evidence.DECLARED, "compiled for compute capability 10.0, and was never"),
        ("9.0", Verdict.UNKNOWN, Evidence.DECLARED, "compiled for compute capability 9.0, and was never run"),
        ("8.9", Verdict.UNKNOWN, Evidence.DECLARED, "never run there"),
        ("8.6", Verdict.UNRUNNABLE, Evidence.DECLARED, "has no code for"),
        ("11.0", Verdict.UNRUNNABLE, Evidence.DECLARED, "has no code for"),
        ("gfx942", Verdict.UNRUNNABLE, Evidence.DECLARED, "has no code for"),
    ],
)
def test_the_code_by_gpu(target: str, verdict: Verdict, evidence: Evidence, says: str) -> None:
    finding = counted(alone(), [node_with(target)])["sm"]
    assert (finding.verdict, finding.evidence) == (verdict, evidence) and says in finding.reason
    assert finding.engine_version == "0.6.0"


def test_what_was_seen_has_a_date_and_yields_to_files_that_are_named(lane_of: LaneOf) -> None:
    spark = [node_with("12.1")]
    assert counted(alone(), spark)["sm"].date == datetime.date(2026, 10, 19)
    lane = lane_of(recipe={"artifacts": (Artifact(path="/x.so"),)})
    assert counted(lane, spark)["sm"].evidence is Evidence.DECLARED
    mixed = [node_with("12.1"), node_with("9.0")]
    assert counted(lane_of(nodes=2), mixed)["sm"].verdict is Verdict.UNKNOWN


def test_a_machine_without_a_gpu_is_told_all_that_it_lacks(seed_lane: LaneOf) -> None:
    here = Node(name="here", arch="x86_64", os="linux", memory_bytes=24 * GIB, gpus=())
    blocked = verdicts.judge(check(seed_lane(), [here])).blockers
    assert {finding.question for finding in blocked} == {"sm", "nodes", "free-memory"}
    assert "it needs a GPU" in blocked[0].reason and "12.1" in (blocked[0].next_step or "")
    assert "it runs on 2 nodes" in blocked[1].reason and "104 GiB must be free" in blocked[2].reason


@pytest.mark.parametrize(
    ("count", "verdict"), [(1, Verdict.RUNNABLE), (2, Verdict.RUNNABLE), (3, Verdict.UNRUNNABLE)]
)
def test_one_node_or_two(lane_of: LaneOf, sparks: list[Node], count: int, verdict: Verdict) -> None:
    assert counted(lane_of(nodes=count), sparks[:1] * count)["nodes"].verdict is verdict


@pytest.mark.parametrize(
    ("free", "verdict"), [(104, Verdict.RUNNABLE), (103, Verdict.UNRUNNABLE), (None, Verdict.UNKNOWN)]
)
def test_both_nodes_need_their_memory_free(
    lane_of: LaneOf, sparks: list[Node], free: int | None, verdict: Verdict
) -> None:
    roomy = attrs.evolve(sparks[0], memory_available_bytes=110 * GIB, hypothetical=False)
    other = attrs.evolve(roomy, memory_available_bytes=free and free * GIB)
    lane = lane_of(model=V41, nodes=2, image="x:v1")
    finding = counted(lane, [roomy, other])["free-memory"]
    assert finding.verdict is verdict
    assert verdict is Verdict.RUNNABLE or "page cache" in (finding.next_step or "")
    assert "free-memory" not in counted(lane_of(nodes=2), [roomy, other])


def test_stock_tensorfold_has_no_path_for_v41(lane_of: LaneOf, sparks: list[Node]) -> None:
    finding = counted(lane_of(model=V41, nodes=2), sparks)["patches"]
    assert finding.verdict is Verdict.UNRUNNABLE and finding.kind is Kind.CONFIGURATION
    assert "no CUDA engine for DeepSeek V4.1" in finding.reason and "patches" in (finding.next_step or "")
    assert "patches" not in counted(lane_of(model=V41, nodes=2, image="patched:v1"), sparks)
    assert "patches" not in counted(lane_of(), sparks[:1])


def test_tp_and_nodes_are_the_same(lane_of: LaneOf, sparks: list[Node]) -> None:
    assert "tp is 2 and nodes is 1" in counted(lane_of(tp=2), sparks[:1])["tp"].reason
    assert "tp" not in counted(lane_of(tp=2, nodes=2), sparks)


def test_fp8_came_with_the_patches(lane_of: LaneOf, sparks: list[Node]) -> None:
    assert counted(lane_of(kv_dtype="fp8"), sparks[:1])["kv-dtype"].verdict is Verdict.UNRUNNABLE
    assert "kv-dtype" not in counted(lane_of(kv_dtype="fp8", model=V41, nodes=2, image="x"), sparks)


def test_mlx_is_apples(lane_of: LaneOf, sparks: list[Node]) -> None:
    assert counted(lane_of(backend="mlx"), sparks[:1])["sm"].verdict is Verdict.UNRUNNABLE
    mac = Node(name="mac", os="darwin", hypothetical=True)
    assert counted(lane_of(backend="mlx"), [mac])["sm"].verdict is Verdict.UNKNOWN


def test_a_model_that_is_nowhere(lane_of: LaneOf, sparks: list[Node]) -> None:
    assert "does not say where" in counted(lane_of(model=Model(name="toy")), sparks[:1])["model"].reason


def test_a_model_that_the_container_does_not_see(lane_of: LaneOf, sparks: list[Node]) -> None:
    mount = {"mounts": (Mount(source="/data", target="/mnt"),)}
    lane = lane_of(model=Model(name="toy", path="/model"), image="x:v1", recipe=mount)
    assert "lies under no mount" in counted(lane, sparks[:1])["model"].reason


def test_what_is_not_on_this_machine(
    lane_of: LaneOf, sparks: list[Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = attrs.evolve(sparks[0], hypothetical=False)
    lane = attrs.evolve(lane_of(model=Model(name="toy", path=str(tmp_path / "gone"))), cluster="local")
    found = counted(lane, [here])
    assert found["program"].evidence is found["model"].evidence is Evidence.PROBED
    assert found["program"].verdict is found["model"].verdict is Verdict.UNRUNNABLE


def test_the_reports_lane_on_two_sparks(seed_lane: LaneOf, sparks: list[Node]) -> None:
    found = counted(seed_lane(), sparks)
    assert {f.verdict for f in found.values()} == {Verdict.RUNNABLE}, found
    assert found["memory"].evidence is found["answers"].evidence is Evidence.OBSERVED
    elsewhere = [node_with("9.0")] * 2
    assert all(f.evidence is not Evidence.OBSERVED for f in check(seed_lane(), elsewhere))
