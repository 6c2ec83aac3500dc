"""`lanes compare`: lanes from launches, what differs, what may be said, and what may not."""

from __future__ import annotations

import copy
import json

import pytest
from lanes.comparing import factors
from lanes.comparing.compare import compare
from lanes.comparing.values import as_json

CELL = {"pp": 64, "tg": 8, "depth": 0, "concurrency": 1, "shape": "suffix", "load": "burst", "rate": None}


def interval(value, n=5):
    return {"median": value, "lo": value * 0.99, "hi": value * 1.01, "n": n}


def lane(name="x", decode=100.0, status="measured", reason=None, cells=None, rows=(), **options):
    cell = {
        **CELL,
        "status": "ok",
        "reason": None,
        "metrics": {"decode_tps": interval(decode), "prefill_tps": interval(1000.0)},
        "notes": [],
        "passes": [],
    }
    return {
        "name": name,
        "engine": "echo",
        "recipe": {
            "name": name,
            "engine": "echo",
            "model": {"name": "m"},
            "nodes": 1,
            "options": options,
            "env": {},
        },
        "cluster": "local",
        "verdict": "runnable",
        "findings": [],
        "status": status,
        "reason": reason,
        "next_step": None,
        "environment": {"lanes": "0.1.0", "engine_version": "1", "nodes": [{"name": "here", "gpus": []}]},
        "boot": [],
        "lane_metrics": {},
        "overrides": [],
        "instruments": [
            {"name": "probe", "plan": {}, "cells": [cell] if cells is None else cells, "rows": list(rows)}
        ],
    }


def run(number, *lanes, **more):
    return {
        "schema": "lanes.result/1",
        "run": f"r{number}",
        "started_at": float(number),
        "lanes": list(lanes),
        **more,
    }


def fast_and_slow(n=5, **options):
    """Two lanes, each launched so often, the second 20% faster."""
    return [
        run(i, lane(decode=100 + i, speed=1, **options), lane(decode=120 + i, speed=2, **options))
        for i in range(n)
    ]


def words(comparison):
    return {(v.point, v.metric): v.judgement.word for v in comparison.verdicts}


# -- Lanes ----------------------------------------------------------------------------------------


def test_launches_of_one_making_are_one_lane():
    found = compare(fast_and_slow(3))
    assert [(side.name, side.launches) for side in found.sides] == [("speed=1", 3), ("speed=2", 3)]
    figure = found.sides[0].points[0].figures["decode_tps"]
    assert (figure.unit, figure.n, figure.values, figure.median) == ("launch", 3, (100, 101, 102), 101)
    assert found.sides[0].runs == ("r0", "r1", "r2")


def test_a_single_launch_has_the_interval_of_its_passes():
    (side,) = compare([run(1, lane())]).sides
    figure = side.points[0].figures["decode_tps"]
    assert (figure.unit, figure.n, figure.lo, figure.hi) == ("pass", 5, 99.0, 101.0)


@pytest.mark.parametrize(
    "change", ["engine_version", "lanes", "driver", "quantization", "image", "env", "nodes"]
)
def test_whatever_changed_makes_another_lane(change):
    other = lane()
    if change in ("engine_version", "lanes"):
        other["environment"][change] = "2"
    elif change == "driver":
        other["environment"]["nodes"] = [{"name": "here", "gpus": [{"name": "H200", "driver": "580"}]}]
    elif change == "quantization":
        other["recipe"]["model"]["quantization"] = "fp8"
    elif change == "image":
        other["images"] = {"0": {"reference": "a", "id": "sha256:1"}}
    elif change == "env":
        other["recipe"]["env"]["A"] = "1"
    else:
        other["recipe"]["nodes"] = 2
    found = compare([run(1, lane()), run(2, other)])
    assert len(found.sides) == 2
    assert len({side.name for side in found.sides}) == 2
    assert found.differences
    # The load of the machine and its free memory are no making.
    busy = lane()
    busy["environment"]["load_average"] = [9.0]
    assert len(compare([run(1, lane()), run(2, busy)]).sides) == 1


def test_lanes_stand_in_the_order_in_which_they_are_named():
    documents = [run(1, lane("a")), run(2, lane("b"))]
    assert [s.name for s in compare(documents, only=["b", "a"]).sides] == ["b", "a"]
    assert [s.name for s in compare(documents, only=["r2"]).sides] == ["b"]
    with pytest.raises(KeyError, match="nope"):
        compare(documents, only=["nope"])


# -- What may be said -----------------------------------------------------------------------------


def test_one_launch_of_each_resolves_nothing_however_far_apart():
    found = compare([run(1, lane(decode=100.0, speed=1), lane(decode=900.0, speed=2))])
    assert set(words(found).values()) == {"unresolved"}
    assert not any(f.best for s in found.sides for p in s.points for f in p.figures.values())
    assert all("one launch of each" in c.sentence for c in found.choices)


def test_a_cause_is_named_when_one_thing_differs_and_not_when_two_do():
    found = compare(fast_and_slow())
    assert words(found)["pp64 tg8", "decode_tps"] == "faster"
    assert [v.cause for v in found.verdicts if v.metric == "decode_tps"] == ["speed 1 -> 2"]
    assert [f.best for s in found.sides for n, f in s.points[0].figures.items() if n == "decode_tps"] == [
        False,
        True,
    ]

    two = copy.deepcopy(fast_and_slow())
    for document in two:
        document["lanes"][1]["recipe"]["options"]["other"] = 1
    found = compare(two)
    assert words(found)["pp64 tg8", "decode_tps"] == "faster"
    assert [v.cause for v in found.verdicts if v.metric == "decode_tps"] == [None]
    assert [d.factor for d in found.differences] == ["speed", "other"]


def test_clocks_that_differ_are_a_cause_too():
    def clocked(mhz_b):
        documents = copy.deepcopy(fast_and_slow())
        for document in documents:
            for one, mhz, watts in zip(document["lanes"], (1500.0, mhz_b), (300.0, 600.0), strict=True):
                cell = one["instruments"][0]["cells"][0]
                cell["server_metrics"] = {"gpu_clock_mhz": interval(mhz), "gpu_power_w": interval(watts)}
        return compare(documents)

    found = clocked(1980.0)
    assert [d.factor for d in found.differences] == ["gpu clock", "speed"]
    assert [v.cause for v in found.verdicts if v.metric == "decode_tps"] == [None]
    # Clocks are never quite the same: a percent is no difference.
    alike = clocked(1510.0)
    assert [d.factor for d in alike.differences] == ["speed"]
    assert [v.cause for v in alike.verdicts if v.metric == "decode_tps"] == ["speed 1 -> 2"]
    (watt,) = [c for c in alike.choices if c.shape == "per watt"]
    assert watt.lanes == ("speed=1", "speed=2")


def test_no_cause_is_named_where_it_is_not_told_what_the_lanes_are():
    documents = fast_and_slow()
    for document in documents:
        for one in document["lanes"]:
            one["environment"] = {}
    assert [v.cause for v in compare(documents).verdicts if v.metric == "decode_tps"] == [None]
    assert "engine version" in factors.unknown([("a", {})])


def test_values_that_do_not_vary_are_no_difference_beyond_the_margin():
    documents = [run(i, lane(speed=1), lane(speed=2, decode=100.5 - i / 10)) for i in range(6)]
    assert words(compare(documents, margin=0.05))["pp64 tg8", "decode_tps"] == "no difference"


def test_invalid_cells_have_no_figures_and_say_why():
    bad = {**CELL, "status": "invalid", "reason": "cut short", "metrics": {"decode_tps": interval(1e9)},
           "notes": [], "passes": []}  # fmt: skip
    found = compare([run(1, lane(cells=[bad])), run(2, lane())])
    (point,) = found.sides[0].points
    assert (point.status, point.reason, point.bad, point.launches) == ("invalid", "cut short", 1, 2)
    assert point.figures["decode_tps"].values == (100.0,)


def test_a_lane_that_crashed_is_no_choice_though_it_has_figures():
    documents = [
        run(
            1,
            lane("good", decode=50.0),
            lane("dead", decode=500.0, status="crashed", reason="boom"),
            lane("ok"),
        )
    ]
    found = compare(documents)
    assert found.side("dead").reason == "boom"
    for choice in found.choices:
        assert "dead" not in choice.lanes and "dead (crashed)" in choice.sentence


def test_launches_that_failed_beside_others_that_did_not_are_told():
    found = compare([run(1, lane()), run(2, lane(status="crashed", reason="boom", cells=[]))])
    (side,) = found.sides
    assert (side.status, side.failures) == ("measured", {"crashed": 1})


def test_scores_of_two_versions_of_an_instrument_do_not_compare():
    def scored(value, version):
        one = lane(f"v{version}", cells=[])
        one["instruments"] = [
            {
                "name": "tooleval",
                "plan": {"version": version},
                "cells": [],
                "rows": [
                    {"name": "score", "status": "scored", "fault": False, "reason": None,
                     "figures": {"score": value}, "evidence": {}}
                ],
            }
        ]  # fmt: skip
        return one

    found = compare([run(1, scored(87, "2.8.0"), scored(89, "3.0.0"))])
    assert found.verdicts == ()
    (flag,) = found.flags
    assert flag.kind == "versions" and "2.8.0 for v2.8.0" in flag.sentence and "TC-21" in flag.sentence
    assert len(compare([run(1, scored(87, "2.8.0"), {**scored(89, "2.8.0"), "name": "b"})]).verdicts) == 1


# -- Which lane for what --------------------------------------------------------------------------


def test_weights_choose_by_what_the_user_wants():
    documents = [run(1, lane("quick", decode=200.0), lane("slow", decode=100.0))]
    documents[0]["lanes"][0]["instruments"][0]["cells"][0]["metrics"]["prefill_tps"] = interval(100.0)
    for weights, first in (
        ({"decode_tps": 9.0, "prefill_tps": 1.0}, "quick"),
        ({"prefill_tps": 1.0}, "slow"),
    ):
        choice = compare(documents, weights=weights).choices[-1]
        assert choice.shape == "your weights"
        assert choice.lanes[0] == first
        assert choice.scores[first] == max(choice.scores.values()) <= 1.0
    with pytest.raises(KeyError, match="score"):
        compare(documents, weights={"score": 1.0})


def test_the_front_leaves_out_whoever_is_behind_in_everything():
    documents = [run(1, lane("all", decode=200.0), lane("none", decode=100.0))]
    (choice,) = [c for c in compare(documents).choices if c.shape == "interactive agent"]
    assert choice.front == ("all",)
    assert set(choice.lanes) == {"all", "none"}


def test_json_holds_all_of_it_and_is_json():
    data = json.loads(json.dumps(as_json(compare(fast_and_slow()))))
    assert data["schema"] == "lanes.compare/2"
    assert data["sides"][0]["points"][0]["figures"]["decode_tps"]["values"] == [100, 101, 102, 103, 104]
    assert {v["judgement"]["word"] for v in data["verdicts"]} <= {
        "faster",
        "slower",
        "no difference",
        "unresolved",
    }


# -- The command ----------------------------------------------------------------------------------


def write(folder, documents):
    for document in documents:
        (folder / f"{document['run']}.json").write_text(
            json.dumps({"command": "run", "status": "done", **document})
        )
    return str(folder)


def test_files_folders_and_names(lanes, tmp_path):
    (tmp_path / "data").mkdir()
    folder = write(tmp_path / "data", fast_and_slow())
    ran = lanes("compare", folder, "--json")
    assert [side["name"] for side in ran.json["sides"]] == ["speed=1", "speed=2"]
    assert len(lanes("compare", f"{folder}/r1.json", "--json").json["sides"]) == 2
    assert lanes("compare", folder, "r2", "--json").json["sides"][0]["launches"] == 1
    text = lanes("compare", folder)
    assert "One thing differs: speed 1 -> 2" in text.out
    assert "*" in text.out


def test_what_fell_behind_fails_in_ci(lanes, tmp_path):
    folder = write(tmp_path, fast_and_slow())
    assert lanes("compare", folder, "--fail-if-slower", "5%").code == 0
    turned = [{**document, "lanes": document["lanes"][::-1]} for document in fast_and_slow()]
    write(tmp_path, turned)
    ran = lanes("compare", folder, "--fail-if-slower", "5%")
    assert ran.code == 1
    assert "more than 5% behind: pp64 tg8, decode tok/s: speed=1 is slower than speed=2" in ran.err
    assert lanes("compare", folder, "--fail-if-slower", "50%").code == 0
    # One launch of each shows nothing, and is no reason to fail.
    assert lanes("compare", f"{folder}/r1.json", "--fail-if-slower", "5%").code == 0
    (tmp_path / "r9.json").write_text(
        json.dumps({**run(9, lane("other")), "command": "run", "status": "done"})
    )
    assert (
        "holds one lane against another, and here are 3"
        in lanes("compare", folder, "--fail-if-slower", "5%").err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to compare: runs, lanes, files, or --since 7d. `lanes history` lists runs"),
        (("nope",), "there is no run 'nope'"),
        (
            ("{folder}", "nope"),
            "there is no lane and no run 'nope' in the files. there is r0, r1, r2, r3, r4, x",
        ),
        (("{folder}", "--by", "nope"), "no lane tells the factor 'nope'. they tell"),
        (
            ("{folder}", "--weights", "score=1"),
            "no two lanes have all the figures of --weights: score is missing",
        ),
        (("{folder}", "--weights", "sparkle=1"), "should be FIGURE=WEIGHT"),
        (
            ("--since", "yesterday"),
            "--since 'yesterday' is no time. write 2h, 7d, or a date such as 2026-10-18",
        ),
        (("{bad}",), "is not a result of lanes (lanes.result/1). `lanes history show RUN --json` makes one"),
        (("{empty}",), "holds no *.json"),
    ],
)
def test_mistakes_are_one_sentence(words, said, lanes, tmp_path):
    for name in ("data", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "bad.json").write_text("{}")
    places = {"folder": write(tmp_path / "data", fast_and_slow()), "bad": str(tmp_path / "bad.json"),
              "empty": str(tmp_path / "empty")}  # fmt: skip
    ran = lanes("compare", *(word.format(**places) for word in words))
    assert ran.code == 2
    assert said in ran.said


def test_lanes_and_runs_of_the_store(echo):
    for speed in (100, 200):
        echo("run", "--recipe", "echo", "--set", f"tokens_per_second={speed}", "--pp", "32", "--tg", "8",
             "--passes", "1", "--warmups", "0")  # fmt: skip
    by_name = echo("compare", "echo", "--json").json
    assert [side["name"] for side in by_name["sides"]] == ["tokens_per_second=100", "tokens_per_second=200"]
    assert echo("compare", "--since", "1h", "--json").json["sides"] == by_name["sides"]
    run = by_name["sides"][1]["runs"][0]
    assert [s["name"] for s in echo("compare", run, "--json").json["sides"]] == ["echo"]
    assert echo("compare", "--since", "2h", "echo", "--json").json["sides"] == by_name["sides"]
