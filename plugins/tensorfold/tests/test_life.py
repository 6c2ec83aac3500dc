"""The whole life of a lane over two ranks, with a stand-in for TensorFold as real processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lanes import nodes, paths
from lanes.bench.smoke import smoke
from lanes.errors import LaneError
from lanes.executors import process
from lanes.journal import Journal
from lanes.lifecycle import Attempt, Bound, Outcome
from lanes.plugins import Plugins
from lanes.results.store import Store
from lanes.types import Lane, Model

STAND_IN = (sys.executable, str(Path(__file__).parent / "stand_in.py"), "serve")
NOT_OF_THE_TEST = {"sm", "nodes", "free-memory", "patches", "cluster", "program", "executor"}
"""Questions about the machine of the tests, which is no pair of Sparks, and about the stand-in."""


@pytest.fixture
def attempt(
    lane_of: Callable[..., Lane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Attempt]:
    monkeypatch.setenv("LANES_HOME", str(tmp_path))
    model = Model(name="DeepSeek-V4.1-toy", repo="org/toy")
    lane = lane_of(model=model, nodes=2, context=4096, command=STAND_IN)
    with Store(paths.history()) as store:
        bound = Bound(lane=lane, engine=Plugins().engine("tensorfold"))
        attempt = Attempt(bound, nodes.here(), Journal(store, lambda kind, data: None))
        try:
            yield attempt
        finally:
            attempt.stop(Outcome(status="measured"))


def test_it_serves_fails_fast_and_leaves_nothing(attempt: Attempt) -> None:
    endpoint = attempt.up(despite=NOT_OF_THE_TEST)
    assert endpoint is not None and endpoint.dialect.name == "tensorfold"
    assert attempt.record is not None
    assert sorted(f.name for f in attempt.record.folder.glob("rank*")) == ["rank0", "rank1"]
    attempt.enter("measuring")
    with pytest.raises(LaneError):
        smoke(endpoint, max_tokens=8)
    deadline = time.monotonic() + 5
    while attempt.death() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    outcome = attempt.failed(LaneError("the stream ended early"))
    assert outcome.status == "crashed" and [cause.name for cause in outcome.causes] == ["fail-fast"]
    assert outcome.causes[0].transient and outcome.causes[0].lines == ("IndexError: page 9 of 8",)
    attempt.stop(outcome)
    assert process.survivors(attempt.record.folder) == []
