"""Closed and open loads from end to end: what counts, what is reported, what is never hidden."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from lanes.bench import loadpass, loads, timelines
from lanes.bench.arrivals import Arrival
from lanes.bench.cells import CellResult, Pass
from lanes.bench.deltas import Usage
from lanes.bench.loads import Sent
from lanes.bench.measures import FirstDelta
from lanes.bench.plan import Cell, Limits, Plan
from lanes.bench.probe import measure
from lanes.bench.slo import Slo
from lanes.bench.stream import Stream
from lanes.bench.tally import Tally
from lanes.bench.timelines import Batch
from lanes.bench.validity import Terms
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

pytestmark = pytest.mark.usefixtures("patient")

MS = 1_000_000
QUICK = {
    "pp": 128,
    "tg": 8,
    "passes": 1,
    "warmups": 0,
    "limits": Limits(connect_s=5, first_byte_s=20, stall_s=20),
}


def probe(server: ScriptedServer, **plan: Any) -> tuple[CellResult, list[Pass], list[Sent]]:
    batches: list[Batch] = []
    passes: list[Pass] = []
    endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
    (cell,) = measure(endpoint, Plan(**(QUICK | plan)), on_batch=batches.append, on_pass=passes.append)
    return cell, passes, [sent for batch in batches for sent in timelines.unpack(batch.packed)]


def test_a_closed_load_keeps_its_streams_busy_and_leaves_the_ramps_out() -> None:
    with ScriptedServer(Script(ttft_s=0.05, gap_s=0.01, usage="every")) as server:
        cell, (one,), sent = probe(server, load="closed", concurrency=3, requests=18)
    assert (cell.status, cell.load, cell.concurrency, cell.requests) == ("ok", "closed", 3, 18)
    assert len(server.answers) == 1 + 18  # one to learn, no warm-ups
    # At each end of a request the next one is sent: three are under way from the first to the last.
    starts, ends = sorted(s.stream.t0_ns for s in sent), sorted(s.ended_ns for s in sent)
    busy = [sum(a <= at < b for a, b in zip(starts, ends, strict=True)) for at in starts[3:]]
    assert max(busy) <= 3 and statistics.median(busy) >= 2
    figures = cell.metrics
    assert figures["counted_requests"].median < 18 - 3
    assert figures["ttft_s"].median == pytest.approx(0.05, abs=0.03)
    # A request takes 50 ms and seven gaps of 10 ms.
    assert 0.3 * 3 / 0.12 < figures["request_rps"].median < 1.3 * 3 / 0.12
    assert figures["load_tps"].median / figures["request_rps"].median == pytest.approx(8, rel=0.3)
    assert "prefill_tps" in figures and "decode_tps" not in figures
    assert one.streams == () and one.requests == 18
    assert {s.number for s in sent} == set(range(18))


def test_every_request_of_a_load_is_cold_and_every_lane_gets_the_same() -> None:
    def prompts(server: ScriptedServer) -> set[str]:
        return {a.body["messages"][0]["content"] for a in server.answers if a.body["max_tokens"] == 8}

    with ScriptedServer() as one, ScriptedServer() as other:
        for server in (one, other):
            probe(server, load="closed", concurrency=2, requests=8, passes=2, comparison="c")
    assert len(prompts(one)) == 16
    assert prompts(one) == prompts(other)


def test_a_closed_load_after_a_cached_prefix() -> None:
    with ScriptedServer(Script(prefix_cache=True, gap_s=0.002)) as server:
        cell, (one,), _ = probe(server, load="closed", concurrency=2, requests=8, depth=512)
    assert cell.status == "ok", cell.reason
    assert len(one.prefixes) == 2
    assert cell.metrics["cached_tokens"].median == pytest.approx(512, abs=30)


def test_an_open_load_waits_for_nobody() -> None:
    with ScriptedServer(Script(ttft_s=0.3, gap_s=0.001)) as server:
        cell, _, sent = probe(server, load="open", rate=(40,), requests=40)
    assert (cell.status, cell.load, cell.rate, cell.concurrency) == ("ok", "open", 40, 0)
    # 40 a second of 0.3 s each: about 12 at once, though none of them was asked for.
    assert cell.metrics["in_flight_max"].median > 5
    assert cell.metrics["schedule_delay_s"].median < 0.05
    assert cell.metrics["ttft_s"].median == pytest.approx(0.3, abs=0.1)
    due = sorted(s.due_ns or 0 for s in sent)
    assert cell.metrics["offered_rps"].median == pytest.approx(39 / ((due[-1] - due[0]) / 1e9))


def test_the_schedule_of_a_rate_is_poisson_and_the_same_for_the_same_seed() -> None:
    gaps = list(itertools.islice(loads.gaps("seed", 4.0), 4000))
    assert gaps == list(itertools.islice(loads.gaps("seed", 4.0), 4000))
    assert gaps != list(itertools.islice(loads.gaps("another", 4.0), 4000))
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    # Exponential: as wide as its mean.
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)


def test_a_server_that_cannot_hold_the_rate_shows_it() -> None:
    """It serves one at a time, 50 ms each: 20 a second, and 100 come."""
    queue = itertools.count()

    def one_at_a_time(number: int, body: Mapping[str, Any]) -> Script:
        return Script(ttft_s=0.05 * next(queue) if body["max_tokens"] > 1 else 0, usage="every")

    with ScriptedServer(one_at_a_time) as server:
        cell, _, _ = probe(server, load="open", rate=(100,), requests=40, limits=Limits())
    assert cell.status == "ok", cell.reason
    # Half of the requests waited for twenty others, and the tail for nearly all.
    assert cell.metrics["ttft_s"].median > 0.5
    assert cell.metrics["ttft_p99_s"].median > 1
    assert cell.metrics["request_rps"].median < 40 < cell.metrics["offered_rps"].median
    assert any("the server does not hold 100 requests/s" in note for note in cell.notes)


def test_a_queue_shows_even_when_the_schedule_is_shorter_than_an_answer() -> None:
    with ScriptedServer(Script(ttft_s=0.3), slots=1) as server:
        cell, _, _ = probe(server, load="open", rate=(100,), requests=8)
    assert cell.status == "ok", cell.reason
    assert any("does not hold 100 requests/s: the last answer came" in note for note in cell.notes)


def test_a_schedule_that_is_shorter_than_an_answer_tells_nothing_of_the_rate() -> None:
    with ScriptedServer(Script(ttft_s=1.0)) as server:
        cell, _, _ = probe(server, load="open", rate=(40,), requests=10)
    assert cell.status == "ok", cell.reason
    assert any("too short to tell whether the server holds 40 requests/s" in note for note in cell.notes)
    assert not any("does not hold" in note for note in cell.notes)


def test_a_request_that_is_sent_late_counts_from_its_schedule_and_the_delay_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two may be under way, of 100 ms each, and 100 a second come: the others wait here."""
    monkeypatch.setattr("lanes.bench.loads.most_at_once", lambda: 2)
    monkeypatch.setattr("lanes.bench.tally.most_at_once", lambda: 2)
    monkeypatch.setattr("lanes.bench.loads.LEAD_S", 0.0)
    with ScriptedServer(Script(ttft_s=0.1)) as server:
        cell, _, sent = probe(server, load="open", rate=(100,), requests=20)
    assert cell.status == "ok", cell.reason
    assert max(s.delay_s for s in sent) > 0.4
    assert cell.metrics["schedule_delay_max_s"].median == pytest.approx(max(s.delay_s for s in sent))
    # The server answered each within 100 ms; who came late waited for much longer.
    assert cell.metrics["ttft_s"].median > 0.3
    assert any("too many were under way; latencies count from the schedule" in n for n in cell.notes)


def test_a_client_that_is_late_by_its_own_fault_makes_the_cell_invalid() -> None:
    terms = Terms(
        cell=Cell(pp=100, tg=2, load="open", concurrency=0, rate=1.0, requests=3),
        passes=1,
        fixed_length=False,
    )
    tally = Tally(terms)
    for number in range(3):
        tally.add(request(number, 1000 * number + 700, due_ms=1000 * number))
    assert (
        tally.fault() == "the client was late: half of its requests started over 700.0 ms after they were due"
    )
    assert tally.figures()["ttft_s"] == pytest.approx(0.7 + 0.1)


def request(
    number: int, t0_ms: float, *, due_ms: float | None = None, first_ms: float = 100, n: int = 2
) -> Sent:
    """A request of `n` tokens, one each 100 ms after the first."""
    return Sent(
        number=number,
        due_ns=None if due_ms is None else int(due_ms * MS),
        stream=Stream(
            t0_ns=int(t0_ms * MS),
            arrivals=tuple(Arrival(int((first_ms + 100 * i) * MS), "content", 4, i + 1) for i in range(n)),
            usage=Usage(prompt_tokens=100, completion_tokens=n, cached_tokens=0),
        ),
        first_delta=FirstDelta(tokens=1, source="usage"),
    )


def test_the_window_of_a_closed_load_by_hand() -> None:
    # Two streams, six requests of 200 ms each, one stream half a request behind the other.
    terms = Terms(
        cell=Cell(pp=100, tg=2, load="closed", concurrency=2, requests=6), passes=1, fixed_length=False
    )
    tally = Tally(terms, Slo(ttft_s=0.1, itl_s=0.05))
    for number in range(6):
        tally.add(request(number, 100 * number))
    figures = tally.figures()
    # Ramp-up ends at 300 ms with request 1, ramp-down begins at 600 ms with request 4.
    assert figures["counted_requests"] == 3
    assert figures["request_rps"] == pytest.approx(3 / 0.3)
    # Tokens at 400, 400, 500, 500, 600, 600 ms.
    assert figures["load_tps"] == pytest.approx(6 / 0.3)
    assert figures["slo_share"] == 0.0 and figures["goodput_rps"] == 0.0


def test_failures_in_a_load_are_counted_and_named_and_the_others_keep_their_figures() -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(gap_s=0.001, cut_after=5 if number in (4, 7) else None)

    with ScriptedServer(script) as server:
        cell, (one,), _ = probe(server, load="closed", concurrency=2, requests=12)
    assert cell.status == "invalid"
    assert cell.reason == ("1 of 1 passes failed: 2 of 12 requests failed: the stream was cut after 5 deltas")
    assert cell.metrics["ttft_s"].n == 1 and one.requests == 12


def test_a_load_on_a_server_that_only_fails_is_given_up() -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(status=500, message="out of luck") if body["max_tokens"] > 1 else Script()

    with ScriptedServer(script) as server:
        cell, _, _ = probe(server, load="closed", concurrency=2, requests=200)
    assert "10 of 10 requests failed, the other 190 were not sent" in (cell.reason or "") or (
        "11 of 11 requests failed" in (cell.reason or "")
    )
    assert "out of luck" in (cell.reason or "")
    assert len(server.answers) < 20


@pytest.mark.parametrize(
    ("bad", "reason", "load"),
    [
        (
            Script(stall_after=4),
            "the server stalled: nothing came for 1 s after 4 deltas",
            {"load": "closed", "concurrency": 2},
        ),
        (
            Script(role="none", ttft_s=9),
            "the server stalled: nothing came for",
            {"load": "open", "rate": 50.0},
        ),
    ],
    ids=["stalls", "is late"],
)
def test_a_server_that_stalls_or_is_late_spoils_its_cell_and_no_other(
    bad: Script, reason: str, load: dict[str, Any]
) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return bad if body["max_tokens"] == 16 and number % 3 == 0 else Script(gap_s=0.001)

    limits = Limits(connect_s=5, first_byte_s=1.0, stall_s=1.0)
    plan = QUICK | load | {"tg": (8, 16, 24), "requests": 9, "limits": limits}
    with ScriptedServer(script) as server:
        endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
        cells = measure(endpoint, Plan(**plan))
    assert [c.status for c in cells] == ["ok", "invalid", "ok"], [c.reason for c in cells]
    assert reason in (cells[1].reason or "")


def test_one_request_that_cannot_be_believed_is_named() -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(gap_s=0.001, usage="none" if number == 5 else "last")

    with ScriptedServer(script) as server:
        cell, _, _ = probe(server, load="open", rate=(100,), requests=10)
    assert cell.status == "invalid"
    assert (
        cell.reason
        == "1 of 10 requests: the server sent no usage, so nobody knows how many tokens there were"
    )


@pytest.mark.parametrize("load", [{"load": "closed", "concurrency": 2}, {"load": "open", "rate": 50.0}])
def test_a_fault_of_our_own_in_a_load_is_raised_and_nothing_waits_for_ever(
    load: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = itertools.count()

    def cut_to(prompt: Any, chars: float) -> str:
        if next(asked) == 30:
            raise ZeroDivisionError("ours")
        return "word " * 100

    monkeypatch.setattr("lanes.bench.probe.cut_to", cut_to)
    with ScriptedServer() as server, pytest.raises(ZeroDivisionError, match="ours"):
        probe(server, requests=60, **load)


def test_a_server_that_dies_under_a_load_is_a_crash() -> None:
    server = ScriptedServer(Script(gap_s=0.01)).start()
    endpoint = Endpoint(url=server.url, model="scripted")
    plan = Plan(**(QUICK | {"load": "closed", "concurrency": 2, "requests": 200, "tg": (8, 16)}))

    def on_progress(progress: Any) -> None:
        if "requests" in progress.phase and len(server.answers) > 6:
            server.stop()

    first, second = measure(endpoint, plan, on_progress=on_progress)
    assert first.status == "crashed" and "nothing listens at" in (first.reason or "")
    assert second.status == "skipped"


def test_timelines_come_back_as_they_were() -> None:
    many = [request(n, 10 * n, due_ms=9 * n if n % 2 else None, n=3) for n in range(5)]
    assert list(timelines.unpack(timelines.pack(map(timelines.line, many)))) == many
    with pytest.raises(ValueError):
        list(timelines.unpack("AAAA"))


def test_each_timeline_is_kept_once_although_they_are_slow_to_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests end while others are packed, and the load ends in the middle of that."""
    pack = timelines.pack

    def slowly(lines: Iterable[bytes]) -> str:
        time.sleep(0.03)
        return pack(lines)

    monkeypatch.setattr(timelines, "pack", slowly)
    monkeypatch.setattr(loadpass, "_WRITE_S", 0.001)
    with ScriptedServer(Script(ttft_s=0.005, gap_s=0.001, usage="every")) as server:
        _, _, sent = probe(server, load="closed", concurrency=8, requests=150)
    assert sorted(one.number for one in sent) == list(range(150))
