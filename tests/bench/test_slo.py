"""Quantities and objectives as people write them, and which requests met them."""

from __future__ import annotations

import pytest
from lanes.bench.arrivals import Arrival
from lanes.bench.cells import CellResult, stream_figures
from lanes.bench.deltas import Usage
from lanes.bench.measures import FirstDelta
from lanes.bench.plan import Plan
from lanes.bench.probe import measure
from lanes.bench.slo import Slo, parse
from lanes.bench.stream import Stream
from lanes.bench.units import seconds, share
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

pytestmark = pytest.mark.usefixtures("patient")


def test_times_and_shares() -> None:
    times = [seconds(t) for t in ("50ms", "2s", " 1.5 min", "1h", "20us")]
    assert times == pytest.approx([0.05, 2, 90, 3600, 2e-5])
    assert share("3%") == 0.03 and share("0.5 %") == pytest.approx(0.005)


@pytest.mark.parametrize("text", ["", "2", "2 parsecs", "-2s", "0ms", "s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time such as 50ms"):
        seconds(text)


@pytest.mark.parametrize("text", ["", "3", "0%", "100%", "-1%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match="is not a share such as 3%"):
        share(text)


def test_an_objective() -> None:
    assert parse("ttft=2s, itl=50ms") == Slo(ttft_s=2, itl_s=0.05)
    assert str(parse("e2e=1min,ttft=200ms")) == "ttft=200ms,e2e=60s"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is no objective: write ttft, itl or e2e, such as ttft=2s,itl=50ms"),
        ("ttft", "'ttft' is no objective: write ttft, itl or e2e, such as ttft=2s,itl=50ms"),
        ("speed=2s", "'speed=2s' is no objective: write ttft, itl or e2e, such as ttft=2s,itl=50ms"),
        ("ttft=2", "'2' is not a time such as 50ms, 2s or 10min"),
        ("ttft=2s,ttft=3s", "the objective names ttft twice"),
    ],
)
def test_what_is_no_objective(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(text)
    assert str(error.value) == sentence


def test_a_request_meets_an_objective_when_it_meets_each_bound() -> None:
    slo = parse("ttft=1s,itl=50ms")
    assert slo.met({"ttft_s": 1.0, "itl_mean_s": 0.05})
    assert not slo.met({"ttft_s": 1.01, "itl_mean_s": 0.01})
    assert not slo.met({"ttft_s": 0.1, "itl_mean_s": 0.06})
    assert not slo.met({"ttft_s": 0.1}), "what is not known was not met"


def test_an_answer_that_came_at_once_has_no_time_between_its_tokens() -> None:
    at_once = Stream(
        t0_ns=0,
        arrivals=(Arrival(1000, "content", 5), Arrival(1000, "content", 5)),
        usage=Usage(prompt_tokens=5, completion_tokens=2),
    )
    assert parse("itl=1ms").met(stream_figures(at_once, FirstDelta(tokens=1, source="single")))


def test_goodput_is_the_share_and_the_rate_of_requests_that_met_it() -> None:
    """Of four streams, one stalls in the middle of its answer: its median itl hides that, its mean does not."""

    def script(number: int, body: object) -> Script:
        return Script(ttft_s=0.05, gap_s=0.1 if number % 4 == 3 else 0.002)

    def cell(text: str) -> CellResult:
        with ScriptedServer(script) as server:
            endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
            plan = Plan(pp=200, tg=8, concurrency=4, passes=2, warmups=0, slo=parse(text))
            return measure(endpoint, plan)[0]

    figures = cell("ttft=30s,itl=40ms").metrics
    assert figures["slo_share"].median == 0.75
    # Three of the four, in the 0.75 s that the slowest took.
    assert figures["goodput_rps"].median == pytest.approx(3 / 0.75, rel=0.3)
    assert cell("ttft=1ms").metrics["goodput_rps"].median == 0.0
