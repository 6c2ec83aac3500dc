"""What a person is told before anything runs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from lanes import verdicts
from lanes.types import Evidence, Finding, Gpu, Kind, Lane, Model, Mount, Node, Verdict
from lanes_flare.checks import check

LaneOf = Callable[..., Lane]
WHOLE = {"command": ("go", "{model}", "{port}", "{rank}"), "health": "/ready"}


def counted(lane: Lane, nodes: Sequence[Node]) -> dict[str, Finding]:
    """The finding that counts for each question."""
    return {finding.question: finding for finding in verdicts.decisive(check(lane, nodes))}


def alone() -> Lane:
    return Lane(name="flare", engine="flare", cluster="planned")


@pytest.mark.parametrize(
    ("target", "verdict", "evidence"),
    [
        ("12.1", Verdict.RUNNABLE, Evidence.OBSERVED),
        ("12.0", Verdict.RUNNABLE, Evidence.DECLARED),
        ("10.0", Verdict.UNRUNNABLE, Evidence.DECLARED),
        ("9.0", Verdict.UNRUNNABLE, Evidence.DECLARED),
        ("gfx942", Verdict.UNRUNNABLE, Evidence.DECLARED),
        (None, Verdict.UNKNOWN, Evidence.DECLARED),
    ],
)
def test_compute_capability_12_alone(target: str | None, verdict: Verdict, evidence: Evidence) -> None:
    node = Node(name="node", gpus=(Gpu(name="a GPU", target=target),), hypothetical=True)
    finding = counted(alone(), [node])["sm"]
    assert (finding.verdict, finding.evidence) == (verdict, evidence)


def test_nothing_is_guessed(seed_lane: LaneOf, sparks: list[Node]) -> None:
    finding = counted(seed_lane(), sparks)["command"]
    assert finding.verdict is Verdict.UNRUNNABLE and finding.kind is Kind.CONFIGURATION
    assert "does not set command and health" in finding.reason and "published nowhere" in finding.reason
    assert finding.next_step and "{port}" in finding.next_step and "health: the path" in finding.next_step


def test_the_crash_that_was_seen(seed_lane: LaneOf, lane_of: LaneOf, sparks: list[Node]) -> None:
    finding = counted(seed_lane(), sparks)["answers"]
    assert (finding.verdict, finding.evidence) == (Verdict.DEGRADED, Evidence.OBSERVED)
    assert finding.date == datetime.date(2026, 10, 20) and "another revision" in (finding.recheck_when or "")
    assert "crashes on the first prompt of an agent's size" in finding.reason
    assert "answers" not in counted(lane_of(**WHOLE), sparks[:1])
    desktop = [attrs.evolve(sparks[0], gpus=(Gpu(name="RTX 5090", target="12.0"),))] * 4
    assert all(f.evidence is not Evidence.OBSERVED for f in check(seed_lane(), desktop))


def test_required_tools_are_told(sparks: list[Node]) -> None:
    finding = counted(alone(), sparks[:1])["tool-choice"]
    assert finding.verdict is Verdict.DEGRADED and "HTTP 500" in finding.reason


def test_a_whole_recipe_is_held_back_by_nothing(lane_of: LaneOf, sparks: list[Node]) -> None:
    lane = lane_of(nodes=4, **WHOLE)
    judged = verdicts.judge(check(lane, sparks))
    assert judged.status is None and judged.verdict is Verdict.RUNNABLE, judged


def test_ranks_that_start_alike(lane_of: LaneOf, sparks: list[Node]) -> None:
    options = {"command": ("go", "{port}"), "health": "/ready"}
    assert counted(lane_of(nodes=2, **options), sparks[:2])["rank"].verdict is Verdict.UNKNOWN
    assert "rank" not in counted(lane_of(**options), sparks[:1])


def test_a_model_matters_where_the_command_asks(lane_of: LaneOf, sparks: list[Node]) -> None:
    nowhere = Model(name="toy")
    assert "does not say where" in counted(lane_of(model=nowhere, **WHOLE), sparks[:1])["model"].reason
    fixed = {"command": ("go", "{port}"), "health": "/ready"}
    assert "model" not in counted(lane_of(model=nowhere, **fixed), sparks[:1])
    mount = {"mounts": (Mount(source="/data", target="/mnt"),)}
    inside = lane_of(model=Model(name="toy", path="/models/x"), image="x:v1", recipe=mount, **WHOLE)
    assert "lies under no mount" in counted(inside, sparks[:1])["model"].reason


def test_what_is_not_on_this_machine(
    lane_of: LaneOf, sparks: list[Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = attrs.evolve(sparks[0], hypothetical=False)
    lane = attrs.evolve(
        lane_of(model=Model(name="toy", path=str(tmp_path / "gone")), **WHOLE), cluster="local"
    )
    found = counted(lane, [here])
    assert found["program"].evidence is found["model"].evidence is Evidence.PROBED
    assert found["program"].verdict is found["model"].verdict is Verdict.UNRUNNABLE


def test_a_machine_without_a_gpu(seed_lane: LaneOf) -> None:
    here = Node(name="here", arch="x86_64", os="linux", gpus=())
    blocked = verdicts.judge(check(seed_lane(), [here])).blockers
    assert [finding.question for finding in blocked] == ["sm", "command"]
