"""A boot that failed for a cause that passes is tried again; any other is not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import jsonschema
import pytest

SCHEMA = Path(__file__).parent.parent / "docs" / "result.schema.json"
QUICK = ("--pp", "96", "--tg", "24", "--passes", "1", "--warmups", "1")
SAID = "attempt 2 of 2: the process exited with code 4 while loading: echo made way for a neighbour"


@pytest.fixture
def once(tmp_path):
    """A file that is not there: the first boot dies of its want, and makes it."""
    return tmp_path / "once"


def test_the_second_attempt_serves_and_both_are_told(echo, once):
    ran = echo("run", "--engine", "echo", "--set", f"die_once={once}", *QUICK, "--json")
    assert ran.code == 0, ran.said
    assert SAID in " ".join(ran.err.split())
    jsonschema.validate(ran.json, json.loads(SCHEMA.read_text()))
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "measured"
    first, second = lane["attempts"]
    assert (first["number"], first["of"], first["status"]) == (1, 2, "crashed")
    assert first["causes"][0]["name"] == "neighbour" and first["causes"][0]["transient"]
    assert "error: a neighbour is in the way" in first["log"][0]
    assert (second["number"], second["status"], second["causes"]) == (2, "ready", [])
    phases = [one["phase"] for one in lane["boot"]]
    assert phases[-6:] == ["launching", "loading", "retrying", "launching", "loading", "measuring"]


def test_what_the_first_attempt_printed_is_kept(echo, once):
    served = echo("serve", "--engine", "echo", "--set", f"die_once={once}", "--json")
    assert served.code == 0, served.said
    assert SAID in " ".join(served.err.split())
    folder = echo.home / "lanes" / served.json["id"]
    assert "a neighbour is in the way" in (folder / "launch1" / "rank0" / "log").read_text()
    assert "a neighbour is in the way" not in echo("logs", served.json["id"]).out
    assert echo("stop").code == 0
    assert not echo.processes()


def test_attempts_have_an_end(echo, tmp_path):
    gone = tmp_path / "no-folder" / "once"
    ran = echo("run", "--engine", "echo", "--set", f"die_once={gone}", "--retries", "2", *QUICK)
    assert ran.code == 1
    assert [f"attempt {n} of 3" in ran.err for n in (1, 2, 3, 4)] == [False, True, True, False]
    assert "a neighbour that it pretends to have (attempt 3 of 3)" in ran.said
    (run,) = echo("history", "--json").json
    assert [one["status"] for one in run["lanes"][0]["attempts"]] == ["crashed"] * 3


def test_no_retries_when_told_so(echo, once):
    ran = echo("run", "--engine", "echo", "--set", f"die_once={once}", "--retries", "0", *QUICK, "--json")
    assert ran.code == 1
    assert [one["of"] for one in ran.json["lanes"][0]["attempts"]] == [1]
    assert "attempt" not in ran.err


def test_a_cause_that_stays_is_never_tried_again(echo, once):
    ran = echo(
        "run", "--engine", "echo", "--set", "die_while_loading=true", "--retries", "5", *QUICK, "--json"
    )
    assert ran.code == 1
    (attempt,) = ran.json["lanes"][0]["attempts"]
    assert [cause["transient"] for cause in attempt["causes"]] == [False]


def test_an_unknown_cause_is_never_tried_again(lanes, sleepy, site):
    source = sleepy.replace("time.sleep(99)", "time.sleep(0.2); sys.exit(5)").replace(
        '"import time', '"import sys, time'
    )
    source = source.replace("Ladder(rungs=())", 'Ladder(rungs=(LogRung(name="never", pattern="never"),))')
    site("sleeper", "sleeper_engine", source, {"sleeper_engine": "lanes.engines"})
    ran = lanes("serve", "--engine", "sleeper_engine", "--retries", "5", "--recipe", _recipe(lanes))
    assert ran.code == 1 and "attempt" not in ran.said
    assert "exited with code 5" in ran.said


def _recipe(lanes):
    lanes.home.mkdir(exist_ok=True)
    file = lanes.home / "r.toml"
    file.write_text('name = "r"\nengine = "sleeper_engine"\n[model]\nname = "m"\n')
    return str(file)


def test_ctrl_c_ends_the_second_attempt_as_it_does_the_first(echo, once, wait_for):
    run = echo.start("serve", "--engine", "echo", "--set", f"die_once={once}", "--set", "load_seconds=30")
    wait_for(lambda: list(echo.home.glob("lanes/*/launch1")) and echo.processes(), "the second attempt")
    run.send_signal(signal.SIGINT)
    ran = echo.finish(run)
    assert ran.code == 130
    assert not echo.processes()
    assert [record["ending"]["status"] for record in echo.records()] == ["interrupted"]
