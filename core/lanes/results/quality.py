"""Scores of tool-eval-bench: their arithmetic, done anew from its scenarios, and which of them rank together.

Each scenario gives 2 points, 1 or 0; those that the server failed (a time-out, a lost connection, an HTTP 5xx) count
neither as won nor as winnable. Source: tool-eval-bench 2.8.0 and 3.0.0, `domain/scenarios.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

POINTS = 2
"""What a scenario can give."""
SERVER_FAILURES = frozenset({"timeout", "connection_error", "server_error"})
_CENTRE_MS, _STEEPNESS = 3000.0, 1.5
_WEIGHT = 0.7
_GRADINGS = {"2.8": "2.8", "3.0": "3.0"}
"""Versions, by how they begin, that grade alike."""
_DIFFER = {frozenset({"2.8", "3.0"}): "TC-21 and TC-89"}
"""What two gradings judge differently."""
_SAME_RATE = 0.0005


@frozen(kw_only=True)
class Score:
    """What scenarios come to: `score` of 100, `responsiveness` of 100, the median turn in seconds.

    `completion_rate` is the share of the scenarios that could be graded. `failed` are those graded with 0 points,
    `partial` those with 1, `left_out` those that the server failed. None where nothing is known.
    """

    points: int
    max_points: int
    score: int | None
    median_turn_s: float | None
    responsiveness: int | None
    completion_rate: float
    failed: tuple[str, ...]
    partial: tuple[str, ...]
    left_out: tuple[str, ...]


def score(results: Iterable[Mapping[str, Any]]) -> Score:
    """Add up scenario results as tool-eval-bench's JSON has them."""
    every = list(results)
    graded = [one for one in every if not left_out(one)]
    points, most = sum(int(one["points"]) for one in graded), POINTS * len(graded)
    turns = [float(ms) for one in graded for ms in one.get("turn_latencies_ms") or ()]
    median_s = statistics.median(turns) / 1e3 if turns else None
    return Score(
        points=points,
        max_points=most,
        score=round(points / most * 100) if most else None,
        median_turn_s=median_s,
        responsiveness=responsiveness(median_s) if median_s else None,
        completion_rate=len(graded) / len(every) if every else 0.0,
        failed=tuple(str(one["scenario_id"]) for one in graded if int(one["points"]) == 0),
        partial=tuple(str(one["scenario_id"]) for one in graded if 0 < int(one["points"]) < POINTS),
        left_out=tuple(str(one["scenario_id"]) for one in every if left_out(one)),
    )


def left_out(result: Mapping[str, Any]) -> bool:
    """Whether it is the server that failed the scenario."""
    return result.get("status") == "fail" and result.get("failure_kind") in SERVER_FAILURES


def responsiveness(median_turn_s: float) -> int:
    """100 / (1 + (t / 3 s) ^ 1.5), rounded: 50 at three seconds a turn."""
    share: float = (max(median_turn_s, 0.0) * 1e3 / _CENTRE_MS) ** _STEEPNESS
    return round(100 / (1 + share))


def responsiveness_range(median_turn_s: float, step_s: float = 0.1) -> tuple[int, int]:
    """The least and the most responsiveness of a median turn that was rounded to steps of `step_s`."""
    return responsiveness(median_turn_s + step_s / 2), responsiveness(median_turn_s - step_s / 2)


def contradictions(report: Mapping[str, Any]) -> list[str]:
    """Where its JSON does not follow from its own scenarios, each in a sentence."""
    scores = report.get("scores") or {}
    own = score(scores.get("scenario_results") or ())
    median_ms = scores.get("median_turn_ms")
    said = {
        "total_points": (scores.get("total_points"), own.points),
        "max_points": (scores.get("max_points"), own.max_points),
        "final_score": (report.get("final_score"), own.score or 0),
        "responsiveness": (report.get("responsiveness"), own.responsiveness),
    }
    found = [
        f"its {name} is {theirs}, and its own scenarios come to {ours}"
        for name, (theirs, ours) in said.items()
        if theirs is not None and theirs != ours
    ]
    if median_ms is not None and own.median_turn_s and abs(median_ms - own.median_turn_s * 1e3) > 0.1:
        found.append(
            f"its median turn is {median_ms} ms, and its own turns' is {own.median_turn_s * 1e3:.1f} ms"
        )
    if own.score is not None and own.responsiveness is not None and report.get("deployability") is not None:
        alpha = float(scores.get("alpha", _WEIGHT))
        ours = round(alpha * own.score + (1 - alpha) * own.responsiveness)
        if report["deployability"] != ours:
            found.append(
                f"its deployability is {report['deployability']}, and its own scenarios come to {ours}"
            )
    return found


def unrankable(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return why two scores have no common ranking, in one sentence, or None when they have.

    `a` and `b` are what the instrument `tooleval` says was asked for (the result's `plan`: `version`,
    `scenarios`, `seed`, `hardmode`, `max_turns`, `timeout_s`, `max_tokens`), with `completion_rate` where known.
    """
    mine, theirs = str(a.get("version")), str(b.get("version"))
    gradings = {_grading(mine), _grading(theirs)}
    if len(gradings) > 1:
        differ = _DIFFER.get(frozenset(gradings))
        how = f"grade {differ} differently" if differ else "may grade differently"
        return (
            f"tool-eval-bench {mine} and {theirs} {how}, so their scores have no common ranking: "
            "measure both lanes with one of them"
        )
    for name, words in _PROTOCOL.items():
        if name in a and name in b and a[name] != b[name]:
            return f"the scores are of different {words} ({_short(a[name])} and {_short(b[name])}): measure both alike"
    rates = [float(one["completion_rate"]) for one in (a, b) if one.get("completion_rate") is not None]
    if len(rates) == 2 and abs(rates[0] - rates[1]) > _SAME_RATE:
        return (
            f"the servers answered {rates[0]:.1%} and {rates[1]:.1%} of the scenarios, and what failed is in neither "
            "score: they compare only at the same rate"
        )
    return None


_PROTOCOL = {
    "scenarios": "scenarios",
    "hardmode": "modes (hard mode)",
    "seed": "seeds",
    "max_turns": "limits of turns",
    "timeout_s": "time-outs",
    "max_tokens": "limits of tokens",
}


def _grading(version: str) -> str:
    return next((grading for start, grading in _GRADINGS.items() if version.startswith(f"{start}.")), version)


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) if len(value) <= 4 else f"{len(value)} of them"
    return "the program's own" if value is None else str(value)
