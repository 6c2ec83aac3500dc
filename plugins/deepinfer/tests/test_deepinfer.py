"""What stands between DeepInfer and a lane, through the program as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lanes.types import Gpu, Lane, Launch, Node, Process, Trial, Verdict
from lanes_deepinfer.checks import check
from lanes_deepinfer.engine import lanes_rehearsal
from lanes_deepinfer.options import DeepInferOptions


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LANES_HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, Any]:
        argv = [sys.executable, "-m", "lanes", *arguments, "--json"]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        return ran.returncode, json.loads(ran.stdout)

    return run


def test_on_gb10_it_is_unrunnable_with_three_blockers_in_their_order(ask: Any) -> None:
    code, document = ask("run", "--engine", "deepinfer", "--arch", "gb10")
    (lane,) = document["lanes"]
    assert (code, lane["status"], lane["verdict"]) == (3, "unrunnable", "unrunnable")
    blockers = [finding for finding in lane["findings"] if finding["verdict"] == "unrunnable"]
    assert [finding["question"] for finding in blockers] == ["server", "sm", "build"]
    for finding in blockers:
        assert finding["reason"] in lane["reason"]
        assert finding["source"] and finding["evidence"] and finding["recheck_when"]
        assert (finding["engine_version"], finding["date"]) == ("0.1.0", "2026-10-21")


def test_on_b200_the_hardware_is_right_and_a_server_is_missing(ask: Any) -> None:
    code, document = ask("run", "--engine", "deepinfer", "--arch", "b200")
    (lane,) = document["lanes"]
    assert (code, lane["status"]) == (3, "unmeasurable")
    assert "no server" in lane["reason"]
    assert ask("check", "dsv41-flash-1017-deepinfer", "--arch", "b200")[1]["kinds"]["hardware"] == "runnable"


@pytest.mark.parametrize(
    ("arch", "admitted"), [("gb200", True), ("b300", True), ("h200", False), ("thor", False)]
)
def test_only_major_10_is_admitted(ask: Any, arch: str, admitted: bool) -> None:
    kinds = ask("check", "dsv41-flash-1017-deepinfer", "--arch", arch)[1]["kinds"]
    assert kinds["hardware"] == ("runnable" if admitted else "unrunnable")


def test_going_on_against_the_gate_is_told_for_ever(ask: Any) -> None:
    (lane,) = ask("run", "--engine", "deepinfer", "--arch", "gb10", "--despite", "sm", "--despite", "build")[
        1
    ]["lanes"]
    assert (lane["status"], lane["overrides"]) == ("unmeasurable", ["build", "sm"])


def test_in_a_comparison_it_is_a_row(ask: Any) -> None:
    code, document = ask(
        "run", "--engine", "deepinfer", "--recipe", "dsv41-flash-1017-deepinfer", "--arch", "gb10"
    )
    assert code == 3
    assert [lane["status"] for lane in document["lanes"]] == ["unrunnable"]


def test_the_dry_run_shows_the_offline_example_with_its_switches(ask: Any) -> None:
    settings = (
        "--set",
        "mtp_varlen=true",
        "--set",
        "prefill_truncation=compact",
        "--set",
        "prefill_keep_tokens=140",
    )
    (preview,) = ask(
        "run", "--engine", "deepinfer", "--arch", "b200", "--set", "checkout=/src", *settings, "--dry-run"
    )[1]
    (process,) = preview["launch"]["processes"]
    assert process["argv"] == ["python", "examples/offline_inference.py"]
    assert process["cwd"] == "/src"
    assert process["env"] == {
        "DEEPINFER_ENABLE_MTP_VARLEN": "1",
        "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "compact",
        "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": "140",
    }
    assert preview["launch"]["endpoint"] is None


@pytest.mark.parametrize(
    ("arch", "target", "verdict"),
    [
        ("x86_64", "10.0", Verdict.DEGRADED),
        ("x86_64", "9.0", Verdict.DEGRADED),
        ("aarch64", "10.0", Verdict.UNKNOWN),
        ("aarch64", "12.1", Verdict.UNRUNNABLE),
        ("aarch64", None, Verdict.UNKNOWN),
        (None, "10.0", Verdict.UNKNOWN),
    ],
)
def test_building_is_work_on_x86_64_and_nobodys_promise_on_arm64(
    arch: str | None, target: str | None, verdict: Verdict
) -> None:
    node = Node(name="n", arch=arch, gpus=(Gpu(name="some GPU", target=target),))
    findings = check(Lane(name="deepinfer", engine="deepinfer"), [node])
    (build,) = [finding for finding in findings if finding.question == "build"]
    assert build.verdict is verdict and "GCC 13" in build.reason


def test_keeping_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DeepInferOptions(prefill_keep_tokens=0)


@pytest.mark.parametrize(
    ("takes", "code", "said"), [("True", 0, "takes this GPU"), ("False", 1, "unknown GPU")]
)
def test_a_rehearsal_asks_the_gate_that_every_start_passes(
    tmp_path: Path, takes: str, code: int, said: str
) -> None:
    package = tmp_path / "deep_cluster" / "hardware"
    package.mkdir(parents=True)
    (package / "device.py").write_text(f"def is_sm_major_10():\n    return {takes}\n")
    launch = Launch(processes=(Process(rank=0, argv=(sys.executable, "x.py")),))
    plan = lanes_rehearsal(Lane(name="d", engine="deepinfer"), launch)
    assert isinstance(plan.kernels, Trial)
    env = {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(plan.kernels.argv, capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == code and said in ran.stdout
    assert subprocess.run(plan.kernels.argv, capture_output=True, check=False, env={}).returncode == 69
