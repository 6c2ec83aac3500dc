"""The part of the suite that runs the engine: it serves, it is stopped, it is found dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lanes import nodes, paths
from lanes.bench.smoke import smoke
from lanes.errors import LaneError
from lanes.executors import process
from lanes.journal import Journal
from lanes.lifecycle import Attempt, Bound, Outcome
from lanes.results.store import Store

_ENDED = Outcome(status="measured")
_NOTICED_S = 10.0


class ServingTests:
    """Skipped where the suite names no recipe (`bound` skips)."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """The folder that `LANES_HOME` names; override it to share large staged files."""
        return tmp_path

    @pytest.fixture
    def attempt(self, bound: Bound, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
        """A lane that is about to be started, and is stopped whatever the test does."""
        monkeypatch.setenv("LANES_HOME", str(home))
        with Store(paths.history()) as store:
            attempt = Attempt(bound, nodes.here(), Journal(store, lambda kind, data: None))
            try:
                yield attempt
            finally:
                attempt.stop(_ENDED)

    def test_serves_and_is_stopped(self, attempt: Attempt) -> None:
        """The whole life of a lane: it becomes ready, answers a stream whose tokens it counts, and leaves
        no process and a free port. Stopping what has stopped does no harm."""
        endpoint = attempt.up()
        assert endpoint is not None
        stream = smoke(endpoint, max_tokens=8)
        assert stream.usage is not None, "the stream has no usage block, though stream_options asked for it"
        assert 0 < (stream.completion_tokens or 0) <= 8
        assert stream.prompt_tokens
        assert attempt.death() is None
        assert attempt.record is not None
        folder = attempt.record.folder
        assert process.survivors(folder), "the lane's processes are not among those that lanes started"
        for _ in range(2):
            assert attempt.stop(_ENDED) == _ENDED
            assert process.survivors(folder) == []
        address = urlsplit(endpoint.url)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.hostname, address.port))

    def test_a_killed_server_is_found_dead(self, attempt: Attempt) -> None:
        """A server that dies is told from one that is slow, at once, and the lane is a crash."""
        attempt.up()
        attempt.enter("measuring")
        assert attempt.record is not None
        pid = json.loads((attempt.record.folder / "rank0" / "pid.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _NOTICED_S
        while attempt.death() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "SIGKILL" in (attempt.death() or "")
        outcome = attempt.failed(LaneError("the stream ended early"))
        assert outcome.status == "crashed"
        assert "SIGKILL" in outcome.reason and "measuring" in outcome.reason
        assert attempt.stop(outcome) == outcome
        assert process.survivors(attempt.record.folder) == []
