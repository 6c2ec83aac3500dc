"""What a person is told before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from lanes import verdicts
from lanes.types import Copy, Disk, Evidence, Finding, Gpu, Kind, Lane, Model, Mount, Node, Verdict
from lanes_sglang.checks import check

LaneOf = Callable[..., Lane]
GIB = 2**30


def ask(question: str, lane: Lane, nodes: Sequence[Node]) -> Finding:
    [finding] = [f for f in check(lane, nodes) if f.question == question]
    return finding


def alone() -> Lane:
    return Lane(name="sglang", engine="sglang", cluster="planned")


def node_with(gpu: str, arch: str | None) -> Node:
    return Node(name=gpu, arch=arch, gpus=(Gpu(name=gpu, target=gpu),), hypothetical=True)


@pytest.mark.parametrize(
    ("target", "arch", "verdict"),
    [
        ("12.1", "aarch64", Verdict.RUNNABLE),  # sm_121a
        ("9.0", "x86_64", Verdict.RUNNABLE),
        ("9.0", "aarch64", Verdict.RUNNABLE),
        ("10.3", "x86_64", Verdict.RUNNABLE),  # sm_100f is the family's
        ("8.6", "x86_64", Verdict.RUNNABLE),  # sm_80's code
        ("12.0", "x86_64", Verdict.RUNNABLE),
        ("12.1", "x86_64", Verdict.UNRUNNABLE),  # sm_120a is 12.0's alone
        ("7.0", "x86_64", Verdict.UNRUNNABLE),
        ("8.0", "aarch64", Verdict.UNRUNNABLE),
        ("gfx942", "x86_64", Verdict.UNKNOWN),  # AMD has builds of its own
    ],
)
def test_the_kernels_by_gpu_and_host(target: str, arch: str, verdict: Verdict) -> None:
    findings = list(check(alone(), [node_with(target, arch)]))
    assert verdicts.fold(findings, Kind.HARDWARE)[0] is verdict, findings
    assert verdicts.fold(findings, Kind.SERVING)[0] is Verdict.RUNNABLE


def test_an_unknown_node_is_no_yes() -> None:
    findings = list(check(alone(), [Node(name="unknown", hypothetical=True)]))
    assert verdicts.fold(findings, Kind.HARDWARE)[0] is not Verdict.RUNNABLE


@pytest.mark.parametrize(
    ("options", "verdict", "says"),
    [
        ({"extra_args": ("--cuda-graph-max-bs-decode", "8")}, Verdict.RUNNABLE, "all"),
        ({"extra_args": ("--cuda-graph-max-bs", "8")}, Verdict.UNRUNNABLE, "--cuda-graph-max-bs-prefill"),
        ({"load_format": "saftensors"}, Verdict.UNRUNNABLE, "'saftensors'"),
        ({"extra_args": ("--tp-size", "4"), "tp_size": 2}, Verdict.UNRUNNABLE, "--tp-size 2 and --tp-size 4"),
        ({"extra_args": ("--enable-metrics",)}, Verdict.DEGRADED, "--enable-metrics and --enable-metrics"),
        ({"extra_args": ("--host", "::1")}, Verdict.UNRUNNABLE, "--host ::1"),
        ({"extra_args": ("--my-flag",)}, Verdict.UNKNOWN, "no flag --my-flag"),
        ({"extra_args": ("--my-flag",), "version": "0.5.23"}, Verdict.UNRUNNABLE, "no flag --my-flag"),
        ({"load_format": "mine", "version": "0.5.22"}, Verdict.UNKNOWN, "'mine'"),
    ],
)
def test_the_whole_command_line_is_read(
    lane_of: LaneOf, sparks: list[Node], options: dict[str, Any], verdict: Verdict, says: str
) -> None:
    finding = ask("flags", lane_of(image="mine:v1", **options), sparks[:1])
    assert finding.verdict is verdict and says in finding.reason and finding.kind is Kind.CONFIGURATION


@pytest.mark.parametrize(
    ("image", "version", "verdict", "says"),
    [
        ("lmsysorg/sglang:v0.5.23", None, Verdict.RUNNABLE, "0.5.23"),
        ("lmsysorg/sglang:v0.5.23-cu130", None, Verdict.RUNNABLE, "0.5.23"),
        ("lmsysorg/sglang:v0.5.20", None, Verdict.UNKNOWN, "holds SGLang 0.5.20"),
        ("dsv41-sglang-1017:v1", None, Verdict.UNKNOWN, "is not known"),
        ("dsv41-sglang-1017:v1", "0.5.23", Verdict.RUNNABLE, "0.5.23"),
    ],
)
def test_another_version_is_told(
    lane_of: LaneOf, sparks: list[Node], image: str, version: str | None, verdict: Verdict, says: str
) -> None:
    finding = ask("version", lane_of(image=image, version=version), sparks[:1])
    assert finding.verdict is verdict and says in finding.reason


def test_a_model_that_is_nowhere(lane_of: LaneOf, sparks: list[Node]) -> None:
    finding = ask("model", lane_of(model=Model(name="toy")), sparks[:1])
    assert finding.verdict is Verdict.UNRUNNABLE and "does not say where" in finding.reason


def test_a_model_that_the_container_does_not_see(lane_of: LaneOf, sparks: list[Node]) -> None:
    def lane(target: str) -> Lane:
        mounts = {"mounts": (Mount(source="/data", target=target),)}
        return lane_of(model=Model(name="toy", path="/models/toy"), image="x:v1", recipe=mounts)

    assert "lies under no mount" in ask("model", lane("/mnt"), sparks[:1]).reason
    assert not [f for f in check(lane("/models"), sparks[:1]) if f.question == "model"]


def test_a_model_that_is_not_on_this_machine(lane_of: LaneOf, sparks: list[Node], tmp_path: Path) -> None:
    here = attrs.evolve(sparks[0], hypothetical=False)
    lane = lane_of(model=Model(name="toy", path=str(tmp_path / "gone")))
    finding = ask("model", attrs.evolve(lane, cluster="local"), [here])
    assert finding.evidence is Evidence.PROBED and "gone" in finding.reason


def test_a_program_that_is_not_on_this_machine(
    lane_of: LaneOf, sparks: list[Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = attrs.evolve(sparks[0], hypothetical=False)
    [finding] = [
        f for f in check(attrs.evolve(lane_of(), cluster="local"), [here]) if f.question == "program"
    ]
    assert finding.verdict is Verdict.UNRUNNABLE and finding.evidence is Evidence.PROBED
    assert finding.next_step and "sglang" in finding.reason


def test_the_reports_lane_on_four_sparks(seed_lane: LaneOf, sparks: list[Node]) -> None:
    """476 GB on four Sparks fit; what is not known is told, and nothing forbids it."""
    findings = list(check(seed_lane(), sparks))
    worst = verdicts.fold(findings)[0]
    assert worst is not Verdict.UNRUNNABLE, [f for f in findings if f.verdict is worst]
    counted = {f.question: f for f in verdicts.decisive(findings)}
    assert counted["memory"].verdict is Verdict.RUNNABLE
    assert counted["memory"].evidence is counted["answers"].evidence is Evidence.OBSERVED
    elsewhere = [
        attrs.evolve(sparks[0], gpus=(Gpu(name="H200", target="9.0", memory_bytes=141 * 10**9),))
    ] * 4
    assert all(f.evidence is not Evidence.OBSERVED for f in check(seed_lane(), elsewhere))


def test_weights_that_do_not_fit(lane_of: LaneOf, sparks: list[Node]) -> None:
    model = Model(name="toy", repo="org/toy", size_bytes=476 * 10**9)
    assert ask("memory", lane_of(model=model, nodes=2, tp_size=2), sparks[:2]).verdict is Verdict.UNRUNNABLE
    assert ask("memory", lane_of(model=model, nodes=4, tp_size=4), sparks).verdict is Verdict.RUNNABLE


def test_a_copy_that_does_not_fit(lane_of: LaneOf, sparks: list[Node]) -> None:
    copy = Copy(name="engram", source="/nas", target="/data", size_bytes=196 * GIB)
    small = attrs.evolve(
        sparks[0],
        hypothetical=False,
        disks=(Disk(path="/data", total_bytes=900 * GIB, free_bytes=100 * GIB),),
    )
    finding = ask("disk", lane_of(image="x:v1", recipe={"staging": (copy,)}), [small])
    assert finding.verdict is Verdict.UNRUNNABLE and "196 GiB are needed at /data" in finding.reason
