"""surface against a server that does everything as it should, and against one with a fault at a time: it gets exactly
that verdict, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from lanes.instruments import surface
from lanes.instruments.surface import CHECKS, Options
from lanes.testing.honest import FAULTS, HonestServer

GAUGE = {"metrics_path": "/metrics", "metrics": {"running": "honest:running"}}
QUICK = Options(patience_s=2.0)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanes.instruments.surface.leaving._HANG_S", 2.0)
    monkeypatch.setattr("lanes.instruments.surface.leaving._SETTLE_S", 1.0)
    monkeypatch.setattr("lanes.instruments.surface._STILL_S", 2.0)


Drive = Callable[..., Any]


def look(drive: Drive, *faults: str, gauge: bool = True, **server: Any) -> Any:
    with HonestServer(faults, **server) as one:
        return drive(surface, one.url, QUICK, dialect=GAUGE if gauge else {}, model="honest")


@pytest.mark.parametrize("gauge", [True, False], ids=["gauge", "no gauge"])
def test_a_server_that_does_everything_as_it_should_has_no_fault(drive: Drive, gauge: bool) -> None:
    found = look(drive, gauge=gauge)
    refused = {
        "images", "temperature of a wrong type", "max_tokens of a wrong type", "messages of a wrong type",
        "a body that is no JSON", "unknown model name", "context overflow",
    }  # fmt: skip
    due = {name: "refused" if name in refused else "supported" for name, _ in CHECKS}
    assert found.statuses == due
    assert found.faults == {}
    assert found.measured.status == "measured"


BROKEN = {
    "required-500": {"tool_choice required": "HTTP 500"},
    "required-ignored": {"tool_choice required": "none came"},
    "hangs-on-cancel": {"cancel by disconnect": "nothing is answered any more"},
    "leaks-slots": {"cancel by disconnect": "still run by /metrics"},
    "works-on": {"cancel by disconnect": "still run by /metrics"},
    "usage-lies": {
        "usage": "19 tokens of an answer that was limited to 16",
        "usage in the stream": "19 tokens of an answer that was limited to 16",
    },
    "ignores-stop": {"stop": "it goes on"},
    "overflow-500": {"context overflow": "HTTP 500"},
    "overflow-cut": {"context overflow": "cut in silence"},
    "schema-ignored": {"response_format json_schema": "not JSON"},
    "n-ignored": {"n": "it gives one"},
    "types-500": {
        "temperature of a wrong type": "HTTP 500",
        "max_tokens of a wrong type": "HTTP 500",
        "messages of a wrong type": "HTTP 500",
    },
    "tools-unread": dict.fromkeys(
        (
            "tool_choice required",
            "tool_choice by name",
            "parallel tool calls",
            "tool calls in the stream",
        ),
        "tokens with the tools as without",
    ),
    "dice": {"determinism at temperature 0": "agree for"},
    "thoughts-in-content": {"reasoning": "<think>"},
    "system-dropped": {"long system prompt": "was not read"},
    "hangs-on-images": {"images": "nothing came for"},
    "metrics-html": {"/metrics": "no Prometheus text"},
    "gibberish": {},
    "loops": {},
    "wrong-facts": {},
}
"""The rows that a fault breaks, with words of the reason; what smoke finds, surface does not."""
ALSO = {"required-ignored": {"parallel tool calls": "none came", "tool calls in the stream": "none came"},
        "required-500": {"parallel tool calls": "HTTP 500", "tool calls in the stream": "HTTP 500"}}  # fmt: skip
"""The same fault where it shows too."""


TOGETHER = (
    ("required-500", "usage-lies", "ignores-stop", "overflow-500", "metrics-html"),
    ("required-ignored", "overflow-cut", "schema-ignored", "n-ignored", "types-500", "hangs-on-images"),
    ("tools-unread", "thoughts-in-content", "works-on"),
    ("dice", "system-dropped", "leaks-slots"),
    ("hangs-on-cancel",),
    ("gibberish",),
    ("loops", "wrong-facts"),
)
"""Faults that break different rows are looked at in one server."""


@pytest.mark.parametrize("faults", TOGETHER, ids="+".join)
def test_faults_get_exactly_their_verdicts(drive: Drive, faults: tuple[str, ...]) -> None:
    found = look(drive, *faults)
    due: dict[str, str] = {}
    for fault in faults:
        one = BROKEN[fault] | ALSO.get(fault, {})
        assert not due.keys() & one.keys()
        due |= one
    assert found.faults.keys() == due.keys()
    for name, words in due.items():
        assert words in found.rows[name]["reason"]
    assert len(found.rows) == len(CHECKS)
    assert found.measured.status == ("crashed" if "hangs-on-cancel" in faults else "measured")


def test_every_fault_of_the_server_is_looked_at() -> None:
    assert set(BROKEN) | {"call-as-text", "dies-on-images"} == FAULTS
    assert sorted(BROKEN) == sorted(fault for faults in TOGETHER for fault in faults)


def test_tools_that_nobody_reads_are_ignored_when_none_has_to_be_called(drive: Drive) -> None:
    assert look(drive, "tools-unread").statuses["tool_choice auto"] == "ignored"


def test_a_call_that_comes_as_text_is_no_call(drive: Drive) -> None:
    found = look(drive, "call-as-text")
    assert "came as text" in found.rows["tool_choice auto"]["reason"]
    assert {name for name in found.faults if "tool" not in name} == set()


def test_slots_that_are_kept_are_seen_without_a_gauge(drive: Drive) -> None:
    found = look(drive, "leaks-slots", gauge=False)
    assert found.faults == {"cancel by disconnect": "broken"}
    assert "slots are not given free" in found.rows["cancel by disconnect"]["reason"]


def test_a_server_that_dies_ends_it_and_the_request_is_named(drive: Drive) -> None:
    found = look(drive, "dies-on-images")
    assert found.measured.status == "crashed"
    assert "images" in found.measured.reason
    assert list(found.rows)[-1] == "images"


def test_request_and_answer_are_kept_without_the_key(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONEST_KEY", "s3cret-of-mine")
    with HonestServer(["required-500"]) as one:
        found = drive(surface, one.url, QUICK, dialect={"api_key_env": "HONEST_KEY"}, model="honest")
    (exchange,) = found.rows["tool_choice required"]["evidence"]["exchanges"]
    assert exchange["request"] == "POST /v1/chat/completions"
    assert exchange["sent"]["tool_choice"] == "required"
    assert exchange["status"] == 500
    assert exchange["answer"]["error"]["message"] == "grammar could not be compiled"
    assert "s3cret-of-mine" not in json.dumps(found.rows)
