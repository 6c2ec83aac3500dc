"""`lanes bench`: loads, depths, objectives and budgets as a person asks for them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from lanes.testing.scripted import Script, ScriptedServer

SCHEMA = json.loads((Path(__file__).parent.parent / "docs/result.schema.json").read_text())
QUICK = ("--pp", "96", "--tg", "8", "--passes", "1", "--warmups", "0")


@pytest.fixture
def server():
    script = Script(ttft_s=0.02, gap_s=0.002, usage="every", prefix_cache=True)
    with ScriptedServer(script, context=1000) as server:
        yield server


def cells(ran):
    """The cells of the only lane; where this machine is too busy to measure, the test cannot tell."""
    (lane,) = ran.json["lanes"]
    found = lane["instruments"][0]["cells"]
    for cell in found:
        if (cell["reason"] or "").startswith("the client was"):
            pytest.skip(cell["reason"])
    return found


def test_each_load_is_measured_shown_and_valid_by_the_schema(lanes, server):
    for load in (("--load", "closed", "--concurrency", "2"), ("--rate", "40,80", "--requests", "10")):
        ran = lanes("bench", "--url", server.url, *QUICK, *load, "--slo", "ttft=5s,itl=1s", "--json")
        assert ran.code == 0, ran.said
        jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
        for cell in cells(ran):
            assert cell["metrics"]["slo_share"]["median"] == 1.0
            assert cell["passes"][0]["requests"] == cell["requests"]
        shown = lanes("history", "show", ran.json["run"])
        for word in ("SLO met", "goodput/s", "requests/s"):
            assert word in shown.out
    assert "pp96 tg8 40/s" in shown.out and "pp96 tg8 80/s" in shown.out


def test_figures_can_be_computed_anew_from_what_the_store_holds(lanes, server):
    ran = lanes("bench", "--url", server.url, *QUICK, "--load", "closed", "--concurrency", "1,2", "--json")
    run = ran.json["run"]
    shown = lanes("history", "show", run, "--recompute")
    assert "computed anew, every figure is what it was" in shown.said
    anew = lanes("history", "show", run, "--recompute", "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(anew)
    assert anew.pop("recomputed")["differences"] == []
    assert anew == ran.json


def test_a_preset_is_tried_as_far_as_the_context_reaches_and_what_is_given_goes_before_it(lanes, server):
    ran = lanes(
        "bench", "--url", server.url, "--preset", "seed-depth", "--depth", "512,16384", *QUICK, "--json"
    )  # fmt: skip
    found = [(c["shape"], c["depth"], c["concurrency"], c["status"]) for c in cells(ran)]
    assert found == [
        (shape, depth, streams, status)
        for depth, status in ((512, "ok"), (16384, "skipped"))
        for shape in ("ctx", "suffix")
        for streams in (1, 2)
    ]
    assert cells(ran)[-1]["reason"] == "it needs 16,488 tokens, and the server's context has 1,000"
    shown = lanes("history", "show", ran.json["run"]).said
    assert "ctx512 tg8 c2" in shown and "pp96 tg8 @ d512" in shown
    assert "skipped: it needs 16,392 tokens" in shown


def test_passes_go_on_until_an_interval_is_narrow(lanes, server):
    ran = lanes(
        "bench", "--url", server.url, *QUICK, "--until", "90%", "--budget", "1min", "--max-passes", "9", "--json"
    )  # fmt: skip
    (cell,) = cells(ran)
    made = len(cell["passes"])
    assert 6 <= made <= 9
    assert any(note.startswith(f"ended after {made} passes, ") for note in cell["notes"])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--slo", "speed=2s"), "'speed=2s' is no objective: write ttft, itl or e2e, such as ttft=2s,itl=50ms"),
        (("--slo", "ttft=fast"), "'fast' is not a time such as 50ms, 2s or 10min"),
        (("--until", "3"), "'3' is not a share such as 3%"),
        (("--until", "3%", "--budget", "soon"), "'soon' is not a time such as 50ms, 2s or 10min"),
        (("--budget", "1min"), "a budget ends passes that go on until an interval is narrow: say which"),
        (("--rate", "fast"), "'fast' is not a list of requests a second such as 0.5,2.5"),
        (("--rate", "2", "--load", "closed"), "a rate makes an open load, and the load is to be closed"),
        (("--depth-shape", "wide"), "the depth's shape must be suffix or ctx, not 'wide'"),
        (("--preset", "nope"), "there is no preset 'nope'"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_in_one_sentence(lanes, given, sentence):
    ran = lanes("bench", "--url", "http://127.0.0.1:9", *given)
    assert ran.code == 2
    assert sentence in ran.said


def test_a_rate_that_a_server_cannot_hold_is_shown_and_never_hidden(lanes):
    """It works on one request at a time, of 40 ms: 25 a second, and 100 come."""
    with ScriptedServer(Script(ttft_s=0.04), slots=1) as server:
        ran = lanes("bench", "--url", server.url, *QUICK, "--rate", "100", "--requests", "40", "--json")
    (cell,) = cells(ran)
    assert cell["status"] == "ok", cell["reason"]
    figures = {name: interval["median"] for name, interval in cell["metrics"].items()}
    assert figures["request_rps"] < 30 < figures["offered_rps"]
    assert figures["ttft_p99_s"] > 10 * 0.04
    assert {"schedule_delay_s", "schedule_delay_p99_s", "schedule_delay_max_s"} <= figures.keys()
    shown = lanes("history", "show", ran.json["run"])
    assert "the server does not hold 100 requests/s" in shown.said
    assert "delay p99 s" in shown.said


MISBEHAVES = {
    "is cut": (Script(cut_after=4), "the stream was cut after 4 deltas"),
    "lies about usage": (
        Script(usage_lies=-12),
        "the server's usage counts 4 tokens, but 16 deltas carried some",
    ),
    "sends no usage": (Script(usage="none"), "the server sent no usage"),
    "fails in mid-stream": (Script(error_after=4), "the server reported an error after 4 deltas"),
    "refuses": (Script(status=500, message="out of luck"), "the server answered HTTP 500: out of luck"),
}


@pytest.mark.parametrize("load", ["burst", "closed"])
@pytest.mark.parametrize("how", MISBEHAVES)
def test_a_cell_on_which_the_server_misbehaves_has_the_true_reason_and_the_others_are_kept(lanes, how, load):
    bad, reason = MISBEHAVES[how]
    fine = Script(gap_s=0.001)
    with ScriptedServer(lambda number, body: bad if body["max_tokens"] == 16 else fine) as server:
        ran = lanes(
            "bench", "--url", server.url, "--pp", "96", "--tg", "8,16,24", "--passes", "1", "--warmups", "0",
            "--concurrency", "2", "--load", load, "--json",
        )  # fmt: skip
    assert ran.code == 0, "two cells are good"
    assert [c["status"] for c in cells(ran)] == ["ok", "invalid", "ok"]
    assert reason in cells(ran)[1]["reason"]
    assert ran.json["lanes"][0]["status"] == "measured"


def test_an_engine_that_dies_under_a_load_keeps_what_had_ended(echo, tmp_path):
    recipe = tmp_path / "dies.toml"
    recipe.write_text(
        'name = "dies"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_after_tokens = 300\n'
    )
    ran = echo(
        "run", "--recipe", str(recipe), "--pp", "64", "--tg", "8,16", "--load", "closed", "--concurrency", "2",
        "--requests", "12", "--passes", "2", "--warmups", "0", "--json",
    )  # fmt: skip
    assert ran.code == 1
    first, second = cells(ran)
    assert first["status"] == "ok" and first["metrics"]["ttft_s"]["n"] == 2
    assert second["status"] == "crashed"
    assert "code 7" in ran.json["lanes"][0]["reason"]
