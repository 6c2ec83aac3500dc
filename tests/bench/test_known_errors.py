"""What public benchmark clients got wrong, each against a server that does what they stumbled over.

A name says what is protected; in brackets is where the error was reported. A figure is held against what
the server really did, by its own clock of the same machine.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lanes.bench import client, measures, recorder
from lanes.bench.cells import CellResult
from lanes.bench.plan import Limits, Plan
from lanes.bench.probe import measure
from lanes.bench.stream import Stream
from lanes.testing.scripted import Answer, Script, ScriptedServer
from lanes.types import Dialect, Endpoint

TOKENS = 16
PACE: dict[str, Any] = {"ttft_s": 0.08, "gap_s": 0.01}
EMPTY = json.dumps({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]})
NO_CHOICES = json.dumps({"choices": []})
LONG = json.dumps({"choices": [], "prompt_token_ids": list(range(50_000))})


def patient(test: Callable[..., None]) -> Callable[..., None]:
    """Let `test` fail twice: on a busy machine a server may be late after it looked at its clock. What
    is wrong in the client is wrong each time."""

    @functools.wraps(test)
    def tried(*arguments: Any, **named: Any) -> None:
        for _ in range(2):
            try:
                return test(*arguments, **named)
            except AssertionError:
                time.sleep(0.2)
        return test(*arguments, **named)

    return tried


def probe(server: ScriptedServer, plan: Mapping[str, Any] | None = None, **dialect: Any) -> CellResult:
    """Measure one cell: one pass of one stream and no warm-up, where `plan` does not say otherwise."""
    given: dict[str, Any] = {
        "pp": 128,
        "tg": TOKENS,
        "passes": 1,
        "warmups": 0,
        "limits": Limits(connect_s=5, first_byte_s=20, stall_s=20),
    }
    endpoint = Endpoint(
        url=server.url, model="scripted", dialect=Dialect(**{"tokenize_path": "/tokenize"} | dialect)
    )
    (cell,) = measure(endpoint, Plan(**given | dict(plan or {})))
    return cell


def measured(server: ScriptedServer) -> list[Answer]:
    """The answers that were measured: those that taught the prompt's length are one token long."""
    return [a for a in server.answers if a.body["max_tokens"] > 1]


def streams(cell: CellResult) -> list[Stream]:
    return [s for p in cell.passes if not p.warmup for s in p.streams]


def true_ttft_s(stream: Stream, answer: Answer) -> float:
    return (answer.sent[0][0] - stream.t0_ns) / 1e9


def true_decode_tps(answer: Answer) -> float:
    (first_ns, _), (last_ns, _) = answer.sent[0], answer.sent[-1]
    return sum(tokens for _, tokens in answer.sent[1:]) / (last_ns - first_ns) * 1e9


def assert_true(cell: CellResult, answer: Answer) -> None:
    """The cell is valid, and its figures are what the server did."""
    assert (cell.status, cell.reason) == ("ok", None)
    (stream,) = streams(cell)
    figures = {name: interval.median for name, interval in cell.metrics.items()}
    ttft_s = true_ttft_s(stream, answer)
    assert figures["ttft_s"] == pytest.approx(ttft_s, abs=0.04)
    assert figures["e2e_s"] == pytest.approx((answer.sent[-1][0] - stream.t0_ns) / 1e9, abs=0.04)
    assert figures["prefill_tps"] == pytest.approx(figures["prompt_tokens"] / figures["ttft_s"])
    assert figures["decode_tps"] == pytest.approx(true_decode_tps(answer), rel=0.2)
    assert figures["completion_tokens"] == TOKENS


TRUE_FIGURES: dict[str, dict[str, Any]] = {
    "deltas are not counted as tokens [llama-benchy#11 sglang#12064 sglang#26826 vllm#50677]": {
        "tokens_per_delta": 4,
        "gap_s": 0.03,
    },
    "tokens are the server's, whatever its pieces of words look like [llama-benchy#18]": {"word": "un1d "},
    "an early role delta is no token [vllm#3768 ATOM#1710]": {"role": "early"},
    "a late role delta is no token [vllm#46652]": {"role": "late"},
    "k1 of a fat first delta, by running usage [aiperf#1279 vllm#15106]": {
        "first_delta": 8,
        "usage": "every",
    },
    "k1 of a fat first delta, by token ids [aiperf#1279 vllm#15106]": {"first_delta": 8, "token_ids": True},
    "k1 of a fat first delta, by logprobs [aiperf#1279 vllm#15106]": {"first_delta": 8, "logprobs": True},
    "k1 of a fat first delta, by the server's tokenizer [aiperf#1279 vllm#15106]": {"first_delta": 8},
    "a late usage chunk moves no TTFT [genai-bench#44]": {"tail_s": 0.3},
    "a late usage chunk is no time of decode [vllm#55508]": {"tail_s": 0.3, "usage": "every"},
    "usage on every chunk is not summed [ogx#5122]": {"usage": "every"},
    "a stream of reasoning alone has a TTFT [inference-perf#559 guidellm#742]": {"reasoning": 1000},
    "an empty content does not stop the clock [aisix#869]": {"early": (EMPTY, EMPTY), "role": "none"},
    "an answer that is a tool call alone is valid [aiperf#804]": {"tool_call": True, "finish": "tool_calls"},
    "reasoning under two names is counted once [tokenomics#16]": {"reasoning": 8},
    "chunks without choices are no error [sglang#14826]": {"early": (NO_CHOICES,), "between": NO_CHOICES},
    "JSON that is split over packets [evalscope#1638]": {"packet": 7},
    "lines of more than 64 KB [vllm#39963]": {"early": (LONG,), "between": None},
    "SSE: lines that end in CRLF": {"line_end": "\r\n"},
    "SSE: lines that end in CR": {"line_end": "\r"},
    "SSE: comments and pings": {"comments": True, "between": '{"type": "ping"}'},
    "SSE: several events in one read": {"tail_at_once": True, "between": NO_CHOICES},
    "SSE: one event in several reads": {"packet": 60, "chunked": False},
    "SSE: data in several lines": {"multi_line": True},
    "SSE: no [DONE]": {"done": False},
    "SSE: ended by the connection": {"chunked": False, "done": False},
}


@pytest.mark.parametrize("habit", TRUE_FIGURES)
@patient
def test_the_figures_are_what_the_server_did(habit: str) -> None:
    with ScriptedServer(Script(**PACE | TRUE_FIGURES[habit])) as server:
        cell = probe(server)
    (answer,) = measured(server)
    assert_true(cell, answer)
    if "k1" in habit:
        ((k1,),) = (p.first_deltas for p in cell.passes)
        assert k1 is not None and k1.tokens == 8 and not k1.approximate


def test_reasoning_under_two_names_is_one_text() -> None:
    """tokenomics#16"""
    with ScriptedServer(Script(reasoning=1000)) as server:
        (stream,) = streams(probe(server))
    assert sum(a.chars for a in stream.token_arrivals) == TOKENS * len("lane ")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's stamps are Linux's")
def test_times_are_those_of_arrival_however_slowly_events_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """tokenomics#16: stamps that were taken after parsing."""
    quick = recorder.read_delta

    def slow(event: Any) -> Any:
        time.sleep(0.03)
        return quick(event)

    with ScriptedServer(Script(**PACE)) as server:
        monkeypatch.setattr(recorder, "read_delta", slow)
        cell = probe(server)
    (stream,), (answer,) = streams(cell), measured(server)
    assert measures.ttft_s(stream) == pytest.approx(true_ttft_s(stream, answer), abs=0.04)
    k1 = measures.FirstDelta(tokens=1, source="single")
    # Parsed in step, the sixteen deltas would take half a second.
    assert measures.decode_tps(stream, k1) == pytest.approx(true_decode_tps(answer), rel=0.3)


def test_times_are_those_of_arrival_where_the_client_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#54101, guidellm#1048, llm-d-benchmark#261: requests that waited in the client."""
    quick = client.request_bytes

    def slow(*arguments: Any) -> bytes:
        time.sleep(0.03)
        return quick(*arguments)

    monkeypatch.setattr(client, "request_bytes", slow)
    with ScriptedServer(Script(**PACE)) as server:
        cell = probe(server, {"concurrency": 4})
    assert cell.status == "invalid" and "the client was late" in (cell.reason or "")


@patient
def test_waiting_in_the_servers_line_is_in_the_ttft() -> None:
    """vllm#54101, guidellm#1048, llm-d-benchmark#261: a stream's clock starts when it is sent, not when
    its turn comes."""
    with ScriptedServer(Script(**PACE), slots=1) as server:
        cell = probe(server, {"concurrency": 4})
    by_turn = sorted(measured(server), key=lambda a: a.sent[0][0])
    turn_s = PACE["ttft_s"] + (TOKENS - 1) * PACE["gap_s"]
    ttfts = sorted(measures.ttft_s(s) or 0 for s in streams(cell))
    assert ttfts == pytest.approx([(a.sent[0][0] - streams(cell)[0].t0_ns) / 1e9 for a in by_turn], abs=0.04)
    assert cell.metrics["ttft_max_s"].median > 3 * turn_s
    assert "steady_tps" not in cell.metrics  # they never overlap


def test_no_pool_caps_the_number_of_streams() -> None:
    """gpustack#2324, guidellm#487: a pool of 100 connections. This server answers when 128 have come."""
    with ScriptedServer(Script(**PACE), together=128, tokenizer=False) as server:
        cell = probe(server, {"concurrency": 128, "pp": 64}, tokenize_path=None)
    assert len(streams(cell)) == len(measured(server)) == 128
    assert all(s.ok and s.completion_tokens == TOKENS for s in streams(cell))


@patient
def test_a_long_prompt_and_long_lines_cost_no_throughput() -> None:
    """vllm#39963: reads of 64 KB at most, and the figures collapse at long context."""
    with ScriptedServer(Script(**PACE, early=(LONG,), between=LONG)) as server:
        cell = probe(server, {"pp": 30_000}, tokenize_path=None)
    (answer,), (stream,) = measured(server), streams(cell)
    assert stream.ok, stream.error
    assert cell.metrics["ttft_s"].median == pytest.approx(true_ttft_s(stream, answer), abs=0.04)
    assert cell.metrics["decode_tps"].median == pytest.approx(true_decode_tps(answer), rel=0.2)


HIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "that the usage tells": (
        {"hidden": 20, "hidden_told": True},
        "the server counts 20 reasoning tokens that it did not stream",
    ),
    "that the running usage shows": (
        {"hidden": 60, "usage": "every"},
        "the server had made 61 tokens when it streamed the first one",
    ),
    "that only their number betrays": (
        {"hidden": 100},
        "the server counts 116 tokens, but streamed only 80 characters of them",
    ),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_hidden_reasoning_is_no_speed(how: str) -> None:
    """genai-bench#81: tokens that were counted and never streamed make any rate absurd."""
    habit, reason = HIDDEN[how]
    script = Script(gap_s=0.001, **habit)
    with ScriptedServer(lambda _, body: script if body["max_tokens"] > 1 else Script()) as server:
        cell = probe(server)
    assert (cell.status, cell.reason) == ("invalid", reason)


FAILED: dict[str, tuple[dict[str, Any], str]] = {
    "an error event [tokenomics#16]": ({"error_after": 4, "error_event": True}, "the server reported an error"),
    "an error in the stream [vllm#57519]": ({"error_after": 4}, "the server reported an error"),
    "an error event in words [tokenomics#16]": (
        {"error_after": 4, "error_event": True, "error_form": "words"},
        "the server reported an error after 4 deltas: the script says so",
    ),
    "a bare error object [vllm#57519]": ({"error_after": 4, "error_form": "object"}, "the server reported an error"),
    "an error without its data: [vllm#57519]": (
        {"error_after": 4, "error_form": "line"},
        "the server reported an error",
    ),
    "an error before the first token": ({"error_after": 0}, "the server reported an error before the first token"),
    "a cut connection": ({"cut_after": 4}, "the stream was cut after 4 deltas"),
    "a cut connection, not chunked": ({"cut_after": 4, "chunked": False}, "the stream was cut after 4 deltas"),
    "a stall": ({"stall_after": 4}, "the server stalled: nothing came for 0.3 s after 4 deltas"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILED)
def test_a_stream_that_fails_in_the_middle_is_no_success(what: str) -> None:
    habit, reason = FAILED[what]
    script = Script(**habit)
    limits = Limits(connect_s=5, first_byte_s=20, stall_s=0.3)
    with ScriptedServer(lambda _, body: script if body["max_tokens"] > 1 else Script()) as server:
        cell = probe(server, {"limits": limits})
    assert cell.status == "invalid" and reason in (cell.reason or "")
    assert not cell.metrics


@patient
def test_no_prompt_finds_what_an_earlier_run_left_in_the_cache() -> None:
    """vllm#52884, inference-perf#340: a fixed seed sends the same prompts, and reads up to 86% high."""
    script = Script(prefill_tps=2000, gap_s=0.002, prefix_cache=True)
    with ScriptedServer(script) as server:
        first, second = (probe(server, {"pp": 256}) for _ in range(2))
    assert (first.status, second.status) == ("ok", "ok"), (first.reason, second.reason)
    for cell in (first, second):
        assert cell.metrics["prefill_tps"].median == pytest.approx(2000, rel=0.25)


def test_prompts_that_were_sent_before_are_found_out() -> None:
    """vllm#52884, inference-perf#340"""
    again = {"comparison": "the same", "block": 3}
    with ScriptedServer(Script(prefill_tps=2000, prefix_cache=True)) as server:
        probe(server, again)
        cell = probe(server, again)
    assert cell.status == "invalid" and "a prompt was not cold" in (cell.reason or "")


@patient
def test_warm_ups_are_not_in_the_figures() -> None:
    """guidellm#1078"""

    def script(number: int, body: Mapping[str, Any]) -> Script:
        asked = sum(a.body["max_tokens"] > 1 for a in server.answers)
        return Script(ttft_s=0.5 if 0 < asked <= 2 else 0.02, gap_s=0.002)

    with ScriptedServer(script) as server:
        cell = probe(server, {"warmups": 2, "passes": 3})
    ttft = cell.metrics["ttft_s"]
    assert ttft.n == 3 and ttft.hi < 0.4
    assert [p.warmup for p in cell.passes] == [True, True, False, False, False]


@patient
def test_a_request_that_failed_takes_nothing_from_the_throughput_of_the_others() -> None:
    """guidellm#529: incomplete requests were in the time, and their tokens not in the sum."""

    def script(number: int, body: Mapping[str, Any]) -> Script:
        second = sum(a.body["max_tokens"] > 1 for a in server.answers) == 2
        return Script(**PACE, cut_after=2 if second and body["max_tokens"] > 1 else None)

    with ScriptedServer(script) as server:
        cell = probe(server, {"passes": 3})
    assert cell.status == "invalid"
    assert cell.reason == "1 of 3 passes failed: the stream was cut after 2 deltas"
    whole = [a for a in measured(server) if len(a.sent) == TOKENS]
    assert cell.metrics["decode_tps"].n == cell.metrics["span_tps"].n == len(whole) == 2
    span_s = PACE["ttft_s"] + (TOKENS - 1) * PACE["gap_s"]
    assert cell.metrics["span_tps"].median == pytest.approx(TOKENS / span_s, rel=0.25)


@pytest.mark.parametrize("tokenizer", [True, False])
@patient
def test_tokens_are_counted_by_the_server_alone(tokenizer: bool) -> None:
    """vllm#44708, llama-benchy#20: a client with a tokenizer of its own. To this server our words of
    prose are more tokens than words, and a word of its answer, however long, is one."""
    with ScriptedServer(Script(**PACE, word="antidisestablishmentarianism, "), tokenizer=tokenizer) as server:
        cell = probe(server, {"pp": 4000, "warmups": 2}, tokenize_path="/tokenize" if tokenizer else None)
    assert (cell.status, cell.reason) == ("ok", None)
    answer = measured(server)[-1]
    assert cell.metrics["prompt_tokens"].median == answer.prompt_tokens == pytest.approx(4000, rel=0.02)
    assert cell.metrics["completion_tokens"].median == TOKENS
    assert cell.metrics["decode_tps"].median == pytest.approx(true_decode_tps(answer), rel=0.2)


def test_a_missing_chat_template_is_told() -> None:
    """InferenceX#649: without it drafts are accepted too often, 3.55 tokens a step instead of 2.5."""
    with ScriptedServer(Script(template=0)) as bare, ScriptedServer() as whole:
        untold, told = probe(whole), probe(bare)
    assert all(isinstance(a.body["messages"], list) and "prompt" not in a.body for a in measured(bare))
    assert any("no chat template" in note for note in told.notes)
    assert not any("chat template" in note for note in untold.notes)


@pytest.mark.parametrize(
    "field", ["seed", "ignore_eos", "min_tokens", "stream_options.continuous_usage_stats"]
)
@patient
def test_a_field_that_the_server_does_not_know_costs_no_request(field: str) -> None:
    """tool-eval-bench#118; llama-benchy sends `return_token_ids`, which SGLang refuses."""
    script = Script(**PACE, refuses=(field, "return_token_ids"))
    with ScriptedServer(script) as server:
        cell = probe(server, fixed_length={"ignore_eos": True, "min_tokens": TOKENS})
    assert (cell.status, cell.reason) == ("ok", None)
    assert any(f"Unrecognized request argument: {field}" in note for note in cell.notes)
    assert_true(cell, measured(server)[-1])


def test_a_server_that_refuses_whatever_is_sent_has_no_figures() -> None:
    """tool-eval-bench#118"""
    with ScriptedServer(Script(refuses=("temperature",))) as server:
        cell = probe(server)
    assert cell.status == "invalid" and not cell.metrics
    assert "Unrecognized request argument: temperature" in (cell.reason or "")


@pytest.mark.parametrize("script", [Script(status=400, message="Model not found"), Script(tokens=0)])
def test_a_model_that_is_listed_but_broken_does_not_pass(script: Script) -> None:
    """tool-eval-bench#19: scenarios passed although each request had failed."""
    with ScriptedServer(script) as server:
        cell = probe(server)
    assert cell.status == "invalid"
    assert cell.reason in (
        "the server answered HTTP 400: Model not found",
        "an answer ended at its limit after 0 tokens, although the limit was 16",
    )
    assert "decode_tps" not in cell.metrics and "ttft_s" not in cell.metrics
