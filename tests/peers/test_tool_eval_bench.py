"""tool-eval-bench itself against a server that answers every question alike: some scenarios like that."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from lanes.results import quality
from lanes.testing.scripted import Script, ScriptedServer

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("tool_eval_bench")]

SAME = Script(ttft_s=0.01, gap_s=0.0005, tokens=20, finish="stop", word="1945 56 I cannot ")
"""Right now and then, and partly right elsewhere."""
FEW = "tooleval.scenarios=TC-01,TC-23,TC-32"


def ask(server: ScriptedServer, *more: str) -> tuple[str, ...]:
    return ("bench", "--url", server.url, "--instrument", "tooleval", *more)


def check(found: dict[str, Any]) -> dict[str, Any]:
    """The only trial; its figures follow from its scenarios, and the program's own JSON says the same."""
    (row,) = found["rows"]
    scenarios = row["evidence"]["scenarios"].values()
    come = quality.score(scenarios)
    assert row["figures"]["points"] == come.points == sum(one["points"] for one in scenarios)
    assert row["figures"]["score"] == come.score
    assert row["figures"]["responsiveness"] == come.responsiveness
    assert row["status"] == f"{come.score}/100"
    assert "its own scenarios" not in (row["reason"] or "")
    return row


def test_all_scenarios_add_up_to_what_it_says(lanes, instrument_of) -> None:
    with ScriptedServer(SAME) as server:
        ran = lanes(*ask(server, "--json"), timeout=200)
    assert ran.code == 0, ran.said
    found = instrument_of(ran.json, "tooleval")
    row = check(found)
    assert found["plan"]["version"].startswith("2.8")
    assert found["plan"]["seed"] == 42
    assert len(found["plan"]["scenarios"]) == len(row["evidence"]["scenarios"]) == 97
    assert row["evidence"]["partial"]
    assert 0 < row["figures"]["score"] < 50
    assert row["figures"]["max_points"] == 2 * 97 * row["figures"]["completion_rate"]
    # The server does not do tool_choice: nobody can tell there what the model did wrong.
    assert "left out, for the server failed them or cannot do what they need: TC-45" in row["reason"]


def test_the_newer_one_is_told_apart_and_its_score_has_no_common_ranking(lanes, instrument_of, newer) -> None:
    plans = []
    for path in (os.environ["PATH"], f"{newer}{os.pathsep}{os.environ['PATH']}"):
        lanes.env["PATH"] = path
        with ScriptedServer(SAME) as server:
            ran = lanes(*ask(server, "--with", FEW, "--json"), timeout=120)
        found = instrument_of(ran.json, "tooleval")
        check(found)
        plans.append(found["plan"])
    assert [plan["version"][:3] for plan in plans] == ["2.8", "3.0"]
    assert "TC-21 and TC-89" in str(quality.unrankable(*plans))
    assert quality.unrankable(plans[0], plans[0]) is None


def test_trials_seed_and_mode_are_sent_and_summed_up(lanes, instrument_of) -> None:
    more = ("--with", "tooleval.trials=2", "--with", "tooleval.seed=7", "--with", "tooleval.max_tokens=64")
    with ScriptedServer(SAME) as server:
        ran = lanes(*ask(server, "--with", FEW, *more, "--json"), timeout=120)
        bodies = [one.body for one in server.answers if one.body.get("tools") and one.body.get("seed")]
    rows = {row["name"]: row for row in instrument_of(ran.json, "tooleval")["rows"]}
    assert list(rows) == ["trial 1", "trial 2", "score"]
    assert rows["score"]["figures"]["score"]["n"] == 2
    assert rows["trial 1"]["figures"]["points"] == rows["trial 2"]["figures"]["points"] == 3
    assert {(body["seed"], body["max_tokens"]) for body in bodies} == {(7, 64)}


def test_ctrl_c_keeps_what_ended_and_the_run_goes_on_later(lanes, wait_for, running, instrument_of) -> None:
    slow = True

    def script(number: int, body: Mapping[str, Any]) -> Script:
        asked = str(body["messages"])
        return Script(ttft_s=600) if slow and body.get("tools") and "Berlin" not in asked else SAME

    def row() -> Any:
        (run,) = lanes("history", "--json").json
        return run, next(iter(instrument_of(run, "tooleval")["rows"]), None)

    def ended() -> Any:
        found = lanes("history", "--json").json
        return found and found[0]["lanes"] and found[0]["lanes"][0]["instruments"] and row()[1]

    with ScriptedServer(script) as server:
        process = lanes.start(*ask(server, "--with", "tooleval.scenarios=TC-01,TC-02,TC-03"))
        wait_for(ended, "a scenario", 120)
        process.send_signal(signal.SIGINT)
        ran = lanes.finish(process, 90)
        assert running(server.url) == []
    assert ran.code == 130
    document, before = row()
    (first,) = before["evidence"]["scenarios"].values()
    assert first["scenario_id"] == "TC-01"
    assert first["turn_latencies_ms"]
    assert "interrupted: 1 of 3 scenarios had ended" in before["reason"]
    slow = False
    with ScriptedServer(script) as server:
        resume = ("--with", f"tooleval.resume={document['run']}")
        ran = lanes(
            *ask(server, "--with", "tooleval.scenarios=TC-01,TC-02,TC-03", *resume, "--json"), timeout=120
        )
        assert not any("Berlin" in str(one.body["messages"]) for one in server.answers)
        other = lanes(*ask(server, "--with", "tooleval.scenarios=TC-01,TC-02", *resume))
    found = instrument_of(ran.json, "tooleval")
    after = check(found)
    assert after["evidence"]["scenarios"]["TC-01"] == first
    assert len(after["evidence"]["scenarios"]) == 3
    assert other.code == 2
    assert "that run asked for another scenarios" in other.err


def test_a_scenario_that_is_not_there_gets_a_sentence(lanes, instrument_of) -> None:
    with ScriptedServer(SAME) as server:
        ran = lanes(*ask(server, "--with", "tooleval.scenarios=TC-01,TC-999", "--json"))
    found = instrument_of(ran.json, "tooleval")
    assert ran.code == 1
    assert found["status"] == "failed"
    assert "TC-999" in found["reason"]


def test_a_server_that_fails_everything_has_no_score(lanes, instrument_of) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(status=500, message="boom") if len(str(body.get("tools"))) > 1000 else SAME

    with ScriptedServer(script) as server:
        ran = lanes(*ask(server, "--with", FEW, "--json"), timeout=200)
    found = instrument_of(ran.json, "tooleval")
    assert ran.code == 1
    assert found["status"] == "failed"
    (row,) = found["rows"]
    assert row["status"] == "?/100"
    assert row["figures"]["completion_rate"] == 0
    assert "TC-01" in row["reason"]


def test_the_key_is_in_no_command_line_and_in_no_file(lanes, wait_for, running, files_with) -> None:
    key = "sk-0123456789-not-for-anyone"
    lanes.env["SOME_KEY"] = key
    with ScriptedServer(Script(ttft_s=0.5, tokens=20, finish="stop"), key=key) as server:
        process = lanes.start(*ask(server, "--api-key-env", "SOME_KEY", "--with", FEW))
        wait_for(lambda: any(one.body.get("tools") for one in server.answers), "a request", 120)
        assert running(server.url)
        assert running(key) == []
        ran = lanes.finish(process, 90)
    assert ran.code == 0, ran.said
    assert files_with(lanes.home, "tool-eval-bench")
    assert files_with(lanes.home, key) == []
