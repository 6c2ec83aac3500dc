"""invariance against servers that batch and differ, batch and do not, do not batch, or never answer alike."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import attrs
from lanes.bench.arrivals import Arrival
from lanes.bench.deltas import Usage
from lanes.bench.stream import Stream
from lanes.instruments import invariance
from lanes.instruments.invariance import Compared, compare, row
from lanes.testing.scripted import Script, ScriptedServer

ROWS = ["alone, again", "in a batch of 2", "in a batch of 4"]
QUICK = invariance.Options(batches=(2, 4), prompts=2, prompt=64, answer=16)


class Batches:
    """Tells how many requests came together with one."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._lock = threading.Lock()

    def size(self) -> int:
        now = time.monotonic()
        with self._lock:
            self._times.append(now)
        time.sleep(0.3)
        with self._lock:
            return sum(abs(at - now) < 0.25 for at in self._times)


def test_a_server_that_answers_alike_has_no_fault(drive):
    with ScriptedServer(Script(gap_s=0.02)) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.measured.status == "measured"
    assert seen.statuses == dict.fromkeys(ROWS, "identical") and not seen.faults
    assert [seen.rows[name]["figures"]["at_once"] for name in ROWS] == [1, 2, 4]
    assert seen.rows["in a batch of 4"]["figures"]["prompts"] == 2
    sent = [a.body for a in server.answers if a.body["max_tokens"] == 16]
    assert {body["temperature"] for body in sent} == {0} and len({body["seed"] for body in sent}) == 1
    # Each prompt is sent three times alone and once in each batch; nobody else's is the same.
    times = sorted((sum(b["messages"] == body["messages"] for b in sent) for body in sent), reverse=True)
    assert times == [5] * 10 + [1] * 8


def test_a_server_that_differs_in_batches_is_a_fault(drive):
    batches = Batches()

    def script(number: int, body: Mapping[str, Any]) -> Script:
        if body["max_tokens"] == 16 and batches.size() > 2:
            return Script(gap_s=0.05, word="lamp ")
        return Script(gap_s=0.05)

    with ScriptedServer(script) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.faults == {"in a batch of 4": "differs"}
    differs = seen.rows["in a batch of 4"]
    assert (
        differs["reason"]
        == "2 of 2 answers differ from the one alone, at the earliest after 0 tokens (2 characters)"
    )
    assert (differs["figures"]["common_chars"], differs["figures"]["common_tokens"]) == (2, 0)
    shown = differs["evidence"]["differences"][0]
    assert shown["alone"].startswith("lane lane") and shown["in_batch"].startswith("lamp lamp")


def test_a_server_that_never_answers_alike_is_told_apart(drive):
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(gap_s=0.02, word=f"lane{number} ")

    with ScriptedServer(script) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.faults == {"alone, again": "differs"}
    assert seen.statuses["in a batch of 4"] == "not known"
    assert "but alone it is not the same twice either" in seen.rows["in a batch of 4"]["reason"]


def test_a_server_that_does_not_batch_proves_nothing(drive):
    with ScriptedServer(Script(gap_s=0.005), slots=1) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.statuses == {
        "alone, again": "identical", "in a batch of 2": "not batched", "in a batch of 4": "not batched",
    }  # fmt: skip
    assert not seen.faults
    with ScriptedServer(Script(gap_s=0.02), slots=3) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.rows["in a batch of 4"]["reason"] == "only 3 streams decoded at once"


def test_a_batch_that_fails_is_a_row_and_the_others_go_on(drive):
    batches = Batches()

    def script(number: int, body: Mapping[str, Any]) -> Script:
        many = body["max_tokens"] == 16 and batches.size() > 2
        return Script(gap_s=0.05, status=status if many else 200, message="too many")

    status = 500
    with ScriptedServer(script) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.faults == {"in a batch of 4": "failed"}
    assert seen.rows["in a batch of 4"]["reason"] == "the server answered HTTP 500: too many"
    assert seen.statuses["in a batch of 2"] == "identical"
    status, batches = 429, Batches()
    with ScriptedServer(script) as server:
        seen = drive(invariance, server.url, attrs.evolve(QUICK, prompts=1))
    assert seen.statuses["in a batch of 4"] == "refused" and not seen.faults


def test_a_server_that_fails_or_dies(drive):
    with ScriptedServer(Script(status=500)) as server:
        seen = drive(invariance, server.url, QUICK)
    assert seen.measured.status == "failed" and "HTTP 500" in seen.measured.reason
    with ScriptedServer(Script(gap_s=0.02)) as server:
        dead = {"alive": lambda: "the process exited with code 1" if len(server.answers) > 6 else None}
        seen = drive(invariance, server.url, invariance.Options(answer=100, prompt=64), subject=dead)
    assert (seen.measured.status, seen.measured.reason) == ("crashed", "the process exited with code 1")


def test_ctrl_c_keeps_the_prompts_that_had_ended(echo, wait_for):
    run = echo.start(
        "run", "--engine", "echo", "--instrument", "invariance", "--with", "invariance.prompts=500",
    )  # fmt: skip

    def rows() -> list[dict[str, Any]]:
        runs = echo("history", "--json").json
        lanes = runs[0]["lanes"] if runs else []
        return [row for lane in lanes for one in lane["instruments"] for row in one["rows"]]

    wait_for(lambda: len(rows()) == 4, "a prompt", 60)
    os.kill(run.pid, signal.SIGINT)
    assert echo.finish(run).code == 130
    (lane,) = echo("history", "--json").json[0]["lanes"]
    assert lane["status"] == "interrupted"
    kept = {row["name"]: row["figures"]["prompts"] for row in lane["instruments"][0]["rows"]}
    assert list(kept) == ["alone, again", "in a batch of 2", "in a batch of 4", "in a batch of 8"]
    assert min(kept.values()) >= 1


# -- The comparison, without any server -------------------------------------------------------------


def stream(*deltas: str, cached: int | None = 0) -> Stream:
    """A stream with a delta of text each, a token for each of its words."""
    total, arrivals = 0, []
    for number, text in enumerate(deltas):
        total += len(text.split())
        arrivals.append(Arrival(number * 1000, "content", len(text), total, None))
    usage = Usage(prompt_tokens=5, completion_tokens=total, cached_tokens=cached)
    return Stream(t0_ns=0, arrivals=tuple(arrivals), text="".join(deltas), usage=usage)


def test_the_common_prefix_is_counted_in_characters_and_in_whole_deltas():
    found = compare(stream("one ", "two three ", "four "), stream("one ", "two three ", "fuor ", "five "))
    assert (found.identical, found.chars, found.tokens) == (False, 15, 3)
    found = compare(stream("one ", "two "), stream("one ", "two ", "more "))
    assert (found.identical, found.chars, found.tokens) == (False, 8, 2)
    assert compare(stream("one ", "two "), stream("one two ")).identical


def test_a_row_tells_the_worst_and_what_may_explain_it():
    def one(identical: bool, chars: int, cached: tuple[int, int] = (9, 9)) -> Compared:
        return Compared(identical=identical, chars=chars, tokens=chars / 5, at_once=2, cached=cached)

    made = row(2, [one(True, 500), one(False, 300), one(False, 35)])
    assert (made.status, made.fault) == ("differs", True)
    assert (
        made.reason
        == "2 of 3 answers differ from the one alone, at the earliest after 7 tokens (35 characters)"
    )
    assert made.figures["identical"] == 1
    assert "not as much of the prompt came from the cache" in str(row(2, [one(False, 5, (9, 0))]).reason)
    assert row(2, [one(False, 5)], sure=False).fault is False
