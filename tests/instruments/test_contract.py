"""Instruments as a person chooses them, and as somebody else brings them."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from lanes.errors import UsageError
from lanes.instruments import BUILT_IN, PRESETS, choose
from lanes.instruments.base import _left
from lanes.testing.honest import HonestServer

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/result.schema.json").read_text())
EXTENSION = "lanes.extensions"
SMALL = ("--pp", "96", "--tg", "8", "--passes", "1", "--warmups", "0")

THIRD_PARTY = """
import attrs
import lanes

LANES_CONTRACT = 1

@attrs.frozen(kw_only=True)
class Options:
    times: int = 1

def count(context):
    for number in range(context.options.times):
        context.progress("counting", (number + 1) / context.options.times)
        context.row(lanes.Row(name=str(number), status="counted", figures={"count": number}))
    (context.folder / "note.txt").write_text(context.endpoint.model)

def fail(context):
    context.row(lanes.Row(name="half", status="done"))
    raise FAILURE

@lanes.hookimpl
def lanes_instruments():
    return [
        lanes.Instrument(name="count", summary="counts", run=count, options=Options),
        lanes.Instrument(name="fails", summary="fails", run=fail),
        lanes.Instrument(name="lacks", summary="lacks", run=count, needs=lambda: "there is no counting house here"),
    ]
"""


@pytest.fixture
def honest():
    with HonestServer() as server:
        yield server


def names(ran: Any) -> dict[str, tuple[str, str | None]]:
    (lane,) = ran.json["lanes"]
    return {one["name"]: (one["status"], one["reason"]) for one in lane["instruments"]}


def test_presets_name_what_is_there_and_full_is_all() -> None:
    for preset, members in PRESETS.items():
        assert [one.instrument.name for one in choose([preset])] == list(members)
    assert set(PRESETS["full"]) == set(BUILT_IN)
    assert BUILT_IN[-1] == "survival", "it may kill the lane, so the others come before it"


def test_names_may_be_mixed_with_presets_and_each_runs_once() -> None:
    chosen = choose(["quick,surface", " smoke "])
    assert [one.instrument.name for one in chosen] == ["smoke", "probe", "surface"]
    assert [one.instrument.name for one in choose([])] == ["probe"]


@pytest.mark.parametrize(
    ("names", "settings", "words"),
    [
        (["smok"], {}, "there is no instrument 'smok'. did you mean 'smoke'? there is smoke, surface,"),
        (["smoke"], {"surface.context": "1"}, "no instrument of this run is called 'surface'"),
        (["smoke"], {"context": "1"}, "write NAME.KEY=VALUE"),
        (["smoke"], {"smoke.x": "1"}, "smoke has no options"),
        (["surface"], {"surface.contxt": "1"}, "did you mean 'context'?"),
        (["surface"], {"surface.context": "many"}, "should be a whole number"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(
    names: list[str], settings: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(names, settings)
    assert words in str(caught.value)


def test_options_are_typed() -> None:
    (chosen,) = choose(["surface"], {"surface.context": "4096", "surface.patience_s": "7"})
    assert (chosen.options.context, chosen.options.patience_s) == (4096, 7.0)


@pytest.mark.parametrize(
    ("share", "taken_s", "words"),
    [
        (None, 50, ""), (0.5, 0.2, ""), (1.0, 50, ""), (0.5, 50, ", about 50 s left"),
        (0.1, 60, ", about 9 min left"), (0.01, 600, ", about 16.5 h left"),
    ],
)  # fmt: skip
def test_what_is_left_is_told_when_it_can_be(share: float | None, taken_s: float, words: str) -> None:
    assert _left(share, taken_s) == words


def test_an_instrument_of_somebody_else_runs_beside_ours(lanes: Any, site: Any, honest: Any) -> None:
    site(
        "their-plugin",
        "their_plugin",
        THIRD_PARTY.replace("FAILURE", "ValueError('no')"),
        {"their": EXTENSION},
    )
    ran = lanes(
        "bench", "--url", honest.url, "--instrument", "count,smoke", "--with", "count.times=2", "--json"
    )  # fmt: skip
    assert ran.code == 0, ran.said
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    assert names(ran) == {"count": ("done", None), "smoke": ("done", None)}
    (lane,) = ran.json["lanes"]
    rows = lane["instruments"][0]["rows"]
    assert [(row["name"], row["status"], row["figures"]) for row in rows] == [
        ("0", "counted", {"count": 0}),
        ("1", "counted", {"count": 1}),
    ]
    notes = list(lanes.home.glob("artefacts/*/lane0/count/note.txt"))
    assert [note.read_text() for note in notes] == ["honest"]
    shown = lanes("history", "show", ran.json["run"])
    assert "honest: count" in shown.said and "counted" in shown.said


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            "lanes_errors.LaneError('the counting house is closed', 'come back')",
            "the counting house is closed",
        ),
        ("ValueError('no')", "fails itself failed: ValueError: no"),
    ],
)
def test_one_that_fails_is_told_of_and_the_others_go_on(
    lanes: Any, site: Any, honest: Any, failure: str, words: str
) -> None:
    code = "import lanes.errors as lanes_errors\n" + THIRD_PARTY.replace("FAILURE", failure)
    site("their-plugin", "their_plugin", code, {"their": EXTENSION})
    ran = lanes("bench", "--url", honest.url, "--instrument", "fails,lacks,count,probe", *SMALL, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    found = names(ran)
    assert found["fails"] == ("failed", words)
    assert found["lacks"] == ("failed", "there is no counting house here")
    assert found["count"][0] == "done" and found["probe"][0] == "done"
    (lane,) = ran.json["lanes"]
    assert [row["name"] for row in lane["instruments"][0]["rows"]] == ["half"], "what it had found is kept"
    assert lane["status"] == "measured"
    assert ran.code == 1, "what was asked for was not all done"
    assert words in lanes("history", "show", ran.json["run"]).said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (THIRD_PARTY.replace('name="count"', 'name="smoke"'), "brings an instrument 'smoke', and so does lanes itself"),
        (THIRD_PARTY.replace("lanes.Instrument(", "dict("), "returned a dict, not an Instrument"),
        (THIRD_PARTY.replace("return [", "raise OSError('gone'); [").replace("    ]\n", "    ]\n"), "OSError: gone"),
        (THIRD_PARTY.replace("return [", "return 7; ["), "returned a int, not a sequence"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_broken_harms_nobody_else(
    lanes: Any, site: Any, honest: Any, code: str, words: str
) -> None:
    site("their-plugin", "their_plugin", code.replace("FAILURE", "ValueError"), {"their": EXTENSION})
    listing = lanes("instruments")
    assert listing.code == 0
    assert words in listing.said and "their-plugin" in listing.said
    assert lanes("bench", "--url", honest.url, "--instrument", "smoke").code == 0
    wanted = lanes("bench", "--url", honest.url, "--instrument", "no-such-one")
    assert wanted.code == 2
    assert words in wanted.said


def test_a_lane_that_answers_nonsense_is_unrunnable_whatever_its_speed(lanes: Any) -> None:
    with HonestServer(["gibberish"]) as server:
        ran = lanes("bench", "--url", server.url, "--instrument", "quick", *SMALL, "--json")
    assert ran.code == 3
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["verdict"]) == ("unrunnable", "unrunnable")
    assert "plain facts are wrong" in lane["reason"]
    (finding,) = lane["findings"]
    assert (finding["kind"], finding["evidence"]) == ("sanity", "observed")
    assert names(ran)["probe"][0] == "done", "its speed was measured all the same"


def test_faults_do_not_fail_a_lane_and_are_shown(lanes: Any) -> None:
    with HonestServer(["required-500"]) as server:
        ran = lanes("bench", "--url", server.url, "--instrument", "surface", "--json", timeout=120)
    assert ran.code == 0, ran.said
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    shown = lanes("history", "show", ran.json["run"])
    assert "tool_choice required" in shown.said and "HTTP 500: grammar could not be compiled" in shown.said


def test_when_the_server_is_gone_the_rest_is_skipped(lanes: Any) -> None:
    with HonestServer(["dies-on-images"]) as server:
        ran = lanes(
            "bench", "--url", server.url, "--instrument", "surface,smoke", *SMALL, "--json", timeout=120
        )
    assert ran.code == 1
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    assert names(ran)["smoke"] == ("skipped", "the server was gone since surface")
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "crashed" and "images" in lane["reason"]


def test_ctrl_c_keeps_what_was_measured(lanes: Any, wait_for: Any) -> None:
    with HonestServer(gap_s=0.05) as server:
        started = lanes.start("bench", "--url", server.url, "--instrument", "surface,probe")

        def two_rows() -> bool:
            with (
                contextlib.suppress(sqlite3.OperationalError),
                contextlib.closing(
                    sqlite3.connect(f"file:{lanes.home}/history.sqlite?mode=ro", uri=True)
                ) as db,
            ):
                return db.execute("SELECT count(*) FROM events WHERE kind = 'row'").fetchone()[0] >= 2
            return False

        wait_for(two_rows, "two rows", 30)
        started.send_signal(signal.SIGINT)
        assert lanes.finish(started).code == 130
    run = lanes("history", "--json").json[0]
    jsonschema.Draft202012Validator(SCHEMA).validate(run)
    (lane,) = run["lanes"]
    (surface,) = lane["instruments"]
    assert lane["status"] == "interrupted"
    assert surface["status"] == "interrupted"
    assert len(surface["rows"]) >= 2


def test_a_dry_run_says_what_would_be_measured_and_what_is_lacking(
    lanes: Any, site: Any, sleepy: str
) -> None:
    site("good-plugin", "good_plugin", sleepy, {"good": "lanes.engines"})
    site("their-plugin", "their_plugin", THIRD_PARTY.replace("FAILURE", "ValueError"), {"their": EXTENSION})
    ran = lanes("run", "--engine", "good", "--model", "/", "--instrument", "lacks,probe", "--dry-run")
    assert "measure lacks: lacks" in ran.said
    assert "it would fail: there is no counting house here" in ran.said
    assert "pp2048 tg128" in ran.said


def test_the_one_that_the_docs_show_works(lanes: Any, site: Any, honest: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/writing-an-engine.md").read_text()
    code = next(b.split("```")[0] for b in page.split("```python\n") if "does it greet?" in b.split("```")[0])
    site("their-plugin", "their_plugin", code, {"their": EXTENSION})
    ran = lanes("bench", "--url", honest.url, "--instrument", "greet", "--with", "greet.times=2", "--json")
    assert ran.code == 0, ran.said
    (lane,) = ran.json["lanes"]
    rows = lane["instruments"][0]["rows"]
    assert [row["status"] for row in rows] == ["answered", "answered"]
    assert rows[0]["evidence"]["exchanges"][0]["sent"]["messages"][0]["content"] == "Hello"


def test_a_lane_of_ours_that_answers_nonsense_is_unrunnable_unless_the_user_goes_on(echo: Any) -> None:
    """echo says the prompt's words again: quick, and no sense."""
    ran = echo("run", "--engine", "echo", "--instrument", "smoke", "--json")
    assert ran.code == 3, ran.said
    jsonschema.Draft202012Validator(SCHEMA).validate(ran.json)
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["verdict"]) == ("unrunnable", "unrunnable")
    assert [f["question"] for f in lane["findings"]][-1] == "sense"
    ran = echo("run", "--engine", "echo", "--instrument", "smoke", "--despite", "sense", "--json")
    assert ran.code == 0, ran.said
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["overrides"]) == ("measured", ["sense"])
