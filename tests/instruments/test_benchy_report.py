"""What is made of llama-benchy's words, without llama-benchy: see tests/peers for the program itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from lanes.bench.plan import Cell
from lanes.errors import LanesError
from lanes.instruments.benchy import Options, _groups, fields_of
from lanes.instruments.benchy_report import Request, judge, requests, rows
from lanes.instruments.benchy_text import BOOK_URL, fitting, text_of
from lanes.testing.scripted import ScriptedServer, count_tokens
from lanes.types import Dialect, Endpoint

CELL = Cell(pp=1000, tg=101)


def row(ttfr_s: float, ttft_s: float, tg: float, pp: float, n: int = 3) -> dict[str, Any]:
    def metric(value: float) -> dict[str, Any]:
        return {"mean": value, "std": 0.0, "values": [value] * n}

    return {
        "ttfr": metric(ttfr_s * 1e3), "e2e_ttft": metric(ttft_s * 1e3), "pp_req_throughput": metric(pp),
        "tg_req_throughput": metric(tg),
    }  # fmt: skip


def sent(n: int = 3, **given: Any) -> list[Request]:
    plain: dict[str, Any] = {
        "prompt_tokens": 1000, "total_tokens": 101, "deltas": 101, "counted": False, "first_event_s": 0.5,
        "ttft_s": 0.5, "ended": True,
    }  # fmt: skip
    return [Request(run=number, phase=0, **plain | given) for number in range(n)]


def test_figures_of_a_sound_cell_are_its_own() -> None:
    judged = judge(CELL, row(0.5, 0.5, 100.0, 2000.0), sent())
    assert judged.result.status == "ok"
    assert judged.flags == ()
    assert {name: value.median for name, value in judged.result.metrics.items()} == {
        "ttft_s": 0.5, "first_event_s": 0.5, "prefill_tps": 2000.0, "decode_tps": 100.0,
    }  # fmt: skip


def test_prefill_that_ends_at_an_empty_delta_is_put_right() -> None:
    judged = judge(CELL, row(0.002, 0.5, 100.0, 500_000.0), sent(first_event_s=0.002))
    (flag,) = judged.flags
    assert (flag.kind, flag.figure, flag.said, flag.right) == ("early-role", "prefill_tps", 500_000.0, 2000.0)
    assert judged.result.status == "ok"
    assert judged.result.metrics["prefill_tps"].median == 2000.0
    assert judged.said["prefill_tps"] == 500_000.0
    assert "500,000" in judged.result.notes[0]


def test_prefill_after_a_warm_prefix_counts_what_was_not_warm() -> None:
    cell = Cell(pp=1000, tg=101, depth=4000)
    early = sent(first_event_s=0.002, prompt_tokens=5000)
    judged = judge(cell, row(0.002, 0.5, 100.0, 500_000.0), early)
    assert judged.result.metrics["prefill_tps"].median == 2000.0


@pytest.mark.parametrize(("k1", "first"), [(None, 4.04), (8.0, 8.0)])
def test_decode_with_several_tokens_in_the_first_delta_is_put_right(k1: float | None, first: float) -> None:
    """A hundred tokens after the first one, says the program; the first delta held more."""
    judged = judge(CELL, row(0.5, 0.5, 100.0, 2000.0), sent(deltas=25), k1=k1)
    (flag,) = judged.flags
    assert (flag.kind, flag.figure, flag.said) == ("k1", "decode_tps", 100.0)
    assert judged.result.metrics["decode_tps"].median == pytest.approx((101 - first) / 100 * 100)
    assert ("mean of all deltas" in flag.sentence) is (k1 is None)


def test_token_ids_tell_the_first_delta_and_one_token_is_one() -> None:
    assert judge(CELL, row(0.5, 0.5, 100.0, 2000.0), sent(deltas=25, counted=True)).flags == ()
    assert judge(CELL, row(0.5, 0.5, 100.0, 2000.0), sent(deltas=99), k1=1.0).flags == ()


def test_one_failed_request_makes_the_cell_invalid() -> None:
    some = sent()
    some[1].error = "HTTP 500: boom"
    judged = judge(CELL, row(0.5, 0.5, 100.0, 2000.0, n=2), some)
    assert judged.result.status == "invalid"
    assert (
        judged.result.reason
        == "1 of its 3 requests failed, which its exit code does not tell: HTTP 500: boom"
    )
    assert [flag.kind for flag in judged.flags] == ["failed"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"prompt_tokens": 900}, "the prompts had 900 tokens instead of 1000"),
        ({"prompt_tokens": 0}, "the server sent no usage"),
        ({"total_tokens": 60}, "an answer had 60 tokens instead of 101"),
        ({"ended": False}, "it was ended before its requests were"),
    ],
)
def test_what_makes_a_cell_invalid(what: dict[str, Any], reason: str) -> None:
    judged = judge(CELL, row(0.5, 0.5, 100.0, 2000.0), sent(**what))
    assert judged.result.status == "invalid"
    assert reason in str(judged.result.reason)


def test_a_row_without_figures_and_no_row_at_all() -> None:
    nulls: dict[str, Any] = dict.fromkeys(("ttfr", "e2e_ttft", "pp_req_throughput", "tg_req_throughput"))
    assert judge(CELL, nulls, sent()).result.reason == (
        "it has no e2e_ttft and no tg_req_throughput, although its requests did not fail"
    )
    assert judge(CELL, None, sent()).result.reason == "it has no figures of this cell"
    assert judge(CELL, None, []).result.status == "invalid"


def test_bursts_of_a_run_are_told_apart() -> None:
    """With prefix caching each run fills the context first, with as many requests as streams."""

    def event(kind: str, number: int, **more: Any) -> str:
        return json.dumps({"type": kind, "request_id": number, **more})

    lines, number = [], 0
    for run in (1, 2):
        for burst in (0, 1):
            both = (number, number + 1)
            lines += [event("request_start", one, run_index=run) for one in both]
            lines += [event("tokens", both[0], count=1, estimated=True), "half a li"]
            lines += [event("request_end", one, total_tokens=5, prompt_tokens=burst) for one in both]
            number += 2
    found = requests(lines)
    assert [one.phase for one in found] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [one.prompt_tokens for one in found] == [one.phase for one in found]
    assert [one.counted for one in found[:2]] == [False, True]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"benchmarks": null}', '{"benchmarks": [1]}'])
def test_a_report_that_is_none_has_no_rows(text: str) -> None:
    assert rows(text) == []


def test_fields_are_written_as_it_reads_them() -> None:
    dialect = Dialect(
        extra={"chat_template_kwargs": {"enable_thinking": False}, "stop": ["a", "b"]},
        fixed_length={"ignore_eos": True},
        forbidden=frozenset({"seed", "return_token_ids"}),
    )
    fields, notes = fields_of(dialect, 42)
    assert fields == {
        "temperature": "0", "chat_template_kwargs": '{"enable_thinking":false}', "ignore_eos": "true",
        "return_token_ids": "false",
    }  # fmt: skip
    assert notes == ['sent without stop: llama-benchy cannot send ["a","b"]']


def test_a_context_and_its_suffix_are_one_run() -> None:
    ctx, suffix, other = (
        Cell(pp=0, tg=8, depth=64, shape="ctx"), Cell(pp=32, tg=8, depth=64), Cell(pp=48, tg=8, depth=64),
    )  # fmt: skip
    assert _groups([CELL, ctx, suffix, other]) == [[CELL], [ctx, suffix], [other]]


def test_a_book_of_allowed_words_only() -> None:
    allowed = {"The", "old", "harbour", "In"}
    with pytest.raises(LanesError, match="tokenizer"):
        text_of(allowed)


def test_wrong_options_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="runs"):
        Options(runs=0)


@pytest.mark.parametrize("counts", [True, False])
def test_a_text_of_words_that_are_one_token_each(counts: bool, tmp_path: Path) -> None:
    with ScriptedServer(tokenizer=counts) as server:
        dialect = Dialect(tokenize_path="/tokenize" if counts else None)
        text = asyncio.run(fitting(Endpoint(url=server.url, model="scripted", dialect=dialect)))
    assert (text.note is None) is counts
    # The server's tokens are of seven letters at most, and marks of their own.
    assert count_tokens(text.book) == len(re.findall(r"\w+|[^\w\s]", text.book)) > 100_000
    folder = text.write(tmp_path)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert set(vocabulary) == {"[UNK]", *text.items}
    (book,) = (tmp_path / ".cache" / "llama-benchy").iterdir()
    assert book.name == f"{hashlib.md5(BOOK_URL.encode(), usedforsecurity=False).hexdigest()}.txt"
    assert book.read_text() == text.book
