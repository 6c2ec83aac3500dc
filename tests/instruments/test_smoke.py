"""smoke: what makes sense passes, what does not is UNRUNNABLE by observation, whatever its speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lanes.bench.plan import Limits
from lanes.instruments import smoke
from lanes.instruments.smoke import nonsense
from lanes.testing.honest import HonestServer
from lanes.testing.scripted import Script, ScriptedServer

Drive = Callable[..., Any]


def test_an_honest_server_answers_sense(drive: Drive) -> None:
    with HonestServer() as one:
        found = drive(smoke, one.url, model="honest")
    assert found.statuses == {
        "a capital": "right", "a sum": "right", "a colour": "right", "an animal": "right", "a few sentences": "sense",
    }  # fmt: skip
    assert found.measured.status == "measured"
    assert not found.faults


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong-facts", "4 of 4 plain facts are wrong"),
        ("gibberish", "4 of 4 plain facts are wrong"),
        ("loops", "it repeats itself without end"),
    ],
)
def test_nonsense_is_unrunnable_by_observation(drive: Drive, fault: str, words: str) -> None:
    with HonestServer([fault]) as one:
        found = drive(smoke, one.url, model="honest")
    assert found.measured.status == "unrunnable"
    assert words in found.measured.reason


def test_a_server_that_only_ever_says_one_word_is_unrunnable(drive: Drive) -> None:
    with ScriptedServer() as one:
        assert drive(smoke, one.url).measured.status == "unrunnable"


@pytest.mark.parametrize("script", [Script(status=500), Script(tokens=0, finish="stop")])
def test_a_server_that_does_not_answer_does_not_pass(drive: Drive, script: Script) -> None:
    with ScriptedServer(script) as one:
        assert drive(smoke, one.url, limits=Limits(stall_s=2)).measured.status != "measured"


GOOD = (
    "The sea is wide and deep. Ships cross it with goods from every country, and many people live by what they catch "
    "in it. When the wind is strong the waves are as high as a house."
)


@pytest.mark.parametrize("text", [GOOD, "Paris", "Rivers flow.", GOOD * 2])
def test_sense_is_not_taken_for_nonsense(text: str) -> None:
    assert nonsense(text) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("\ufffd\ufffd\ufffd the sea \ufffd\ufffd", "gibberish"),
        ("qwr tzp lkm nbv xcz rtp mnb vcx lkj hgf", "gibberish"),
        ("!!!!!! ???? ####", "gibberish"),
        ("the sea is blue. " * 40, "repeats"),
        ("the " * 20, "repeats"),
        ("," * 400, "repeats"),
    ],
)
def test_nonsense_is_named(text: str, word: str) -> None:
    found = nonsense(text)
    assert found is not None and found[0] == word


def test_thoughts_that_are_nonsense_count_too(drive: Drive) -> None:
    script = Script(reasoning=10_000, word="lane ")
    with ScriptedServer(script) as one:
        assert drive(smoke, one.url).measured.status == "unrunnable"
