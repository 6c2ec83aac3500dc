"""`lanes rehearse`: what a launch would take long to find out, in minutes; kept as observed, and nothing is left."""

from __future__ import annotations

import signal

import pytest
from lanes.rehearsal import network
from lanes.rehearsal.network import Peer, meet


def steps(ran):
    """The steps of a rehearsal's result: name -> status, and name -> reason."""
    (lane,) = ran.json["lanes"]
    found = lane["rehearsal"]
    return {one["name"]: one["status"] for one in found}, {one["name"]: one["reason"] for one in found}


def findings(echo, question):
    found = echo("check", "echo", "--json").json["findings"]
    return [one for one in found if one["question"].startswith(question)]


def test_every_step_is_told_as_it_ends_and_what_was_seen_is_observed(echo):
    ran = echo("rehearse", "echo", "--set", "load_seconds=600")
    assert ran.code == 0, ran.said
    told = {line.split()[0]: line.split()[1] for line in ran.out.splitlines() if " s  " in line}
    assert list(told) == ["check", "image", "flags", "kernels", "network", "start", "answer", "stop"]
    assert {name for name, status in told.items() if status != "ok"} == {"network"}
    assert "ready with dummy true" in ran.out, "with its weights it would load for ten minutes"
    assert "6 * 7 = 42" in ran.out

    (seen,) = findings(echo, "rehearsal")
    assert (seen["verdict"], seen["evidence"]) == ("runnable", "observed")
    assert "echo was rehearsed on no GPU" in seen["reason"]
    (run,) = echo("history", "--json").json
    assert seen["source"] == f"run {run['run']}" and seen["date"]
    assert run["command"] == "rehearse" and run["lanes"][0]["status"] == "rehearsed"
    assert not echo.processes()


@pytest.mark.parametrize(
    ("setting", "failing", "reason"),
    [
        ('extra_args=["--frobnicate"]', "flags", "unrecognized arguments: --frobnicate"),
        ("fail_kernels=true", "kernels", "echo was told to have no kernel for the device"),
        ("die_while_loading=true", "start", "exited with code 3 while loading: echo ran out of the memory"),
        ("status_500_after=1", "answer", "this server was told to fail"),
    ],
)
def test_a_step_that_fails_says_why_and_a_check_shows_it_until_it_was_rehearsed_again(
    echo, setting, failing, reason
):
    ran = echo("rehearse", "echo", "--set", setting, "--json")
    assert ran.code == 1
    status, reasons = steps(ran)
    assert status[failing] == "failed" and reason in reasons[failing], reasons
    names = list(status)
    after = names[names.index(failing) + 1 :]
    assert {status[name] for name in after if name != "stop"} <= {"skipped"}
    (lane,) = ran.json["lanes"]
    assert lane["reason"].startswith(f"{failing}: ") and lane["next_step"]
    assert not echo.processes()

    found = findings(echo, ("rehearsal", "crashes"))
    assert len(found) == 1, "a rehearsal is no launch of the lane: it did not crash"
    (seen,) = found
    assert seen["question"] == f"rehearsal of {failing}" and seen["verdict"] == "degraded"
    assert reason in seen["reason"] and seen["source"] == f"run {ran.json['run']}" and seen["date"]


def test_keep_going_tries_what_does_not_need_the_step_that_failed(echo):
    ran = echo("rehearse", "echo", "--set", "fail_kernels=true", "--keep-going", "--json")
    assert ran.code == 1
    status, _ = steps(ran)
    assert (status["kernels"], status["start"], status["answer"]) == ("failed", "ok", "ok")
    assert ran.json["lanes"][0]["reason"].startswith("kernels: ")


def test_an_engine_that_says_nothing_of_rehearsals_is_told_as_such(lanes, site, sleepy, tmp_path):
    site("lanes-sleepy", "sleepy_plugin", sleepy, {"sleepy": "lanes.engines"})
    recipe = tmp_path / "sleepy.toml"
    recipe.write_text('name = "s"\nengine = "sleepy"\n[model]\nname = "m"\n')
    ran = lanes("rehearse", str(recipe), "--json")
    assert ran.code == 0, ran.said
    status, reasons = steps(ran)
    for name in ("flags", "kernels", "start", "answer"):
        assert status[name] == "not possible"
    assert "does not say how" in reasons["flags"]


CANNOT = """
import attrs
import sys
import lanes

LANES_CONTRACT = 1


@lanes.hookimpl(wrapper=True)
def lanes_rehearsal(lane, launch):
    plan = yield
    code = "print('this build has no parser to ask'); raise SystemExit(69)"
    slow = lanes.Trial(argv=(sys.executable, "-c", "import time; time.sleep(99)"), deadline_s=0.5)
    return attrs.evolve(plan, flags=(lanes.Trial(argv=(sys.executable, "-c", code)),), kernels=slow)
"""


def test_what_a_program_cannot_try_is_no_failure_and_one_that_hangs_is_ended(echo, site):
    site("cannot", "cannot_plugin", CANNOT, {"cannot": "lanes.extensions"})
    ran = echo("rehearse", "echo", "--json")
    status, reasons = steps(ran)
    assert (status["flags"], reasons["flags"]) == ("not possible", "this build has no parser to ask")
    assert (status["kernels"], reasons["kernels"]) == ("failed", "it did not end within 0.5 s")
    assert not echo.processes()


def test_a_dry_run_shows_what_each_step_would_do_and_does_nothing(echo):
    ran = echo("rehearse", "echo", "--dry-run")
    assert ran.code == 0
    for word in (
        "rehearse flags: ",
        "--check-flags",
        "rehearse kernels: ",
        "rehearse start: with dummy true",
    ):
        assert word in ran.out
    planned = echo("rehearse", "echo", "--dry-run", "--json").json["rehearsal"]
    assert {"step": "network", "does": "not possible: one node"} in planned
    assert echo("history", "--json").json == []


def test_what_dummy_weights_do_without_need_not_be_brought(echo, tmp_path):
    recipe = tmp_path / "staged.toml"
    recipe.write_text(
        'name = "staged"\nengine = "echo"\n[model]\nname = "m"\n'
        f'[[staging]]\nname = "rows"\nsource = "/no/such/rows"\ntarget = "{tmp_path}/rows"\n'
    )
    assert "/no/such/rows" in echo("rehearse", str(recipe)).out
    ran = echo("rehearse", str(recipe), "--without", "rows", "--json")
    assert ran.code == 0, ran.said
    assert steps(ran)[1]["image"] == "not brought: rows"
    wrong = echo("rehearse", str(recipe), "--without", "row")
    assert wrong.code == 2 and "it has rows" in wrong.err


def test_a_lane_that_cannot_run_is_not_rehearsed(lanes, site, sleepy, tmp_path):
    no = sleepy.replace("Verdict.RUNNABLE", "Verdict.UNRUNNABLE")
    site("lanes-sleepy", "sleepy_plugin", no, {"sleepy": "lanes.engines"})
    recipe = tmp_path / "sleepy.toml"
    recipe.write_text('name = "s"\nengine = "sleepy"\n[model]\nname = "m"\n')
    ran = lanes("rehearse", str(recipe), "--json")
    assert ran.code == 3
    status, _ = steps(ran)
    assert status.pop("check") == "failed"
    assert set(status.values()) <= {"skipped", "not possible"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_rehearsal_that_is_killed_or_interrupted_leaves_nothing(echo, site, wait_for, number):
    site("cannot", "cannot_plugin", CANNOT.replace("=0.5", "=60"), {"cannot": "lanes.extensions"})
    run = echo.start("rehearse", "echo")
    tried = "trying its kernels"
    wait_for(lambda: any(one["phase"] == tried for one in echo.records()), tried)
    wait_for(lambda: list(echo.home.glob("lanes/*/rank0/pid.json")), "the program")
    run.send_signal(number)
    assert echo.finish(run).code == (130 if number == signal.SIGINT else -9)
    wait_for(lambda: not echo.processes(), "the keeper to end it")
    (past,) = echo("history", "--json").json
    assert past["lanes"][0]["status"] == "interrupted"
    if number == signal.SIGKILL:
        assert past["lanes"][0]["reason"] == "lanes was killed while trying its kernels"


# -- the network of the ranks -----------------------------------------------------------------------


def test_nodes_that_reach_each_other():
    met = meet([Peer(name="a", address="127.0.0.1", interface="lo"), Peer(name="b", address="127.0.0.2")])
    assert met.problems == ()
    assert met.pairs == 2
    assert 0 < met.round_trip_s < 5


def test_an_address_that_a_node_does_not_have_and_an_interface_that_is_another():
    met = meet(
        [
            Peer(name="a", address="127.0.0.1"),
            Peer(name="b", address="192.0.2.7"),
            Peer(name="c", address="127.0.0.3", interface="no-such-if"),
        ]
    )
    said = "; ".join(met.problems)
    assert "b cannot listen on 192.0.2.7: it has no such address" in said
    assert "c: there is no interface no-such-if; it has" in said and "lo" in said
    assert met.pairs == 2, "the others reach each other all the same"


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("refused", "refuses connections"),
        ("unreachable", "has no way to"),
        ("timed-out", "does not answer"),
        ("large-lost", "MTU"),
        ("another", "another machine answers"),
    ],
)
def test_each_way_in_which_nodes_do_not_meet_has_its_sentence(outcome, word):
    result = {"name": "b", "outcome": outcome, "said": "No route to host"}
    said = network._sentence(Peer(name="a", address="10.0.0.1"), result, {"b": "10.0.0.2"})
    assert word in said and "10.0.0.2" in said
