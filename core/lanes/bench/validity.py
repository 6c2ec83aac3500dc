"""When a cell's figures may be believed, and what to say beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence

from attrs import frozen

from lanes.bench.cells import Pass
from lanes.bench.plan import Cell
from lanes.bench.stream import Stream

_LENGTH_OFF = 0.02
_WHOLE_WORDS = 4
"""Tokens by which a short prompt may be off: it is cut at whole words."""
_ACCOUNT_OFF = 0.05
_LATE_S = 0.010
_BACK_NS = 1_000_000
_HIDDEN = 8
"""Tokens that may have no text of their own: those that begin and end an answer, its parts and calls."""
_TEXT_OFF = 1.5
"""By how much a tokenizer may count less than there were, for it joins what was made in pieces."""
_K1 = {
    "usage": "told by the stream's running usage",
    "token_ids": "counted from its token ids",
    "logprobs": "counted from its logprobs",
    "single": "one, as there were as many deltas as tokens",
    "tokenizer": "counted by the server's tokenizer",
}
"""Sources of `FirstDelta` in words."""
_EXPECTED_FINISH = {"length", "stop", "tool_calls", None}


@frozen(kw_only=True)
class Terms:
    """What was asked for: `fixed_length` whether the server had to give exactly tg tokens,
    `template_tokens` what its chat template adds, before which nothing can be cold. `counted` says
    that the server's own tokenizer counted them, `answer_rate` how many tokens a character of the
    answers is by that tokenizer; None is not asked."""

    cell: Cell
    passes: int
    fixed_length: bool
    template_tokens: float = 0.0
    counted: bool = False
    answer_rate: float | None = None


def verdict(terms: Terms, passes: Sequence[Pass]) -> str | None:
    """Return why the cell is invalid, in one sentence, or None when it is valid.

    `passes` are the measured ones. The checks, in order: every pass there and none failed; usage
    present and in keeping with itself and with what was streamed; nothing of a form that is not known;
    finish reasons as expected; prompt length as asked; cached tokens about 0 when cold and about the
    depth when warm; output lengths equal; k1 known; the client on time; the clock even.
    """
    failed = [p for p in passes if p.error]
    if failed:
        rest = ", the others were not tried" if len(passes) < terms.passes else ""
        return f"{len(failed)} of {len(passes)} passes failed{rest}: {failed[0].error}"
    if len(passes) < terms.passes:
        return f"only {len(passes)} of {terms.passes} passes were made"
    streams = [s for p in passes for s in p.streams]
    for check in _CHECKS:
        if reason := check(terms, passes, streams):
            return reason
    return None


def _usage(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    if any(s.prompt_tokens is None or s.completion_tokens is None for s in streams):
        return "the server sent no usage, so nobody knows how many tokens there were"
    return next((reason for s in streams if (reason := _contradiction(s) or _hidden(terms, s))), None)


def _contradiction(s: Stream) -> str | None:
    """Where the server's usage is not in keeping with itself, or with the deltas."""
    usage, deltas, counted = s.usage, s.token_arrivals, s.completion_tokens or 0
    prompt = s.prompt_tokens or 0
    if usage and usage.total_tokens not in (None, prompt + counted):
        return (
            f"the server's usage does not add up: {prompt} and {counted} tokens are not {usage.total_tokens}"
        )
    if (s.cached_tokens or 0) > prompt:
        return f"the server's usage counts {s.cached_tokens} cached tokens in a prompt of {prompt}"
    if len(deltas) > 1.2 * counted + 4:
        return f"the server's usage counts {counted} tokens, but {len(deltas)} deltas carried some"
    running = [n for n in deltas.cumulative if n is not None]
    if running and (running != sorted(running) or running[-1] > counted):
        return f"the server's running usage goes to {max(running)} tokens, its last one says {counted}"
    told = deltas.told("tokens")
    if told and sum(told) > counted + max(_LENGTH_OFF * counted, _WHOLE_WORDS):
        return f"the server's usage counts {counted} tokens, but its deltas list {sum(told)}"
    return None


def _hidden(terms: Terms, s: Stream) -> str | None:
    """Tokens that were counted but not streamed: nobody knows when they were made."""
    deltas, counted = s.token_arrivals, s.completion_tokens or 0
    reasoning = (s.usage.reasoning_tokens or 0) if s.usage else 0
    if reasoning and "reasoning" not in deltas.kinds:
        return f"the server counts {reasoning} reasoning tokens that it did not stream"
    if not deltas or "tool" in deltas.kinds:  # the syntax of a call has no text
        return None
    first = deltas.cumulative[0]
    if first is not None:
        # Running usage: k1 is everything up to the first delta, and the rest has its times.
        if first > deltas.chars[0] + _HIDDEN:
            return f"the server had made {first} tokens when it streamed the first one"
        return None
    if len(deltas) >= counted - _HIDDEN:
        return None  # one token a delta, and each has its time
    chars = sum(deltas.chars)
    streamed = chars * terms.answer_rate * _TEXT_OFF if terms.answer_rate else chars
    if counted > streamed + _HIDDEN:
        return f"the server counts {counted} tokens, but streamed only {chars} characters of them"
    return None


def _form(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    odd = next((s.odd for s in streams if s.odd), None)
    return f"the stream held {odd}: whether that were tokens is not known" if odd else None


def _finish(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    odd = next((s.finish_reason for s in streams if s.finish_reason not in _EXPECTED_FINISH), None)
    if odd:
        return f"an answer ended for an unexpected reason: {odd}"
    tg = terms.cell.tg
    for s in streams:
        counted = s.completion_tokens or 0
        if s.finish_reason is None and _off(counted, tg):
            return f"an answer ended without a reason after {counted} of {tg} tokens"
        if s.finish_reason == "length" and _off(counted, tg):
            return f"an answer ended at its limit after {counted} tokens, although the limit was {tg}"
    return None if all(s.token_arrivals for s in streams) else "an answer held no token"


def _prompt(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    return prompt_length(terms.cell, statistics.median(s.prompt_tokens or 0 for s in streams))


def prompt_length(cell: Cell, got: float) -> str | None:
    """Return what is wrong with prompts that had `got` tokens, or None."""
    if _off(got, cell.prompt_tokens):
        return f"the prompts had {got:g} tokens instead of {cell.prompt_tokens} (more than 2% off)"
    return None


def _off(got: float, asked: int) -> bool:
    return abs(got - asked) > max(_LENGTH_OFF * asked, _WHOLE_WORDS)


def _cache(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    depth = terms.cell.warm_tokens
    known = [s.cached_tokens for s in streams if s.cached_tokens is not None]
    if not depth:
        allowed = max(_LENGTH_OFF * terms.cell.prompt_tokens, terms.template_tokens)
        worst = max(known, default=0)
        if worst > allowed:
            return f"a prompt was not cold: the server had {worst} of its tokens in its cache"
        return None
    if len(known) < len(streams):
        return f"the server does not tell its cached tokens, so no prefix of {depth} tokens is proved warm"
    # Caches keep whole blocks of up to 256 tokens, and the template's end is not part of the prefix.
    allowed = max(_LENGTH_OFF * depth, min(256.0, 0.1 * depth)) + terms.template_tokens
    worst = max(known, key=lambda cached: abs(cached - depth))
    if abs(worst - depth) > allowed:
        return f"the prefix was not warm: the server had {worst} of {depth} tokens in its cache"
    return None


def _output(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    counts = [s.completion_tokens or 0 for s in streams]
    tg = terms.cell.tg
    if terms.fixed_length:
        odd = next((n for n in counts if n != tg), None)
        return None if odd is None else f"an answer had {odd} tokens, although {tg} were fixed"
    if max(counts) > tg and _off(max(counts), tg):
        return f"an answer had {max(counts)} tokens, although at most {tg} were asked for"
    if min(counts) < tg / 2:
        return f"an answer ended by itself after {min(counts)} of {tg} tokens"
    if max(counts) - min(counts) > max(_LENGTH_OFF * tg, _WHOLE_WORDS):
        return f"the answers differ in length, from {min(counts)} to {max(counts)} of {tg} tokens"
    return None


def _k1(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    if any(k1 is None for p in passes for k1 in p.first_deltas):
        return "nobody knows how many tokens the first delta carried"
    return None


def _client(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    for one in passes:
        first = min(s.t0_ns for s in one.streams)
        late = statistics.median((s.t0_ns - first) / 1e9 for s in one.streams)
        if late > _LATE_S:
            return (
                f"the client was late: half of its requests started over {late * 1e3:.0f} ms after the first"
            )
    return late_reads(statistics.median(s.doubt_s for s in streams))


def late_reads(doubt_s: float) -> str | None:
    """Return what is wrong with reads that leave the times of tokens open by `doubt_s`, or None."""
    if doubt_s <= _LATE_S:
        return None
    return (
        "the client was the bottleneck: it read so late that the time of the first or the last token is "
        f"unknown by {doubt_s * 1e3:.0f} ms"
    )


def _clock(terms: Terms, passes: Sequence[Pass], streams: Sequence[Stream]) -> str | None:
    for s in streams:
        lasted = s.arrivals.at_ns[-1] if s.arrivals else 0
        # A clock that is disciplined by NTP may run up to 500 ppm fast or slow: adjtimex(2).
        if abs(s.clock_step_ns) > 1_000_000 + lasted * 500e-6:
            return f"the system's clock was moved by {s.clock_step_ns / 1e6:.1f} ms during a request"
        if min(s.arrivals.gaps_ns(), default=0) < -_BACK_NS:
            return "the times of a stream's events are not in their order"
    return None


_Check = Callable[[Terms, Sequence[Pass], Sequence[Stream]], str | None]
_CHECKS: tuple[_Check, ...] = (_usage, _form, _finish, _prompt, _cache, _output, _k1, _client, _clock)


@frozen(kw_only=True)
class Facts:
    """What is told of many requests together: stamps and sources of k1 that occurred, the tokens of the
    prompts and answers that are known, whether all told their cached tokens, and how many reads held
    several deltas."""

    stamps: Collection[str]
    k1_sources: Collection[str]
    prompts: Sequence[float]
    answers: Sequence[float]
    all_cached_told: bool
    merged_reads: int

    @classmethod
    def of(cls, passes: Sequence[Pass]) -> Facts | None:
        """Return those of the passes' streams; None where there are none."""
        streams = [s for p in passes for s in p.streams]
        if not streams:
            return None
        return cls(
            stamps={s.stamps for s in streams},
            k1_sources={k1.source for p in passes for k1 in p.first_deltas if k1},
            prompts=[s.prompt_tokens for s in streams if s.prompt_tokens is not None],
            answers=[s.completion_tokens for s in streams if s.completion_tokens is not None],
            all_cached_told=all(s.cached_tokens is not None for s in streams),
            merged_reads=sum(s.merged_reads for s in streams),
        )


def remarks(terms: Terms, passes: Sequence[Pass]) -> Iterator[str]:
    """Yield what a reader of the figures should know, although it does not make them invalid."""
    good = [p for p in passes if p.error is None]
    if facts := Facts.of(good):
        yield from said(terms, facts)
        yield from disagreements(good)


def said(terms: Terms, facts: Facts) -> Iterator[str]:
    """Yield what the requests themselves show."""
    yield f"times are stamped by: {', '.join(sorted(facts.stamps))}"
    sources = sorted(facts.k1_sources)
    if "average" in sources:
        yield "decode is approximate: the tokens of the first delta are an average"
    elif sources:
        yield f"tokens of the first delta (k1): {', '.join(_K1[source] for source in sources)}"
    if terms.counted and terms.template_tokens <= 1:  # one begins the text
        yield "the server put the prompts in no chat template: drafts are accepted more often than in chats"
    if not terms.cell.warm_tokens and not facts.all_cached_told:
        yield "the server does not tell its cached tokens: that prompts were cold rests on their nonce"
    asked = terms.cell.prompt_tokens
    odd = sum(_off(tokens, asked) for tokens in facts.prompts)
    if odd:
        yield f"{odd} prompts were more than 2% off {asked} tokens"
    if facts.answers and not terms.fixed_length and min(facts.answers) != terms.cell.tg:
        shortest, longest = int(min(facts.answers)), int(max(facts.answers))
        yield f"answers had {shortest} to {longest} tokens: their length is the model's choice"
    if facts.merged_reads:
        yield f"{facts.merged_reads} reads held several deltas, which share one time"


def disagreements(passes: Sequence[Pass]) -> Iterator[str]:
    """Yield where the figures are off the server's own account."""
    for name in ("prefill_tps", "decode_tps"):
        pairs = [
            (p.figures.get(name) or p.figures[f"stream_{name}"], p.server_figures[name])
            for p in passes
            if name in p.server_figures and (name in p.figures or f"stream_{name}" in p.figures)
        ]
        if pairs:
            off = statistics.median(mine / theirs - 1 for mine, theirs in pairs)
            if abs(off) > _ACCOUNT_OFF:
                yield f"{name} is {off:+.0%} off the server's own account"
