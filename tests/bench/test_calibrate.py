"""The envelope of the client on this machine: how it is found, kept, and held against a cell."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from lanes import paths
from lanes.bench.arrivals import Arrival
from lanes.bench.calibration import calibrate, envelope
from lanes.bench.calibration.calibrate import Bench, Load
from lanes.bench.calibration.envelope import CellError, made
from lanes.bench.calibration.metronome import Metronome
from lanes.bench.stream import Stream
from lanes.bench.tape import Tape
from lanes.cli.calibrate import command

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the metronome is Linux's")
GOOD = CellError(
    concurrency=64,
    streams=192,
    ttft_s=0.0001,
    ttft_p99_s=0.001,
    decode=0.0001,
    late_s=0.001,
    events_per_s=6400.0,
    cpu_us=12.0,
)
SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANES_HOME", str(tmp_path))
    return tmp_path


def streams(count: int, events: int = 100, apart_s: float = 0.0, lasts_s: float = 1.0) -> list[Stream]:
    """Streams of a second, all at once or one after the other."""
    step = round(lasts_s * SECOND / events)
    arrivals = tuple(Arrival(step * (n + 1), "content", 5) for n in range(events))
    return [
        Stream(t0_ns=SECOND * 1000 + round(n * apart_s * SECOND), arrivals=arrivals) for n in range(count)
    ]


@pytest.mark.parametrize(
    ("off", "missed"),
    [
        ({}, None),
        ({"ttft_s": 0.0019}, None),
        ({"ttft_s": 0.0021}, "TTFT was 2.10 ms off, more than 2.00 ms"),
        ({"decode": 0.006}, "decode was 0.60% off, more than 0.5%"),
        ({"ttft_p99_s": 0.012}, "one TTFT in a hundred was 12.0 ms off, more than 10 ms"),
        ({"ttft_p99_s": 0.012, "concurrency": 16}, None),
    ],
)
def test_the_goals_of_a_cell(off: dict[str, Any], missed: str | None) -> None:
    judged = calibrate._judged(attrs.evolve(GOOD, **off), truth_s=0.2, failure=None)
    assert judged.missed == missed


def test_a_failed_stream_is_a_missed_goal() -> None:
    judged = calibrate._judged(GOOD, truth_s=0.2, failure="the stream was cut")
    assert judged.missed == "a stream failed: the stream was cut"


def test_what_was_found_is_kept_with_its_date_host_and_versions() -> None:
    assert envelope.envelope() is None
    found = made([GOOD], 50_000.0, "metronome")
    envelope.keep(found)
    assert envelope.envelope() == found
    kept = json.loads(paths.calibration().read_text())
    assert kept["schema"] == "lanes.calibration/1"
    assert {"date", "host", "cpus", "versions", "cells", "events_per_s"} < kept.keys()
    assert found.date in found.name and found.host in found.name and "64 streams" in found.name
    assert [path.name for path in paths.calibration().parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"cpus": 999}, {"versions": {"lanes": "0"}}])
def test_a_calibration_of_another_machine_or_version_is_none(change: dict[str, Any]) -> None:
    envelope.keep(attrs.evolve(made([GOOD], 50_000.0, "client"), **change))
    assert envelope.envelope() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "lanes.calibration/1"}', '{"schema": "other/9"}']
)
def test_a_file_that_holds_something_else_is_no_calibration(text: str) -> None:
    paths.calibration().write_text(text)
    assert envelope.envelope() is None


def test_a_cell_beyond_the_envelope_names_the_client_as_the_bottleneck() -> None:
    found = made([GOOD], 10_000.0, "client")
    assert found.beyond(streams(64)) is None
    assert found.beyond([]) is None
    too_many = found.beyond(streams(65)) or ""
    assert "the client was the bottleneck: 65 streams at once, where it is calibrated for 64" in too_many
    too_fast = found.beyond(streams(60, events=400)) or ""
    assert "the client was the bottleneck: 24," in too_fast and "calibrated for 10,000" in too_fast


def test_streams_after_each_other_are_not_at_once() -> None:
    found = made([attrs.evolve(GOOD, concurrency=1)], 10_000.0, "client")
    assert found.beyond(streams(50, apart_s=1.01)) is None
    assert found.beyond(streams(50, apart_s=0.99)) is not None


def test_streams_beyond_a_missed_goal_are_not_calibrated() -> None:
    cells = [attrs.evolve(GOOD, concurrency=n, missed="late" if n == 64 else None) for n in (256, 64, 16, 1)]
    assert made(cells, 1.0, "client").concurrency == 16
    assert made([attrs.evolve(GOOD, missed="late")], 1.0, "client").concurrency == 0


@LINUX
def test_a_client_that_reads_late_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel's stamps, and with reads that are delayed."""

    take = Tape.take

    def late(self: Tape, data: bytes, stamp: bytes, read_ns: int) -> None:
        time.sleep(0.004)
        take(self, data, b"", time.time_ns())

    with Metronome() as metronome:
        bench = Bench(metronome)
        load = Load(tokens=16, ttft_s=0.1, gap_s=0.02, passes=1)
        asyncio.run(bench.cell(4, load))
        monkeypatch.setattr(Tape, "take", late)
        cell = asyncio.run(bench.cell(4, load))
    assert cell.missed and "TTFT was" in cell.missed


@LINUX
def test_the_command_shows_the_errors_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_GAPS_S", (0.02,))
    monkeypatch.setattr(calibrate, "_STEP_S", 0.4)
    monkeypatch.setattr(calibrate, "_FEW", 0)
    ran = CliRunner().invoke(command, ["--concurrency", "2,1", "--json"], standalone_mode=False)
    assert ran.exception is None
    document = json.loads(ran.stdout)
    assert [cell["concurrency"] for cell in document["cells"]] == [1, 2]
    assert all(
        cell["streams"] == 3 * cell["concurrency"] and cell["cpu_us"] > 0 for cell in document["cells"]
    )
    assert document["events_per_s"] >= 0 and document["limited_by"] in ("client", "metronome")
    assert ran.return_value == int(any(cell["missed"] for cell in document["cells"]))
    kept = envelope.envelope()
    assert kept and [cell.concurrency for cell in kept.cells] == [1, 2]


def test_a_number_of_streams_that_is_none_is_a_usage_error() -> None:
    ran = CliRunner().invoke(command, ["--concurrency", "0"], standalone_mode=False)
    assert getattr(ran.exception, "exit_code", None) == 2
