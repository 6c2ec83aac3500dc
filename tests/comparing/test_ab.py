"""`lanes ab` over real launches of the example engine: planned, priced, resumed after anything, judged."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from lanes import ab
from lanes.cli.ab import _json, _values
from lanes.comparing import visits
from lanes.results.store import Store

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/result.schema.json").read_text())
QUICK = ("--pp", "32", "--tg", "8", "--passes", "2", "--warmups", "0", "--figure", "decode_tps")


def blocks(document):
    """How often each (block, side) was measured within the last attempt of its block."""
    lanes = [lane for lane in document["lanes"] if lane.get("block")]
    last = Counter()
    for lane in lanes:
        last[lane["block"]["number"]] = max(last[lane["block"]["number"]], lane["block"]["attempt"])
    return Counter(
        (lane["block"]["number"], lane["block"]["side"])
        for lane in lanes
        if lane["status"] == "measured" and lane["block"]["attempt"] == last[lane["block"]["number"]]
    )


def test_a_difference_is_found_and_its_one_cause_is_named(echo):
    ran = echo(
        "ab", "echo", "--set", "tokens_per_second=20,40", "--blocks", "6", *QUICK, "--json", timeout=300
    )
    assert ran.code == 0, ran.err
    (verdict,) = ran.json["verdicts"]
    assert (verdict["a"], verdict["b"]) == ("tokens_per_second=20", "tokens_per_second=40")
    assert verdict["judgement"]["word"] == "faster"
    assert verdict["judgement"]["paired"] and verdict["judgement"]["n_a"] == 6
    assert verdict["judgement"]["ratio"] == pytest.approx(2.0, rel=0.1)
    assert verdict["cause"] == "tokens_per_second 20 -> 40"
    assert "6 blocks are 12 launches" in ran.err

    document = echo("history", "show", ran.json["run"], "--json").json
    assert blocks(document) == {(n, side): 1 for n in range(1, 7) for side in "ab"}
    order = document["ab"]["order"]
    # Two blocks together read ABBA or BAAB.
    assert all({first, second} == {"ab", "ba"} for first, second in zip(order[::2], order[1::2], strict=True))
    for number, turn in enumerate(order, 1):
        by_attempt = {}
        for lane in in_block(document, number):
            by_attempt.setdefault(lane["block"]["attempt"], []).append(lane["block"]["side"])
        assert all(turn.startswith("".join(sides)) for sides in by_attempt.values())
    # Both lanes of a block got the same prompts, and each block others.
    prompts = {}
    for lane in document["lanes"]:
        plan = lane["instruments"][0]["plan"]
        where = (lane["block"]["number"], lane["block"]["attempt"])
        prompts.setdefault(where, set()).add((plan["comparison"], plan["block"]))
    assert all(len(one) == 1 for one in prompts.values())
    assert len(set.union(*prompts.values())) == len(prompts)

    again = echo("compare", ran.json["run"], "--json").json
    assert [v["judgement"]["word"] for v in again["verdicts"]] == ["faster"]


def in_block(document, number):
    return [lane for lane in document["lanes"] if lane.get("block", {}).get("number") == number]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_it_is_resumed_where_it_was(how, echo, wait_for):
    # Long enough that a busy machine sends the signal while the lane is measured.
    slow = (*QUICK, "--passes", "6")
    started = echo.start("ab", "echo", "--set", "tokens_per_second=10,20", "--blocks", "2", *slow)

    def under_way():
        # Read here and now: by the time that a command had told it, the block might be over.
        if not (echo.home / "history.sqlite").exists():
            return None
        with Store(echo.home / "history.sqlite") as store:
            found = list(store.recent(1))
        return found and in_block(found[0], 2) and found[0]

    run = wait_for(under_way, "the second block to begin", 120)["run"]
    os.kill(started.pid, how)
    _, said = started.communicate()
    wait_for(lambda: not echo.processes(), "the keeper to stop the engine")
    cut = echo("history", "show", run, "--json").json
    assert cut["lanes"][-1]["status"] == "interrupted", said
    assert cut["status"] == ("interrupted" if how is signal.SIGKILL else "done")

    ran = echo("ab", "--resume", run, "--json", timeout=180)
    assert ran.code == 0, ran.err
    assert "2 launches to do" in ran.err
    document = echo("history", "show", run, "--json").json
    assert (document["status"], document["exit_code"]) == ("done", 0)
    # The first block was kept, and the one that was cut begun anew.
    assert in_block(document, 1) == in_block(cut, 1)
    attempts = [lane["block"]["attempt"] for lane in in_block(document, 2)]
    assert attempts[0] == 1 and attempts[-1] > 1
    assert blocks(document) == {(n, side): 1 for n in (1, 2) for side in "ab"}
    (verdict,) = ran.json["verdicts"]
    # Two blocks can show nothing, however far apart the lanes are.
    assert (verdict["judgement"]["word"], verdict["judgement"]["n_a"]) == ("unresolved", 2)
    assert verdict["judgement"]["more"] >= 4

    done = echo("ab", "--resume", run, "--json")
    assert "0 launches to do" in done.err
    assert done.json["verdicts"] == ran.json["verdicts"]


def test_a_lane_against_itself_teaches_the_floor(echo):
    ran = echo(
        "ab", "echo", "--aa", "--set", "tokens_per_second=20", "--blocks", "2", *QUICK, "--json", timeout=120
    )
    assert ran.code == 0, ran.err
    (verdict,) = ran.json["verdicts"]
    assert (verdict["a"], verdict["b"]) == ("A", "B")
    assert verdict["judgement"]["word"] == "unresolved"
    ratio = verdict["judgement"]["ratio"]
    then = echo(
        "ab", "echo", "--set", "tokens_per_second=20,15", "--blocks", "1", *QUICK, "--json", timeout=120
    )
    floor = then.json["verdicts"][0]["judgement"]["floor"]
    assert floor == pytest.approx(max(ratio, 1 / ratio) - 1)


def test_requests_that_differ_are_measured_in_each_launch_and_resumed_after_kill_9(echo, wait_for):
    quick = ("--pp", "32", "--tg", "6", "--passes", "2", "--warmups", "0", "--figure", "decode_tps")
    started = echo.start("ab", "echo", "--request", "tokens_per_second=20,60", "--blocks", "2", *quick)

    def within_the_second_launch():
        if not (echo.home / "history.sqlite").exists():
            return None
        with Store(echo.home / "history.sqlite") as store:
            found = list(store.recent(1))
        return found and len(in_block(found[0], 2)) > 1 and found[0]

    run = wait_for(within_the_second_launch, "a second visit to the second launch", 120)["run"]
    os.kill(started.pid, signal.SIGKILL)
    started.communicate()
    wait_for(lambda: not echo.processes(), "the keeper to stop the engine")
    ran = echo("ab", "--resume", run, "--json", timeout=240)
    assert ran.code == 0, ran.err

    (verdict,) = ran.json["verdicts"]
    judgement = verdict["judgement"]
    # A value a launch and side, however many visits and attempts there were.
    assert (judgement["word"], judgement["paired"], judgement["n_a"]) == ("unresolved", True, 2)
    # Three times, and on a busy machine somewhat less.
    assert judgement["ratio"] > 1.5
    assert [one["factor"] for one in ran.json["differences"]] == ["request tokens_per_second"]
    document = echo("history", "show", run, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    prompts = set()
    launches = 0
    for number, turn in enumerate(document["ab"]["order"], 1):
        entries = in_block(document, number)
        last = [one for one in entries if one["block"]["attempt"] == entries[-1]["block"]["attempt"]]
        # A B B A or B A A B, in one launch.
        assert "".join(one["block"]["side"] for one in last) == turn + turn[::-1]
        assert [one["status"] for one in last] == ["measured"] * 4
        assert len({one["folder"] for one in last}) == 1
        for one in last:
            assert one["request"] == {"tokens_per_second": 20 if one["block"]["side"] == "a" else 60}
            plan = one["instruments"][0]["plan"]
            prompts.add((plan["comparison"], plan["block"]))
            launches += any(phase["phase"] == "launching" for phase in one["boot"])
    assert (len(prompts), launches) == (8, 2)
    assert echo("compare", run, "--margin", "10%", "--json").json["verdicts"] == ran.json["verdicts"]


def test_a_factor_that_needs_no_restart_is_priced_in_both_designs(echo):
    priced = ("ab", "echo", "--request", "tokens_per_second=20,40", "--blocks", "6", "--boot", "33min", *QUICK, "--dry-run")  # fmt: skip
    ran = echo(*priced)
    assert "nested: 6 launches, each 33 min to boot and 4 times" in ran.err
    assert "3.3 h in all; --apart: 12 launches, 6.6 h" in ran.err
    apart = echo(*priced, "--apart")
    assert "6 blocks are 12 launches, each 33 min to boot" in apart.err
    # Where the lanes differ in more than their requests, each needs a launch of its own.
    assert "12 launches" in echo(*priced, "--set", "parallel=1,2").err


def test_two_visits_to_a_launch_are_one_value_their_geometric_mean():
    def visit(number, tps, status="ok"):
        metrics = {"decode_tps": {"median": tps, "lo": tps - 1, "hi": tps + 1, "n": 2}}
        cell = {
            "pp": 32, "tg": 8, "depth": 0, "concurrency": 1, "status": status, "reason": None if status == "ok" else "late",
            "metrics": metrics, "notes": [], "passes": [],
        }  # fmt: skip
        return {
            "status": "measured", "reason": None, "next_step": None,
            "block": {"number": 1, "attempt": 1, "side": "a", "visit": number},
            "instruments": [{"name": "probe", "cells": [cell], "rows": []}],
        }  # fmt: skip

    def cell_of(*some):
        ((lane, whole),) = visits.folded(some)
        return lane["instruments"][0]["cells"][0], whole

    both, whole = cell_of(visit(1, 10.0), visit(4, 40.0))
    assert whole
    assert both["metrics"]["decode_tps"] == {"median": pytest.approx(20.0), "lo": 9.0, "hi": 41.0, "n": 4}
    late, _ = cell_of(visit(1, 10.0), visit(4, 40.0, "invalid"))
    assert (late["status"], late["reason"]) == ("invalid", "late")
    single, whole = cell_of(visit(1, 10.0))
    assert (single["status"], whole) == ("invalid", False)


def test_a_lane_that_crashes_twice_ends_it(echo):
    ran = echo("ab", "echo", "--set", "die_while_loading=false,true", "--retries", "0", "--blocks", "6", *QUICK,
               timeout=120)  # fmt: skip
    assert ran.code == 1
    assert "given up: lane B crashed" in ran.err
    assert "unresolved" not in ran.out.split("What differs")[0].replace("status", "") or "no value" in ran.out
    assert "crashed" in ran.out


def test_the_price_is_told_before_anything_starts(echo):
    ran = echo("ab", "echo", "--set", "parallel=1,2", "--blocks", "6", "--boot", "33min", *QUICK, "--dry-run")
    assert ran.code == 0
    assert "6 blocks are 12 launches, each 33 min to boot" in ran.err
    assert "6.6 h in all" in ran.err
    assert echo("history", "--json").json == []
    planned = echo("ab", "echo", "--set", "parallel=1,2", *QUICK, "--dry-run")
    assert (
        "7 blocks, for a difference of 10% in 1 figure" in planned.err
        or "blocks, for a difference" in planned.err
    )
    few = echo("ab", "echo", "--set", "parallel=1,2", "--blocks", "3", *QUICK, "--dry-run")
    assert "fewer than 6 blocks can show nothing" in few.err


def test_a_recipe_that_changed_is_not_gone_on_with(echo, tmp_path):
    recipe = tmp_path / "r.toml"
    text = 'name = "r"\nengine = "echo"\n[model]\nname = "m"\n[options]\ntokens_per_second = {}\n'
    recipe.write_text(text.format(10.0))
    ran = echo("ab", str(recipe), "--set", "parallel=1,2", "--blocks", "1", *QUICK, "--json", timeout=120)
    recipe.write_text(text.format(20.0))
    again = echo("ab", "--resume", ran.json["run"])
    assert again.code == 2
    assert "is not what it was when the A/B began. put it back, or begin a new A/B" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "an A/B is of one recipe or of two. `lanes recipes` lists them"),
        (("echo", "echo", "echo"), "an A/B is of one recipe or of two"),
        (("echo",), "both lanes are the same. say what differs"),
        (("echo", "--set", "parallel=1,2", "--aa"), "--aa holds one lane against itself, and here something differs"),
        (("echo", "--set", "parallel=1,2,3"), "--set parallel=1,2,3 has 3 values, and an A/B has two lanes"),
        (("echo", "--set", "env.HF_TOKEN=a,b"), "looks like a secret"),
        (("echo", "--request", "reasoning_effort=low"), "both lanes are the same. say what differs"),
        (("echo", "--set", "parallel=1,2", "--apart"), "--apart goes with --request"),
        (("echo", "--request", "max_tokens=1,2"), "that field is part of what is measured"),
        (("echo", "--request", "ignore_eos=true,false"), "engine 'echo' sets that field itself"),
        (("echo", "--set", "parallel=1,2", "--figure", "sparkle"), "no cell of this plan is judged by it"),
        (("echo", "--set", "paralel=1,2"), "paralel"),
        (("echo", "--aa", "--resume", "x"), "--resume takes everything from the run"),
        (("--resume", "x"), "there is no run 'x'"),
        (("echo", "--set", "parallel=1,2", "--arch", "gb10"), "--arch launches nothing"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(words, said, echo):
    ran = echo("ab", *words)
    assert ran.code == 2
    assert said in ran.said
    assert len(ran.err.strip().splitlines()) <= 2


def test_values_are_parted_at_commas_outside_of_brackets_and_quotes():
    assert _values("1,2") == ["1", "2"]
    assert _values("[1, 2],[3]") == ["[1, 2]", "[3]"]
    assert _values('"a,b",c') == ['"a,b"', "c"]
    assert _values("1") == ["1"]
    assert [_json(one) for one in _values('{"thinking": true},low')] == [{"thinking": True}, "low"]


def test_the_order_is_a_coin_for_each_two_blocks():
    orders = {tuple(ab.order(4, str(seed))) for seed in range(50)}
    assert len(orders) == 4
    assert all(order[0] != order[1] and order[2] != order[3] for order in orders)
    assert len(ab.order(7, "x")) == 7
