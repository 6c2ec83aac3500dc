"""Each figure in one function, computed from the raw timelines, with its formula.

Symbols: t0 is taken just before the first byte of the request is written. N is the completion
tokens by the server's usage. t_first and t_last are the first and the last delta that carried
tokens: role-only and empty deltas, the finish and usage chunks and `[DONE]` never count. k1 is the
tokens in the first delta. A function returns None where the stream does not hold what its formula
needs. Times are in seconds, rates in tokens per second.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Sequence

from attrs import frozen

from lanes.bench.statistics import median
from lanes.bench.stream import Stream


@frozen(kw_only=True)
class FirstDelta:
    """k1: how many tokens the first delta carried, and how that is known.

    `source` is `usage` (continuous usage), `token_ids`, `logprobs`, `single` (as many deltas as
    tokens, so each carries one), `tokenizer`, or `average` (N / number of deltas), which is
    approximate.
    """

    tokens: float
    source: str

    @property
    def approximate(self) -> bool:
        return self.source == "average"


def first_delta(stream: Stream, tokenized: int | None = None) -> FirstDelta | None:
    """Return k1 by the best source that the stream offers.

    `tokenized` is what the server's own tokenizer says of the first delta's text. Crediting the
    first delta's extra tokens to no time would read high under speculative decoding (by 2.4% with 4
    tokens a delta at N = 128).
    """
    deltas = stream.token_arrivals
    if not deltas:
        return None
    first = deltas[0]
    if first.cumulative:
        return FirstDelta(tokens=first.cumulative, source="usage")
    if first.tokens and stream.token_source:
        return FirstDelta(tokens=first.tokens, source=stream.token_source)
    if stream.completion_tokens == len(deltas):
        return FirstDelta(tokens=1, source="single")
    if tokenized:
        return FirstDelta(tokens=tokenized, source="tokenizer")
    if stream.completion_tokens:
        return FirstDelta(tokens=stream.completion_tokens / len(deltas), source="average")
    return None


def first_event_s(stream: Stream) -> float | None:
    """first event of any kind - t0"""
    return stream.arrivals.at_ns[0] / 1e9 if stream.arrivals else None


def ttft_s(stream: Stream) -> float | None:
    """t_first - t0: content, reasoning or a tool call, whichever comes first"""
    deltas = stream.token_arrivals
    return deltas.at_ns[0] / 1e9 if deltas else None


def prefill_tps(stream: Stream) -> float | None:
    """(prompt tokens - cached tokens) / ttft_s, both counts by the server's usage

    A server that does not tell its cached tokens is taken to have had none, which holds for a cold
    prompt only. The network's round trip is inside; it is shown beside, never subtracted.
    """
    ttft, prompt, cached = ttft_s(stream), stream.prompt_tokens, stream.cached_tokens or 0
    if not ttft or ttft <= 0 or prompt is None or cached > prompt:
        return None
    return (prompt - cached) / ttft


def decode_tps(stream: Stream, k1: FirstDelta | None) -> float | None:
    """(N - k1) / (t_last - t_first)

    N is the running usage at t_last where the stream tells it, for tokens without text may come
    after t_last (the end of the answer is one).
    """
    deltas, tokens = stream.token_arrivals, _tokens_at_last(stream, k1)
    if len(deltas) < 2 or tokens is None or k1 is None:
        return None
    span_ns = deltas.at_ns[-1] - deltas.at_ns[0]
    return (tokens - k1.tokens) / span_ns * 1e9 if span_ns > 0 and tokens > k1.tokens else None


def _tokens_at_last(stream: Stream, k1: FirstDelta | None) -> int | None:
    tokens = stream.completion_tokens
    counts = stream.token_arrivals.told("cumulative")
    if k1 is None or k1.source != "usage" or tokens is None or not counts:
        return tokens
    grows = counts == sorted(counts) and counts[0] < counts[-1] <= tokens
    return counts[-1] if grows else tokens


def e2e_s(stream: Stream) -> float | None:
    """t_last - t0"""
    deltas = stream.token_arrivals
    return deltas.at_ns[-1] / 1e9 if deltas else None


def icl_s(stream: Stream) -> tuple[float, ...]:
    """the gaps between token-bearing deltas, one per verify step under speculation"""
    return tuple(map(operator.truediv, stream.token_arrivals.gaps_ns(), itertools.repeat(1e9)))


def itl_s(stream: Stream, k1: FirstDelta | None) -> tuple[float, ...]:
    """each gap between token-bearing deltas / tokens in the delta that ended it"""
    gaps, tokens = icl_s(stream), delta_tokens(stream, k1)
    each = _per_token(gaps, tokens[1:]) if tokens else ()
    return gaps if each is gaps else tuple([gap for gap in each if gap is not None])


def delta_tokens(stream: Stream, k1: FirstDelta | None) -> tuple[float, ...]:
    """Return the tokens in each token-bearing delta; () when not even N is known.

    From continuous usage, token ids or logprobs where every delta has them; else k1 for the first
    and (N - k1) / (deltas - 1) for each other one, which is exact when each carries one token.
    """
    deltas, tokens = stream.token_arrivals, stream.completion_tokens
    running = deltas.told("cumulative")
    if running and running == sorted(running):
        return tuple(map(operator.sub, running, [0, *running]))
    if told := deltas.told("tokens"):
        return tuple(told)
    if tokens is None or k1 is None or not deltas:
        return ()
    rest = (tokens - k1.tokens) / (len(deltas) - 1) if len(deltas) > 1 else 0.0
    return (float(k1.tokens), *[rest] * (len(deltas) - 1))


def span_tps(streams: Sequence[Stream]) -> float | None:
    """all completion tokens / (last token of any stream - first t0), prefill included"""
    counts = [s.completion_tokens for s in streams]
    known = [n for n in counts if n is not None]
    ends = [s.t0_ns + s.token_arrivals.at_ns[-1] for s in streams if s.token_arrivals]
    if not streams or len(known) < len(streams) or len(ends) < len(streams):
        return None
    span_ns = max(ends) - min(s.t0_ns for s in streams)
    return sum(known) / span_ns * 1e9 if span_ns > 0 else None


def stream_decode_tps(streams: Sequence[Stream], k1s: Sequence[FirstDelta | None]) -> float | None:
    """the median over the streams of decode_tps"""
    rates = [decode_tps(s, k1) for s, k1 in zip(streams, k1s, strict=True)]
    known = [rate for rate in rates if rate is not None]
    return median(known) if known and len(known) == len(streams) else None


def steady_tps(streams: Sequence[Stream], k1s: Sequence[FirstDelta | None]) -> float | None:
    """tokens that came while all streams decoded / that time

    All decode from the latest t_first to the earliest t_last; deltas in (from, to] count. None when
    the streams never overlap.
    """
    if not streams or any(len(s.token_arrivals) < 2 for s in streams):
        return None
    begin = max(s.t0_ns + s.token_arrivals.at_ns[0] for s in streams)
    end = min(s.t0_ns + s.token_arrivals.at_ns[-1] for s in streams)
    if end <= begin:
        return None
    total = 0.0
    for stream, k1 in zip(streams, k1s, strict=True):
        counts = delta_tokens(stream, k1)
        if not counts:
            return None
        at_ns = stream.token_arrivals.at_ns
        first = bisect.bisect_right(at_ns, begin - stream.t0_ns)
        total += sum(counts[first : bisect.bisect_right(at_ns, end - stream.t0_ns)])
    return total / (end - begin) * 1e9


def contention(streams: Sequence[Stream], k1s: Sequence[FirstDelta | None]) -> float | None:
    """the median itl of tokens that came while another stream prefilled / that of the others

    A stream prefills from its t0 to its t_first. 1 says that decode goes on beside prefill as if it were
    alone; 5, that each token then takes five times as long. A gap that began or ended within another
    stream's prefill counts as beside it. None when there is no gap of both kinds.
    """
    # A stream's own gaps begin when its prefill has ended: it need not be told from the others'.
    firsts, lasts = _merged(
        (s.t0_ns, s.t0_ns + s.token_arrivals.at_ns[0]) for s in streams if s.token_arrivals
    )
    beside: list[float | None] = []
    alone: list[float | None] = []
    for stream, k1 in zip(streams, k1s, strict=True):
        at_ns, counts = stream.token_arrivals.at_ns, delta_tokens(stream, k1)
        gaps = _per_token(stream.token_arrivals.gaps_ns(), counts[1:]) if counts else []
        done = 0
        for begin, end in zip(firsts, lasts, strict=True):
            # Gap n is from delta n to the next one. Beside are those that end after the prefill's begin ...
            first = max(bisect.bisect_right(at_ns, begin - stream.t0_ns) - 1, done)
            # ... and begin before its end.
            last = max(bisect.bisect_left(at_ns, end - stream.t0_ns), first)
            alone += gaps[done:first]
            beside += gaps[first:last]
            done = last
        alone += gaps[done:]
    known, others = ([gap for gap in gaps if gap is not None] for gaps in (beside, alone))
    return median(known) / median(others) if known and others and min(others) > 0 else None


def _per_token(gaps: Sequence[float], tokens: Sequence[float]) -> Sequence[float | None]:
    """Return each gap / the tokens that ended it; None for a delta that had none."""
    if set(tokens) == {1}:
        return gaps
    return [gap / n if n > 0 else None for gap, n in zip(gaps, tokens, strict=True)]


def _merged(intervals: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the starts and the ends of the intervals' union, in order."""
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted(intervals):
        if lasts and first < lasts[-1]:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return firsts, lasts
