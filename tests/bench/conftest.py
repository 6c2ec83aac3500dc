"""No calibration of the machine that runs the tests has a say in them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANES_HOME", str(tmp_path))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about the client's being late, which it is on a busy machine."""
    monkeypatch.setattr("lanes.bench.validity._LATE_S", 0.5)
    monkeypatch.setattr("lanes.bench.tally._LATE_S", 0.5)
