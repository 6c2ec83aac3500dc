"""The probe from end to end, against servers that behave and servers that do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from lanes.bench.cells import CellResult, Pass, Progress
from lanes.bench.codec import as_json, from_json
from lanes.bench.plan import Limits, Plan
from lanes.bench.probe import measure
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

BRIEF = Limits(connect_s=2, first_byte_s=2, stall_s=0.3)
QUICK = {"pp": 256, "tg": 16, "passes": 3, "warmups": 1, "limits": BRIEF}


def probe(server: ScriptedServer, plan: Mapping[str, Any] = {}, **dialect: Any) -> tuple[CellResult, ...]:
    dialect = {"tokenize_path": "/tokenize"} | dialect
    endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(**dialect))
    return measure(endpoint, Plan(**(QUICK | dict(plan))))


def prompts(server: ScriptedServer) -> list[str]:
    return [a.body["messages"][0]["content"] for a in server.answers if a.body["max_tokens"] > 1]


def test_a_cell_has_its_figures_with_intervals_and_its_passes() -> None:
    passes: list[Pass] = []
    progress: list[Progress] = []
    with ScriptedServer(Script(ttft_s=0.05, gap_s=0.01, prefix_cache=True)) as server:
        endpoint = Endpoint(url=server.url, model="scripted", dialect=Dialect(tokenize_path="/tokenize"))
        (cell,) = measure(endpoint, Plan(**QUICK), on_pass=passes.append, on_progress=progress.append)
    assert (cell.status, cell.reason) == ("ok", None)
    assert cell.metrics["ttft_s"].median == pytest.approx(0.05, abs=0.02)
    assert cell.metrics["decode_tps"].median == pytest.approx(100, rel=0.1)
    assert cell.metrics["prompt_tokens"].median == 256
    assert {i.n for i in cell.metrics.values()} == {3}
    assert [(p.number, p.warmup) for p in passes] == [(1, True), (1, False), (2, False), (3, False)]
    assert cell.passes == tuple(passes)
    assert [p.phase for p in progress if "fitting" not in p.phase] == [
        "warm-up 1 of 1", "pass 1 of 3", "pass 2 of 3", "pass 3 of 3",
    ]  # fmt: skip
    assert {p.phase for p in progress if "fitting" in p.phase} == {"fitting the prompt length"}
    assert (progress[-1].number, progress[-1].total) == (4, 4)


def test_every_prompt_is_cold_and_every_lane_gets_the_same() -> None:
    plan = {"comparison": "c", "concurrency": (1, 2), "passes": 2}
    with ScriptedServer() as one, ScriptedServer() as other, ScriptedServer() as fresh:
        probe(one, plan)
        probe(other, plan)
        probe(fresh, plan | {"block": 1})
    assert len(set(prompts(one))) == len(prompts(one)) == 3 + 6
    assert len({p[:18] for p in prompts(one)}) == 9
    assert sorted(prompts(one)) == sorted(prompts(other))
    assert not set(prompts(one)) & set(prompts(fresh))


def test_what_is_sent() -> None:
    with ScriptedServer() as server:
        probe(
            server,
            extra={"chat_template_kwargs": {"thinking": False}},
            fixed_length={"ignore_eos": True},
            forbidden=frozenset({"seed", "stream_options.continuous_usage_stats"}),
        )
    body = dict(server.answers[-1].body)
    del body["messages"]
    assert body == {
        "model": "scripted",
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": False},
        "ignore_eos": True,
    }


def test_a_server_that_refuses_a_field_is_measured_without_it_and_this_is_said() -> None:
    with ScriptedServer(Script(refuses=("ignore_eos",), gap_s=0.001)) as server:
        (cell,) = probe(server, fixed_length={"ignore_eos": True})
    assert cell.status == "ok"
    assert any("sent without seed, ignore_eos" in n and "Unrecognized" in n for n in cell.notes)


def test_without_a_tokenizer_the_length_is_learned_from_usage() -> None:
    with ScriptedServer(Script(gap_s=0.001), tokenizer=False) as server:
        (cell,) = probe(server, {"pp": 4096, "warmups": 2}, tokenize_path=None)
        assert cell.metrics["prompt_tokens"].median == pytest.approx(4096, rel=0.02)
        (given_up,) = probe(server)
    assert any("the tokenizer failed" in note for note in given_up.notes)


def test_depth_is_a_warm_prefix_and_a_cold_suffix() -> None:
    with ScriptedServer(Script(ttft_s=0.03, gap_s=0.002, prefix_cache=True)) as server:
        (cell,) = probe(server, {"depth": 2048})
    assert cell.status == "ok", cell.reason
    assert cell.metrics["prompt_tokens"].median == pytest.approx(2304, abs=4)
    assert cell.metrics["cached_tokens"].median == pytest.approx(2048, abs=30)
    # Only the suffix is credited to the prefill.
    assert cell.metrics["prefill_tps"].median == pytest.approx(270 / cell.metrics["ttft_s"].median, rel=0.1)


def test_four_figures_at_concurrency_never_one() -> None:
    with ScriptedServer(Script(ttft_s=0.05, gap_s=0.01)) as server:
        (cell,) = probe(server, {"concurrency": 4})
    figures = cell.metrics
    assert cell.status == "ok", cell.reason
    assert "decode_tps" not in figures
    assert figures["stream_decode_tps"].median == pytest.approx(100, rel=0.1)
    assert figures["steady_tps"].median == pytest.approx(400, rel=0.15)
    assert figures["span_tps"].median == pytest.approx(64 / 0.2, rel=0.2)
    assert all(len(p.stream_figures) == 4 and "ttft_s" in p.stream_figures[3] for p in cell.passes)


def after_learning(number: int, body: Mapping[str, Any], script: Script) -> Script:
    return script if body["max_tokens"] > 1 else Script()


INVALID = {
    "not cold": ({"script": Script(cached=200)}, {}, "a prompt was not cold: the server had 200 of its tokens"),
    "no usage": ({"script": Script(usage="none")}, {}, "the server sent no usage"),
    "lies about usage": ({"script": Script(usage_lies=-12)}, {}, "usage counts 4 tokens, but 16 deltas"),
    "odd finish": ({"script": Script(finish="content_filter")}, {}, "an unexpected reason: content_filter"),
    "too short": ({"script": Script(tokens=3, finish="stop")}, {}, "ended by itself after 3 of 16 tokens"),
    "not the length that was fixed": (
        {"script": Script(tokens=15)},
        {"fixed_length": {"ignore_eos": True}},
        "an answer had 15 tokens, although 16 were fixed",
    ),
    "a length that cannot be": ({"plan": {"pp": 20}}, {}, "instead of 20 (more than 2% off)"),
    "cold prefix": ({"plan": {"depth": 500}}, {}, "the prefix was not warm: the server had 0 of 500 tokens"),
    "cache not told": ({"script": Script(cached=None), "plan": {"depth": 500}}, {}, "does not tell its cached"),
    "cut": ({"script": Script(cut_after=5)}, {}, "2 of 2 passes failed, the others were not tried: the stream was cut after 5 deltas"),
    "error": ({"script": Script(error_after=5)}, {}, "the server reported an error after 5 deltas: the script"),
    "500": ({"script": Script(status=500, message="out of luck")}, {}, "answered HTTP 500: out of luck"),
    "stall": ({"script": Script(stall_after=5), "plan": {"passes": 2}}, {}, "the server stalled"),
}  # fmt: skip


@pytest.mark.parametrize("why", INVALID)
def test_a_cell_that_cannot_be_believed_is_invalid_for_the_true_reason(why: str) -> None:
    given, dialect, reason = INVALID[why]
    script = given.get("script", Script())
    with ScriptedServer(lambda number, body: after_learning(number, body, script)) as server:
        (cell,) = probe(server, given.get("plan", {}), **dialect)
    assert cell.status == "invalid"
    assert cell.reason and reason in cell.reason


def test_one_failed_pass_spoils_its_cell_and_no_other() -> None:
    def script(number: int, body: Mapping[str, Any]) -> Script:
        fails = body["max_tokens"] == 16 and number == 3
        return Script(gap_s=0.002, cut_after=5 if fails else None)

    with ScriptedServer(script) as server:
        first, second = probe(server, {"tg": (16, 24)})
    assert first.reason == "1 of 3 passes failed: the stream was cut after 5 deltas"
    assert first.status == "invalid" and first.metrics["ttft_s"].n == 2
    assert second.status == "ok"


def test_a_server_that_goes_away_is_a_crash_and_the_rest_is_skipped() -> None:
    server = ScriptedServer(Script(gap_s=0.02)).start()
    endpoint = Endpoint(url=server.url, model="scripted")
    passes: list[Pass] = []

    def on_pass(one: Pass) -> None:
        passes.append(one)
        if len(passes) == 2:
            server.stop()

    first, second = measure(endpoint, Plan(**(QUICK | {"tg": (16, 24)})), on_pass=on_pass)
    assert first.status == "crashed" and "nothing listens at" in (first.reason or "")
    assert first.metrics["ttft_s"].n == 1
    assert (second.status, second.reason) == ("skipped", "the server was gone since pp256 tg16")
    assert len(passes) == 3 and passes[2].error


def test_an_engine_that_dies_in_a_pass_ends_it_at_once() -> None:
    stalls = Script(stall_after=4)
    with ScriptedServer(lambda number, body: after_learning(number, body, stalls)) as server:
        endpoint = Endpoint(url=server.url, model="scripted")
        started = time.monotonic()
        asked = 0

        def alive() -> str | None:
            nonlocal asked
            asked += 1
            return "the engine was killed (out of memory)" if asked > 1 else None

        plan = Plan(**(QUICK | {"tg": (16, 24), "limits": Limits()}))
        first, second = measure(endpoint, plan, alive=alive)
    assert time.monotonic() - started < 30
    assert (first.status, first.reason) == ("crashed", "the engine was killed (out of memory)")
    assert second.status == "skipped"


def test_nothing_listens_from_the_start() -> None:
    (cell,) = measure(Endpoint(url="http://127.0.0.1:9", model="x"), Plan(**QUICK))
    assert cell.status == "crashed"
    assert cell.reason == "nothing listens at 127.0.0.1:9 (connection refused)"


def test_ctrl_c_passes_through_at_once() -> None:
    program = (
        "import sys\n"
        "from lanes.bench.plan import Plan\nfrom lanes.bench.probe import measure\n"
        "from lanes.types import Endpoint\n"
        "try:\n    measure(Endpoint(url=sys.argv[1], model='x'), Plan(pp=256),"
        " on_progress=lambda p: print(p.phase, flush=True))\n"
        "except KeyboardInterrupt:\n    sys.exit(77)\n"
    )
    stalls = Script(stall_after=4)
    with ScriptedServer(lambda number, body: after_learning(number, body, stalls)) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", program, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout
        while child.stdout.readline() != "warm-up 1 of 2\n":
            assert child.poll() is None
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGINT)
        started = time.monotonic()
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (77, "")
    assert time.monotonic() - started < 15


def test_a_result_is_plain_json_and_comes_back_whole() -> None:
    with ScriptedServer(Script(gap_s=0.001, timings=True, usage="every")) as server:
        cells = probe(server, {"concurrency": (1, 2), "passes": 1})
    for cell in cells:
        assert from_json(CellResult, json.loads(json.dumps(as_json(cell)))) == cell
    assert cells[0].server_metrics["decode_tps"].median > 0
