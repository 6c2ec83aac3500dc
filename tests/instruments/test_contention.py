"""contention: starved decode told from full-speed decode behind prefills in line, on servers of known timing."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import attrs
import pytest
from lanes.bench.arrivals import Arrival
from lanes.bench.calibration.metronome import Metronome
from lanes.bench.deltas import Usage
from lanes.bench.stream import Stream
from lanes.instruments import contention
from lanes.instruments.contention_figures import Seen, beside, together, word
from lanes.testing.scripted import Script, ScriptedServer

DEPTH = 4096
BESIDE, TOGETHER = "depth 4,096: decode beside a prefill", "depth 4,096: two prompts at once"
QUICK = contention.Options(depths=(DEPTH,), passes=2, prompt=64)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the metronome is Linux's")


def at_metronome(drive: Any, passes: int = 1, **script: Any) -> Any:
    """A deep prompt takes a second, a token 20 ms."""
    options = attrs.evolve(QUICK, passes=passes)
    with Metronome(Script(ttft_s=0.02, prefill_tps=4096, gap_s=0.02, **script)) as metronome:
        return drive(contention, metronome.url, options, model="metronome", tg=32)


def median(row: dict[str, Any], name: str) -> float:
    return float(row["figures"][name]["median"])


@linux
def test_full_speed_decode_behind_prefills_in_line_is_no_fault(drive):
    """The span figure looks like a collapse, as in the seed's deep rows, and nothing starves."""
    seen = at_metronome(drive, passes=2, in_line=True)
    assert not seen.faults and seen.measured.status == "measured"
    assert seen.statuses == {BESIDE: "full speed", TOGETHER: "in line, full speed"}
    alone, both = seen.rows[BESIDE], seen.rows[TOGETHER]
    assert median(alone, "decode_share") == pytest.approx(1, abs=0.2)
    assert median(alone, "itl_beside_s") == pytest.approx(0.02, abs=0.008)
    assert median(both, "ttft_second_s") == pytest.approx(2 * median(both, "ttft_first_s"), rel=0.1)
    # Two streams of 50 tok/s each.
    assert median(both, "span_tps") < 0.6 * 2 * median(both, "decode_tps_alone")
    assert "the prompts are read in line, first tokens after" in both["reason"]
    assert alone["figures"]["decode_share"]["n"] == 2
    assert any(" s left" in told for told in seen.told)


@linux
def test_starved_decode_is_a_fault(drive):
    """The same prefills in line, and the same span but for the end; a token takes twenty times as long meanwhile."""
    seen = at_metronome(drive, in_line=True, beside_prefill=20.0)
    assert seen.faults == {BESIDE: "starved", TOGETHER: "in line, starved"}
    row = seen.rows[BESIDE]
    assert median(row, "decode_share") < 0.1
    assert median(row, "itl_beside_s") > 5 * median(row, "itl_alone_s")
    assert 0.3 < median(row, "stall_max_s") < 0.7
    assert "while another stream prefills 4,096 tokens; its longest pause is 0." in row["reason"]


@linux
def test_between_the_two_it_is_slowed(drive):
    seen = at_metronome(drive, beside_prefill=3.0)
    assert seen.statuses[BESIDE] == "slowed" and not seen.faults
    assert median(seen.rows[BESIDE], "decode_share") == pytest.approx(0.33, abs=0.15)


def test_a_server_with_one_place_is_told_apart(drive):
    """Nothing is slowed, for nothing runs beside anything."""
    with ScriptedServer(Script(prefill_tps=8192, gap_s=0.01), slots=1) as server:
        seen = drive(contention, server.url, contention.Options(depths=(DEPTH,), passes=1, prompt=64), tg=64)
    assert seen.statuses == {BESIDE: "one at a time", TOGETHER: "one at a time"}
    assert not seen.faults


def test_what_does_not_fit_is_skipped_and_the_rest_goes_on(drive):
    options = contention.Options(depths=(512, 4096), passes=1, prompt=64)
    with ScriptedServer(Script(prefill_tps=2048, gap_s=0.005), context=2048) as server:
        seen = drive(contention, server.url, options, tg=32)
        assert seen.statuses[BESIDE] == seen.statuses[TOGETHER] == "skipped"
        assert seen.rows[BESIDE]["reason"] == "it needs 4,128 tokens, and the server's context has 2,048"
        assert seen.statuses["depth 512: decode beside a prefill"] in (
            "full speed",
            "slowed",
        )  # a busy machine
        # `--depth` is the user's wish, whatever the options' default is.
        seen = drive(contention, server.url, QUICK, tg=32, depth=(8192,))
    assert set(seen.statuses.values()) == {"skipped"} and len(seen.rows) == 2
    assert seen.measured.reason == "not even 8,192 tokens fit into the server's context"
    # A server that does not tell its context says so when it is asked for more.
    with ScriptedServer(Script(prefill_tps=2048, gap_s=0.005), context=2048, tells_context=False) as server:
        seen = drive(contention, server.url, options, tg=32)
    assert seen.statuses[BESIDE] == "skipped" and not seen.faults
    assert "maximum context length is 2048 tokens" in seen.rows[BESIDE]["reason"]


def test_a_failed_request_is_a_row_with_its_reason(drive):
    def script(number: int, body: Any) -> Script:
        return Script(gap_s=0.005, status=500 if len(body["messages"][0]["content"]) > 9000 else 200)

    options = contention.Options(depths=(512, 4096), passes=1, prompt=64)
    with ScriptedServer(script) as server:
        seen = drive(contention, server.url, options, tg=32)
    assert seen.faults == {BESIDE: "failed", TOGETHER: "failed"}
    assert seen.rows[BESIDE]["reason"] == "the server answered HTTP 500: the script says so"
    assert seen.measured.status == "measured"


def test_the_figures_of_passes_before_a_failure_are_kept(drive):
    def script(number: int, body: Any) -> Script:
        return Script(gap_s=0.005, prefill_tps=4096, status=500 if number > 9 else 200)

    options = contention.Options(depths=(512,), passes=9, prompt=64)
    with ScriptedServer(script) as server:
        seen = drive(contention, server.url, options, tg=32)
    row = seen.rows["depth 512: decode beside a prefill"]
    assert (row["status"], row["fault"]) == ("failed", True)
    assert row["figures"]["decode_share"]["n"] >= 1


def test_a_server_that_dies_meanwhile_is_a_crash(drive):
    with ScriptedServer(Script(gap_s=0.005)) as server:
        died = []

        def alive() -> str | None:
            return "the process was killed by SIGKILL" if len(server.answers) > 3 or died else None

        seen = drive(contention, server.url, QUICK, tg=400, subject={"alive": alive})
    assert (seen.measured.status, seen.measured.reason) == ("crashed", "the process was killed by SIGKILL")
    assert seen.faults == {BESIDE: "crashed", TOGETHER: "crashed"}


def test_ctrl_c_keeps_the_passes_that_had_ended(echo, wait_for):
    run = echo.start(
        "run", "--engine", "echo", "--set", "prefill_tokens_per_second=4000", "--instrument", "contention",
        "--depth", "2048", "--tg", "16", "--with", "contention.passes=50",
    )  # fmt: skip

    def rows() -> list[dict[str, Any]]:
        runs = echo("history", "--json").json
        lanes = runs[0]["lanes"] if runs else []
        return [row for lane in lanes for one in lane["instruments"] for row in one["rows"]]

    wait_for(lambda: len(rows()) == 2, "a pass", 60)
    os.kill(run.pid, signal.SIGINT)
    assert echo.finish(run).code == 130
    (lane,) = echo("history", "--json").json[0]["lanes"]
    assert lane["status"] == "interrupted"
    kept = {row["name"]: row for row in lane["instruments"][0]["rows"]}
    assert kept["depth 2,048: decode beside a prefill"]["figures"]["decode_share"]["n"] >= 1


# -- The figures, without any server ----------------------------------------------------------------


def stream(t0_s: float, *at_s: float, tokens: int = 1) -> Stream:
    """A stream whose deltas came at these times of a common clock, each of so many tokens."""
    arrivals = tuple(
        Arrival(round((at - t0_s) * 1e9), "content", 5, (i + 1) * tokens, None) for i, at in enumerate(at_s)
    )
    usage = Usage(prompt_tokens=10, completion_tokens=tokens * len(at_s))
    return Stream(t0_ns=round(t0_s * 1e9), arrivals=arrivals, usage=usage)


def every(gap: float, begin: float, end: float) -> list[float]:
    return [begin + i * gap for i in range(round((end - begin) / gap))]


def seen(running: Stream, deep: Stream, alone_s: float = 2.0) -> Seen:
    from lanes.bench.measures import first_delta

    return beside(running, first_delta(running), deep, alone_s)


def test_the_share_is_of_tokens_in_time_whatever_their_gaps():
    """A pause of the whole prefill, and a burst of few tokens in the middle of it: the median gap is short,
    and hardly anything came."""
    calm = every(0.01, 0.1, 1.0)
    bursts = [1.99 + i * 0.001 for i in range(8)]
    running = stream(0.0, *calm, *bursts, *every(0.01, 3.01, 4.0))
    found = seen(running, stream(1.0, 3.0, 3.01))
    assert found.share == pytest.approx(8 / 200, rel=0.2)
    assert word(found.share or 0) == "starved"
    assert found.figures["stall_max_s"] == pytest.approx(1.0, abs=0.05)
    assert found.figures["ttft_deep_s"] == pytest.approx(2.0)


def test_tokens_of_a_verify_step_count_each():
    running = stream(0.0, *every(0.04, 0.1, 4.0), tokens=4)
    found = seen(running, stream(1.0, 3.0, 3.01))
    assert found.share == pytest.approx(1, abs=0.1)
    assert found.figures["decode_tps_alone"] == pytest.approx(100, rel=0.1)


def test_what_cannot_be_told_is_not_told():
    late = seen(stream(0.0, *every(0.01, 1.5, 3.0)), stream(1.0, 3.0, 3.01))
    assert late.share is None and late.doubt == "the running stream had not begun when the other one was sent"
    short = seen(stream(0.0, *every(0.01, 0.1, 3.0)), stream(1.0, 1.05, 1.06), 0.05)
    assert short.share is None
    assert short.doubt == "they ran beside each other for 0.05 s, too short for 8 tokens"
    over = seen(stream(0.0, *every(0.01, 0.1, 0.9)), stream(1.0, 3.0, 3.01))
    assert over.share is None and over.doubt == "the running stream had ended when the other one was sent"
    assert not over.waited


def test_a_prefill_that_waited_is_not_one_beside():
    """The first token comes a whole prefill after the other stream's end."""
    assert seen(stream(0.0, *every(0.01, 0.1, 3.0)), stream(1.0, 5.0, 5.01)).waited
    assert not seen(stream(0.0, *every(0.01, 0.1, 2.5)), stream(1.0, 3.0, 3.01)).waited


def test_two_deep_streams_behind_each_other_are_not_taken_for_one_at_a_time():
    """A short answer ends long before the second prompt is read, as in the seed's 262K rows."""
    from lanes.bench.measures import first_delta

    one, other = stream(0.0, *every(0.02, 172, 174.5)), stream(0.0, *every(0.02, 344, 346.5))
    k1s = [first_delta(one), first_delta(other)]
    found = together([other, one], k1s, 50.0, 172.0)
    assert found.in_line and not found.waited
    assert found.share == pytest.approx(1, abs=0.1)
    assert found.figures["span_tps"] == pytest.approx(250 / 346.5, rel=0.01)
