"""Figures are computed anew from what was kept, and what differs is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from lanes.bench import measures
from lanes.bench.codec import as_json
from lanes.bench.plan import Plan
from lanes.bench.probe import measure
from lanes.bench.recompute import differences, lines, recompute
from lanes.bench.slo import Slo
from lanes.bench.timelines import without
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

pytestmark = pytest.mark.usefixtures("patient")

LOADS = {
    "burst": {"concurrency": 2, "passes": 2},
    "one stream": {"passes": 2, "depth": 300},
    "closed": {"load": "closed", "concurrency": 2, "requests": 10, "passes": 2},
    "open": {"load": "open", "rate": 50.0, "requests": 10},
}


def measured(**given: Any) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """A cell, its plan and its batches, as a store gives them back."""
    batches: list[dict[str, Any]] = []
    plan = Plan(**({"pp": 96, "tg": 16, "passes": 1, "warmups": 1, "slo": Slo(ttft_s=5)} | given))
    script = Script(ttft_s=0.01, gap_s=0.002, tokens_per_delta=2, prefix_cache=True)
    with ScriptedServer(script) as server:
        endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
        (cell,) = measure(endpoint, plan, on_batch=lambda batch: batches.append(as_json(batch)))
    assert cell.status == "ok", cell.reason
    kept: tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]
    document = as_json(evolve(cell, passes=())) | {"passes": [without(one) for one in cell.passes]}
    kept = json.loads(json.dumps([document, as_json(plan), batches]))
    return kept


@pytest.mark.parametrize("load", LOADS)
def test_the_same_definitions_give_the_same_figures(load: str) -> None:
    cell, plan, batches = measured(**LOADS[load])
    now = recompute(cell, plan, batches)
    assert list(differences(cell, now)) == []
    assert as_json(now.metrics) == cell["metrics"]
    assert {"ttft_s", "slo_share", "goodput_rps"} <= now.metrics.keys()
    assert now.status == "ok" and list(now.notes) == cell["notes"]


@pytest.mark.parametrize("load", ["one stream", "closed"])
def test_a_definition_that_changed_shows(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, plan, batches = measured(**LOADS[load])
    monkeypatch.setattr(measures, "ttft_s", lambda stream: 7.0)
    changed = {d.metric: d for d in differences(cell, recompute(cell, plan, batches))}
    assert {"ttft_s", "slo_share", "goodput_rps"} <= changed.keys() and "decode_tps" not in changed
    now = changed["ttft_s"].now
    assert now and now.median == 7.0
    (line,) = lines("a lane", [changed["ttft_s"]])
    assert line.startswith("a lane: ttft_s was 0.0") and line.endswith("now 7 (n 2)")


@pytest.mark.parametrize("load", ["burst", "closed"])
def test_timelines_that_are_not_all_there_leave_the_figures_as_they_were(load: str) -> None:
    cell, plan, batches = measured(**LOADS[load])
    assert list(differences(cell, recompute(cell, plan, batches[1:]))) == []


def test_a_cell_of_an_older_program_that_knew_neither_shapes_nor_loads() -> None:
    cell, plan, batches = measured(**LOADS["burst"])
    for name in ("shape", "load", "rate", "requests"):
        del cell[name]
        for one in cell["passes"]:
            one.pop(name, None)
    del plan["slo"]
    gone = {d.metric for d in differences(cell, recompute(cell, plan, batches))}
    assert gone == {"slo_share", "goodput_rps"}
