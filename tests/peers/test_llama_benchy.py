"""llama-benchy itself against servers of known schedule: where it is wrong, and that it is run as it should be."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from lanes.testing.scripted import Script, ScriptedServer

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("llama_benchy")]

TTFT_S, TPS = 0.2, 100.0
PLAIN = Script(ttft_s=TTFT_S, gap_s=1 / TPS, role="none", usage="every", prefix_cache=True)
PP, TG = 256, 33
CELL = ("--pp", str(PP), "--tg", str(TG), "--passes", "2", "--warmups", "0")
PREFILL_TPS = PP / TTFT_S


def ask(server: ScriptedServer, *more: str, instrument: str = "benchy") -> tuple[str, ...]:
    return ("bench", "--url", server.url, *CELL, "--instrument", instrument, *more)


def median(found: Mapping[str, Any], name: str) -> float:
    return float(found["metrics"][name]["median"])


def test_a_sound_server_gets_no_flag_and_figures_beside_ours(lanes, instrument_of) -> None:
    grid = ("--depth", "0,256", "--depth-shape", "suffix,ctx", "--concurrency", "1,2")
    with ScriptedServer(PLAIN) as server:
        ran = lanes(*ask(server, *grid, "--json"), timeout=200)
    assert ran.code == 0, ran.said
    found = instrument_of(ran.json, "benchy")
    assert len(found["cells"]) == len(found["rows"]) == 6
    for cell in found["cells"]:
        assert cell["status"] == "ok", cell
        decode = "decode_tps" if cell["concurrency"] == 1 else "stream_decode_tps"
        assert median(cell, "ttft_s") == pytest.approx(TTFT_S, rel=0.25)
        assert median(cell, decode) == pytest.approx(TPS, rel=0.25)
    for row in found["rows"]:
        assert row["status"] in ("agrees", "differs"), row
        assert row["evidence"]["flags"] == []
        figures = row["figures"]
        off = figures["ttft_s"]["median"] / figures["own_ttft_s"] - 1
        assert figures["off_ttft_share"] == pytest.approx(off)
    assert found["plan"]["version"].startswith("0.4")


def test_the_probes_cells_of_the_same_run_stand_beside_its_own(lanes, instrument_of) -> None:
    with ScriptedServer(PLAIN) as server:
        ran = lanes(*ask(server, "--json", instrument="probe,benchy"), timeout=120)
        asked = len(server.answers)
    (cell,) = instrument_of(ran.json, "probe")["cells"]
    (row,) = instrument_of(ran.json, "benchy")["rows"]
    assert row["figures"]["own_decode_tps"] == median(cell, "decode_tps")
    # One to learn and two passes; benchy: two to warm up, one to be thrown away, two runs.
    assert asked == 3 + 5


def test_an_early_role_is_flagged_and_prefill_put_right(lanes, instrument_of) -> None:
    early = Script(ttft_s=TTFT_S, gap_s=1 / TPS, role="early", usage="every")
    with ScriptedServer(early) as server:
        ran = lanes(*ask(server, "--json"), timeout=120)
    assert ran.code == 0, ran.said
    (row,) = instrument_of(ran.json, "benchy")["rows"]
    (cell,) = instrument_of(ran.json, "benchy")["cells"]
    assert row["status"] == "put right"
    (flag,) = row["evidence"]["flags"]
    assert flag["kind"] == "early-role"
    # Where the network's latency is more than the role took, it has no figure at all.
    assert flag["said"] is None or flag["said"] > 5 * PREFILL_TPS
    assert row["figures"].get("said_prefill_tps") == flag["said"]
    assert median(cell, "prefill_tps") == pytest.approx(PREFILL_TPS, rel=0.25)
    assert median(cell, "decode_tps") == pytest.approx(TPS, rel=0.25)
    assert "stops its clock at an event without a token" in row["reason"]


def test_several_tokens_in_the_first_delta_are_flagged_and_decode_put_right(lanes, instrument_of) -> None:
    script = Script(ttft_s=TTFT_S, gap_s=4 / TPS, tokens_per_delta=4, role="none", usage="every")
    with ScriptedServer(script) as server:
        ran = lanes(*ask(server, "--tg", "32", "--json"), timeout=120)
    (row,) = instrument_of(ran.json, "benchy")["rows"]
    (cell,) = instrument_of(ran.json, "benchy")["cells"]
    (flag,) = row["evidence"]["flags"]
    assert (row["status"], flag["kind"]) == ("put right", "k1")
    # It credits 31 tokens to the time of 28.
    assert flag["said"] / median(cell, "decode_tps") == pytest.approx(31 / 28)
    assert median(cell, "decode_tps") == pytest.approx(TPS, rel=0.2)


def test_token_ids_tell_it_the_first_delta(lanes, instrument_of) -> None:
    script = Script(ttft_s=TTFT_S, gap_s=4 / TPS, tokens_per_delta=4, role="none", token_ids=True)
    with ScriptedServer(script) as server:
        ran = lanes(*ask(server, "--tg", "32", "--with", "benchy.own=false", "--json"), timeout=120)
    (row,) = instrument_of(ran.json, "benchy")["rows"]
    assert row["evidence"]["flags"] == []
    assert row["status"] == "alone"


def test_all_requests_failed_although_it_exits_with_0(lanes, instrument_of) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return Script(status=500, message="out of slots") if body.get("max_tokens", 1) > 1 else PLAIN

    with ScriptedServer(script) as server:
        ran = lanes(*ask(server, "--with", "benchy.own=false", "--json"), timeout=120)
    found = instrument_of(ran.json, "benchy")
    (cell,) = found["cells"]
    (row,) = found["rows"]
    assert ran.code == 1
    assert found["status"] == "failed"
    assert cell["status"] == row["status"] == "invalid"
    assert cell["reason"].startswith(
        "2 of its 2 requests failed, which its exit code does not tell: HTTP 500"
    )
    assert "out of slots" in cell["reason"]
    assert [flag["kind"] for flag in row["evidence"]["flags"]] == ["failed"]


def test_a_server_that_refuses_the_field_it_always_sends(lanes, instrument_of) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        return (
            Script(status=400, message="return_token_ids is not supported")
            if body.get("return_token_ids")
            else PLAIN
        )

    with ScriptedServer(script) as server:
        ran = lanes(*ask(server, "--with", "benchy.own=false", "--json"), timeout=120)
    (cell,) = instrument_of(ran.json, "benchy")["cells"]
    assert cell["status"] == "ok", cell
    assert any("return_token_ids=false" in note for note in cell["notes"])


def test_it_is_sent_what_ours_sends_and_needs_no_network(lanes) -> None:
    lanes.env |= {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    with ScriptedServer(PLAIN, owned_by="vllm") as server:
        ran = lanes(*ask(server, "--with", "benchy.own=false", "--json"), timeout=120)
        bodies = [one.body for one in server.answers if one.body.get("max_tokens") == TG]
        lengths = [one.prompt_tokens for one in server.answers if one.body.get("max_tokens") == TG]
    assert ran.code == 0, ran.said
    assert len(bodies) == 3
    for body in bodies:
        assert (body["temperature"], body["seed"], body["ignore_eos"], body["min_tokens"]) == (
            0,
            42,
            True,
            TG,
        )
    assert lengths == [PP] * 3
    texts = [body["messages"][-1]["content"] for body in bodies]
    assert len(set(texts)) == 3
    assert re.fullmatch(r"[A-Za-z ,.?]+", texts[0])


def test_ctrl_c_ends_it_and_keeps_the_cells_that_had_ended(lanes, wait_for, running, instrument_of) -> None:
    with ScriptedServer(PLAIN) as server:
        process = lanes.start(*ask(server, "--tg", "33,3000", "--with", "benchy.own=false", "--json"))
        wait_for(
            lambda: any(one.body.get("max_tokens") == 3000 for one in server.answers), "the second cell", 120
        )
        assert running(server.url)
        process.send_signal(signal.SIGINT)
        ran = lanes.finish(process, 90)
    assert ran.code == 130
    assert running(server.url) == []
    (document,) = lanes("history", "--json").json
    cells = instrument_of(document, "benchy")["cells"]
    assert cells[0]["tg"] == 33
    assert cells[0]["status"] == "ok"


def test_it_does_not_outlive_lanes(lanes, wait_for, running) -> None:
    with ScriptedServer(PLAIN) as server:
        process = lanes.start(*ask(server, "--tg", "3000", "--with", "benchy.own=false"))
        wait_for(lambda: any(one.body.get("max_tokens") == 3000 for one in server.answers), "a request", 120)
        process.kill()
        process.wait()
        wait_for(lambda: not running(server.url), "the end of llama-benchy", 20)


def test_the_key_is_in_no_command_line_and_in_no_file(lanes, wait_for, running, files_with) -> None:
    key = "sk-0123456789-not-for-anyone"
    lanes.env["SOME_KEY"] = key
    with ScriptedServer(PLAIN, key=key) as server:
        process = lanes.start(
            *ask(server, "--tg", "400", "--api-key-env", "SOME_KEY", "--with", "benchy.own=false")
        )
        wait_for(lambda: any(one.body.get("max_tokens") == 400 for one in server.answers), "a request", 120)
        assert running(server.url)
        assert running(key) == []
        ran = lanes.finish(process, 90)
    assert ran.code == 0, ran.said
    assert key not in ran.said
    assert files_with(lanes.home, "llama-benchy")
    assert files_with(lanes.home, key) == []
