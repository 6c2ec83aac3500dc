"""When a cell is invalid, and for which reason: one test for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
from lanes.bench.arrivals import Arrival
from lanes.bench.cells import Pass, finished_pass
from lanes.bench.deltas import Usage
from lanes.bench.measures import FirstDelta, first_delta
from lanes.bench.plan import Cell
from lanes.bench.stream import Stream
from lanes.bench.validity import Terms, remarks, verdict

MS = 1_000_000
TG = 20
CELL = Cell(pp=500, tg=TG)
DEEP = Cell(pp=500, tg=TG, depth=2000)
USAGE = Usage(prompt_tokens=500, completion_tokens=TG, cached_tokens=0, total_tokens=500 + TG)
WARM = Usage(prompt_tokens=2500, completion_tokens=TG, cached_tokens=1990, total_tokens=2500 + TG)


def arrivals(*kinds: str, chars: int = 5, every: int = 0, tokens: int | None = None) -> tuple[Arrival, ...]:
    """One of each kind, 10 ms apart; `every` is the running usage of the first."""
    return tuple(
        Arrival((50 + 10 * i) * MS, kind, chars, i + every if every else None, tokens)
        for i, kind in enumerate(kinds or ["content"] * TG)
    )


GOOD = Stream(t0_ns=0, arrivals=arrivals(), usage=USAGE, finish_reason="length", stamps="kernel")


def usage(**changes: Any) -> Stream:
    """The good stream with another usage, whose sum is right."""
    changed = attrs.evolve(USAGE, **{"total_tokens": None} | changes)
    return attrs.evolve(GOOD, usage=changed)


def ended(tokens: int, finish: str | None = "stop") -> Stream:
    """The good stream as it would be with so many tokens, at one a delta."""
    told = attrs.evolve(USAGE, completion_tokens=tokens, total_tokens=500 + tokens)
    return stream(usage=told, arrivals=arrivals(*(["content"] * tokens or ["role"])), finish_reason=finish)


def stream(**changes: Any) -> Stream:
    return attrs.evolve(GOOD, **changes)


def one_pass(streams: Sequence[Stream], cell: Cell = CELL) -> Pass:
    return finished_pass(cell, 1, False, streams, [first_delta(s) for s in streams])


def judged(
    *streams: Stream, passes: int = 1, cell: Cell = CELL, fixed: bool = True, **terms: Any
) -> str | None:
    asked = Terms(cell=cell, passes=passes, fixed_length=fixed, template_tokens=10, **terms)
    return verdict(asked, [one_pass(streams, cell)])


def test_a_good_cell_is_valid() -> None:
    assert judged(GOOD) is None
    assert judged(stream(usage=WARM), cell=DEEP) is None
    running = arrivals(*["content"] * TG, every=1)
    assert judged(stream(arrivals=running), answer_rate=0.2) is None
    assert judged(stream(arrivals=arrivals(*["tool"] * 4), finish_reason="tool_calls")) is None


INVALID: dict[str, tuple[Stream | Sequence[Stream], Mapping[str, Any], str]] = {
    "a request failed": (
        stream(failure="cut", error="the stream was cut after 3 deltas"),
        {},
        "1 of 1 passes failed: the stream was cut after 3 deltas",
    ),
    "a pass is missing": (GOOD, {"passes": 2}, "only 1 of 2 passes were made"),
    "no usage": (stream(usage=None), {}, "the server sent no usage"),
    "half a usage": (usage(completion_tokens=None), {}, "the server sent no usage"),
    "a sum that is none": (usage(total_tokens=999), {}, "does not add up: 500 and 20 tokens are not 999"),
    "more cached than there is": (usage(cached_tokens=501), {}, "501 cached tokens in a prompt of 500"),
    "fewer tokens than deltas": (usage(completion_tokens=3), {}, "counts 3 tokens, but 20 deltas carried some"),
    "a running usage that falls": (
        stream(arrivals=arrivals("content", "content", every=9)[::-1]),
        {},
        "running usage goes to 10 tokens, its last one says 20",
    ),
    "a running usage beyond the last": (
        stream(arrivals=arrivals(*["content"] * TG, every=9)),
        {},
        "running usage goes to 28 tokens, its last one says 20",
    ),
    "more token ids than tokens": (
        stream(arrivals=arrivals(*["content"] * TG, tokens=2), token_source="token_ids"),
        {},
        "counts 20 tokens, but its deltas list 40",
    ),
    "reasoning that is told and hidden": (
        usage(reasoning_tokens=7),
        {},
        "counts 7 reasoning tokens that it did not stream",
    ),
    "tokens before the first": (
        stream(arrivals=arrivals("content", "content", chars=2, every=19)),
        {},
        "had made 19 tokens when it streamed the first one",
    ),
    "tokens without text": (
        stream(arrivals=arrivals("content", "content", chars=5)),
        {},
        "counts 20 tokens, but streamed only 10 characters of them",
    ),
    "tokens without text, by its tokenizer": (
        stream(arrivals=arrivals("content", "content", chars=15)),
        {"answer_rate": 0.2},
        "counts 20 tokens, but streamed only 30 characters of them",
    ),
    "a form that nobody knows": (
        stream(odd="text under the name 'thought'"),
        {},
        "the stream held text under the name 'thought': whether that were tokens is not known",
    ),
    "an odd finish": (stream(finish_reason="abort"), {}, "ended for an unexpected reason: abort"),
    "no finish": (ended(12, None), {"fixed": False}, "ended without a reason after 12 of 20 tokens"),
    "a limit that was not the one": (
        ended(12, "length"),
        {"fixed": False},
        "ended at its limit after 12 tokens, although the limit was 20",
    ),
    "no token": (ended(0), {}, "an answer held no token"),
    "another prompt": (usage(prompt_tokens=511), {}, "the prompts had 511 tokens instead of 500 (more than 2% off)"),
    "a warm prompt": (usage(cached_tokens=64), {}, "not cold: the server had 64 of its tokens"),
    "a cold prefix": (
        stream(usage=attrs.evolve(WARM, cached_tokens=1000)),
        {"cell": DEEP},
        "the prefix was not warm: the server had 1000 of 2000 tokens",
    ),
    "a prefix beyond the depth": (
        stream(usage=attrs.evolve(WARM, cached_tokens=2400)),
        {"cell": DEEP},
        "the prefix was not warm: the server had 2400 of 2000 tokens",
    ),
    "a prefix of which nothing is told": (
        stream(usage=attrs.evolve(WARM, cached_tokens=None)),
        {"cell": DEEP},
        "does not tell its cached tokens, so no prefix of 2000 tokens is proved warm",
    ),
    "another length than was fixed": (ended(19), {}, "an answer had 19 tokens, although 20 were fixed"),
    "longer than was asked": (
        ended(30),
        {"fixed": False},
        "an answer had 30 tokens, although at most 20 were asked for",
    ),
    "much shorter": (ended(9), {"fixed": False}, "an answer ended by itself after 9 of 20 tokens"),
    "answers of two lengths": (
        (GOOD, ended(15)),
        {"fixed": False},
        "the answers differ in length, from 15 to 20 of 20 tokens",
    ),
    "a late client": (
        [stream(t0_ns=i * 15 * MS) for i in range(3)],
        {},
        "the client was late: half of its requests started over 15 ms after the first",
    ),
    "a client that read late": (
        stream(doubt_s=0.03),
        {},
        "the client was the bottleneck: it read so late that the time of the first or the last token is unknown by 30 ms",
    ),
    "a clock that was set": (stream(clock_step_ns=40 * MS), {}, "the system's clock was moved by 40.0 ms"),
    "times out of order": (stream(arrivals=arrivals()[::-1]), {}, "not in their order"),
}  # fmt: skip


@pytest.mark.parametrize("why", INVALID)
def test_a_cell_is_invalid_for_its_true_reason(why: str) -> None:
    given, terms, reason = INVALID[why]
    streams = (given,) if isinstance(given, Stream) else given
    assert reason in (judged(*streams, **terms) or "valid")


def test_a_first_delta_of_unknown_size_makes_a_cell_invalid() -> None:
    one = attrs.evolve(one_pass([GOOD]), first_deltas=(None,))
    terms = Terms(cell=CELL, passes=1, fixed_length=True)
    assert verdict(terms, [one]) == "nobody knows how many tokens the first delta carried"


def test_a_prefix_that_failed_makes_its_pass_fail() -> None:
    prefix = stream(failure="status", error="the server answered HTTP 500")
    one = finished_pass(DEEP, 1, False, (), (), [prefix])
    assert "1 of 1 passes failed: the server answered HTTP 500" in (
        verdict(Terms(cell=DEEP, passes=1, fixed_length=True), [one]) or ""
    )


def test_what_leaves_a_cell_valid_is_said_all_the_same() -> None:
    def said(one: Pass, **terms: Any) -> str:
        asked = Terms(**{"cell": CELL, "passes": 1, "fixed_length": True, "template_tokens": 10} | terms)
        return "; ".join(remarks(asked, [one]))

    assert said(one_pass([GOOD])) == (
        "times are stamped by: kernel; tokens of the first delta (k1): one, as there were as many deltas as tokens"
    )
    assert "rests on their nonce" in said(one_pass([usage(cached_tokens=None)]))
    average = attrs.evolve(one_pass([GOOD]), first_deltas=(FirstDelta(tokens=2.5, source="average"),))
    assert "decode is approximate" in said(average)
    assert "3 reads held several deltas" in said(one_pass([stream(merged_reads=3)]))
    assert "no chat template" in said(one_pass([GOOD]), counted=True, template_tokens=1)
    account = {"predicted_n": TG, "predicted_ms": 50.0}
    assert "decode_tps is -74% off the server's own account" in said(
        one_pass([stream(server_account=account)])
    )


def test_an_answer_of_digits_hides_nothing_though_its_tokens_have_few_characters() -> None:
    """A base model that repeats the prompt's nonce: a token a character, and each came in a delta of its own."""
    digits = arrivals(*["content"] * TG, chars=1)
    assert judged(stream(arrivals=digits), answer_rate=0.2) is None
