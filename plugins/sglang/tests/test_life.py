"""The whole life of a lane over two ranks, with a stand-in for SGLang as real processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lanes import nodes, paths
from lanes.bench.smoke import smoke
from lanes.errors import LaneError, Unrunnable
from lanes.executors import process
from lanes.journal import Journal
from lanes.lifecycle import Attempt, Bound, Outcome
from lanes.plugins import Plugins
from lanes.results.store import Store
from lanes.types import Lane

STAND_IN = (sys.executable, str(Path(__file__).parent / "stand_in.py"), "serve")
NOT_OF_THE_TEST = {"sm", "gpus", "cluster", "program", "driver", "host_arch"}
"""Questions about the machine of the tests, which is no cluster of two Sparks."""


@pytest.fixture
def attempt(
    lane_of: Callable[..., Lane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Attempt]:
    monkeypatch.setenv("LANES_HOME", str(tmp_path))
    lane = lane_of(
        nodes=2,
        tp_size=2,
        chunked_prefill_size=8192,
        command=STAND_IN,
        env={"SPARK_ENGRAM_MAX_IDS": "131072"},
    )
    with Store(paths.history()) as store:
        bound = Bound(lane=lane, engine=Plugins().engine("sglang"))
        attempt = Attempt(bound, nodes.here(), Journal(store, lambda kind, data: None))
        try:
            yield attempt
        finally:
            attempt.stop(Outcome(status="measured"))


def test_it_serves_dies_of_the_budget_and_leaves_nothing(attempt: Attempt) -> None:
    endpoint = attempt.up(despite={*NOT_OF_THE_TEST, "engram-prefill"})
    assert endpoint is not None and endpoint.model == "toy" and endpoint.dialect.name == "sglang"
    assert attempt.record is not None and attempt.launch_data is not None
    assert sorted(f.name for f in attempt.record.folder.glob("rank*")) == ["rank0", "rank1"]
    assert process.survivors(attempt.record.folder)
    attempt.enter("measuring")
    with pytest.raises(LaneError):
        smoke(endpoint, max_tokens=8)
    deadline = time.monotonic() + 5
    while attempt.death() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    outcome = attempt.failed(LaneError("the stream ended early"))
    assert outcome.status == "crashed" and [cause.name for cause in outcome.causes] == ["engram-ids"]
    assert 'SPARK_ENGRAM_MAX_IDS = "262144"' in outcome.causes[0].advice
    attempt.stop(outcome)
    assert process.survivors(attempt.record.folder) == []


def test_it_is_not_even_started(attempt: Attempt) -> None:
    with pytest.raises(Unrunnable, match="131,072") as refused:
        attempt.up(despite=NOT_OF_THE_TEST)
    assert "262144" in str(refused.value) and attempt.record is None
