"""Passes go on until the headline figures are known well enough, or a budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from lanes.bench.cells import CellResult, Pass
from lanes.bench.plan import Cell, Limits, Plan
from lanes.bench.probe import measure
from lanes.bench.until import Until, widths
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

pytestmark = pytest.mark.usefixtures("patient")


def passes(decode: Sequence[float], prefill: float = 1000.0) -> list[Pass]:
    cell = Cell(pp=1, tg=1)
    return [
        Pass(
            cell=cell,
            number=n,
            warmup=False,
            streams=(),
            figures={"prefill_tps": prefill, "decode_tps": rate},
        )
        for n, rate in enumerate(decode, 1)
    ]


def made(until: Until, found: Sequence[Pass]) -> int:
    """After how many passes it was enough."""
    return next(n for n in range(1, len(found) + 1) if until.enough(found[:n]))


def test_without_it_the_passes_are_as_many_as_asked_for() -> None:
    until = Until(Plan(passes=3))
    assert made(until, passes([1, 2, 3, 4])) == 3 and until.note is None


def test_narrow_intervals_end_it_but_not_before_there_are_intervals() -> None:
    until = Until(Plan(until=0.03, passes=2))
    assert made(until, passes([100.0] * 20)) == 6
    assert until.note == "ended after 6 passes, for the intervals were within 3% of the medians"


def test_the_worst_side_of_the_worst_figure_counts() -> None:
    got = widths(passes([90, 100, 100, 100, 100, 100]))
    assert got == {"prefill_tps": 0.0, "decode_tps": pytest.approx(0.1)}


def test_the_most_passes_end_it_and_what_is_still_wide_is_said() -> None:
    until = Until(Plan(until=0.03, max_passes=8))
    assert made(until, passes([80, 120] * 6)) == 8
    assert until.note == "ended after 8 passes, the most that were allowed; decode is still within 20% only"


def test_a_budget_ends_it() -> None:
    until = Until(Plan(until=0.03, budget_s=1e-9))
    assert made(until, passes([80, 120] * 6)) == 1
    assert until.note and until.note.startswith("ended after 1 pass, for the budget of 1e-09 s was spent")


def test_no_interval_makes_up_for_a_failure() -> None:
    failed = [Pass(cell=Cell(pp=1, tg=1), number=1, warmup=False, streams=(), error="it broke")]
    until = Until(Plan(until=0.03, passes=3))
    assert made(until, failed + passes([100.0] * 9)) == 3 and until.note is None


def cell(**plan: Any) -> CellResult:
    with ScriptedServer(Script(ttft_s=0.1, gap_s=0.05)) as server:
        endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
        quick = {"pp": 200, "tg": 4, "warmups": 1, "passes": 1, "limits": Limits(connect_s=2)}
        return measure(endpoint, Plan(**(quick | plan)))[0]


def test_a_cell_says_what_ended_it() -> None:
    wide = cell(until=0.99)
    assert wide.status == "ok", wide.reason
    assert wide.metrics["ttft_s"].n == 6
    assert any(note.startswith("ended after 6 passes, for the intervals") for note in wide.notes)
    brief = cell(until=0.0001, max_passes=3)
    assert brief.status == "ok", brief.reason
    assert brief.metrics["ttft_s"].n == 3
    assert any("the most that were allowed" in note for note in brief.notes)
