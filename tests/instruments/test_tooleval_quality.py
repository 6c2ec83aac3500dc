"""The arithmetic of tool-eval-bench's scores, and which of them rank together."""

from __future__ import annotations

from typing import Any

import pytest
from lanes.results import quality


def results(points: list[int], turns_ms: list[float] | None = None) -> list[dict[str, Any]]:
    words = {2: "pass", 1: "partial", 0: "fail"}
    return [
        {
            "scenario_id": f"TC-{number:02}",
            "status": words[one],
            "points": one,
            "turn_latencies_ms": turns_ms or [1000.0],
        }
        for number, one in enumerate(points, 1)
    ]


def report(scenarios: list[dict[str, Any]], **said: Any) -> dict[str, Any]:
    """What tool-eval-bench would say of these scenarios, with what a test wants it to say else."""
    come = quality.score(scenarios)
    scores = {
        "total_points": come.points,
        "max_points": come.max_points,
        "median_turn_ms": (come.median_turn_s or 0) * 1e3,
        "scenario_results": scenarios,
    }
    top = {"final_score": come.score, "responsiveness": come.responsiveness}
    return {
        **top | {k: v for k, v in said.items() if k not in scores},
        "scores": scores | {k: v for k, v in said.items() if k in scores},
    }


def test_87_is_168_of_194_points() -> None:
    scenarios = results([2] * 82 + [1] * 4 + [0] * 11)
    come = quality.score(scenarios)
    assert (come.points, come.max_points, come.score) == (168, 194, 87)
    assert len(come.failed) == 11
    assert len(come.partial) == 4
    assert quality.contradictions(report(scenarios, final_score=87)) == []
    assert "final_score is 88" in quality.contradictions(report(scenarios, final_score=88))[0]


@pytest.mark.parametrize(("median_turn_s", "expected"), [(4.7, 34), (6.7, 23), (3.0, 50), (1.0, 84)])
def test_responsiveness_of_a_median_turn(median_turn_s: float, expected: int) -> None:
    assert quality.responsiveness(median_turn_s) == expected


@pytest.mark.parametrize(("median_turn_s", "said"), [(1.4, 75), (1.7, 71), (4.7, 34), (6.7, 23)])
def test_responsiveness_within_what_rounded_seconds_allow(median_turn_s: float, said: int) -> None:
    least, most = quality.responsiveness_range(median_turn_s)
    assert least <= said <= most
    assert most - least <= 4


def test_what_the_server_failed_is_neither_won_nor_winnable() -> None:
    scenarios = results([2, 2, 0])
    scenarios[2] |= {"failure_kind": "timeout", "turn_latencies_ms": [120_000.0]}
    come = quality.score(scenarios)
    assert (come.points, come.max_points, come.score) == (4, 4, 100)
    assert come.completion_rate == pytest.approx(2 / 3)
    assert come.left_out == ("TC-03",)
    assert come.median_turn_s == 1.0
    assert come.failed == ()
    # A wrong answer of the model's counts.
    scenarios[2]["failure_kind"] = "wrong_tool"
    assert quality.score(scenarios).score == 67


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ({"total_points": 7}, "total_points is 7, and its own scenarios come to 6"),
        ({"max_points": 10}, "max_points is 10"),
        ({"responsiveness": 50}, "responsiveness is 50, and its own scenarios come to 84"),
        ({"median_turn_ms": 1500.0}, "median turn is 1500.0 ms"),
        ({"deployability": 60}, "deployability is 60"),
    ],
)
def test_a_report_that_contradicts_itself(said: dict[str, Any], part: str) -> None:
    scenarios = results([2, 2, 2, 0])
    assert quality.contradictions(report(scenarios)) == []
    (sentence,) = quality.contradictions(report(scenarios, **said))
    assert part in sentence


ASKED: dict[str, Any] = {
    "version": "2.8.0", "scenarios": ["TC-01", "TC-07"], "seed": 42, "hardmode": True, "completion_rate": 1.0,
}  # fmt: skip


def test_scores_of_2_8_and_3_0_have_no_common_ranking() -> None:
    sentence = quality.unrankable(ASKED, ASKED | {"version": "3.0.0"})
    assert sentence == (
        "tool-eval-bench 2.8.0 and 3.0.0 grade TC-21 and TC-89 differently, so their scores have no common ranking: "
        "measure both lanes with one of them"
    )
    assert quality.unrankable(ASKED, ASKED) is None
    assert quality.unrankable(ASKED, ASKED | {"version": "2.8.1"}) is None
    assert "may grade differently" in str(quality.unrankable(ASKED, ASKED | {"version": "4.1.0"}))


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"scenarios": ["TC-01"]}, "different scenarios (TC-01, TC-07 and TC-01)"),
        ({"seed": 1}, "different seeds (42 and 1)"),
        ({"hardmode": False}, "hard mode"),
        ({"completion_rate": 0.5}, "answered 100.0% and 50.0% of the scenarios"),
    ],
)
def test_scores_of_different_protocols_do_not_rank(other: dict[str, Any], part: str) -> None:
    assert part in str(quality.unrankable(ASKED, ASKED | other))
