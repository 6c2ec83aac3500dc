"""What one stream loses while another one prefills, from their timelines."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

from attrs import frozen

from lanes.bench import measures
from lanes.bench.measures import FirstDelta
from lanes.bench.stream import Stream

FULL, STARVED = 0.8, 0.2
"""The share of its speed from which on decode counts as undisturbed, and below which as starved."""
_LEAST = 8
"""Tokens that should come in a time, going by the speed alone, for a share of it to mean anything."""
_TELLING = 0.2
"""How long a stream must decode, as a share of the other's prefill, to tell whether that waited for its end."""


@frozen(kw_only=True)
class Seen:
    """What was seen in one pass. `share` is what decode kept of its speed, None with a `doubt` where that
    cannot be told; `waited` says that the prefill did not begin before the other stream had ended."""

    figures: Mapping[str, float]
    share: float | None = None
    doubt: str | None = None
    waited: bool = False
    in_line: bool = False


def word(share: float) -> str:
    """`full speed`, `slowed` or `starved`."""
    return "full speed" if share >= FULL else "starved" if share < STARVED else "slowed"


def beside(running: Stream, k1: FirstDelta | None, deep: Stream, deep_alone_s: float) -> Seen:
    """What `running` kept of its speed while `deep` prefilled.

    alone: from its first token to the sending of `deep`. beside: from there to the first token of `deep`, or its
    own last one. decode_share = (tokens beside / that time) / (tokens alone / that time).
    """
    first, last = _edges(running)
    sent, deep_first = deep.t0_ns, _edges(deep)[0]
    waited = _waited(sent, last, deep_first, deep_alone_s)
    until = min(deep_first, last)
    figures = {
        "ttft_running_s": (first - running.t0_ns) / 1e9,
        "ttft_deep_s": (deep_first - sent) / 1e9,
        "ttft_deep_alone_s": deep_alone_s,
    }
    if sent <= first:
        return Seen(figures=figures, doubt="the running stream had not begun when the other one was sent")
    if last <= sent:
        return Seen(figures=figures, doubt="the running stream had ended when the other one was sent")
    alone_tps = _rate(running, k1, first, sent)
    figures |= _known(
        decode_tps_alone=alone_tps,
        decode_tps_beside=_rate(running, k1, sent, until),
        itl_alone_s=_median_itl(running, k1, first, sent),
        itl_beside_s=_median_itl(running, k1, sent, until),
        stall_max_s=_longest_gap(running, sent, until),
    )
    return _judged(figures, alone_tps, figures.get("decode_tps_beside"), until - sent, waited)


def together(
    streams: Sequence[Stream], k1s: Sequence[FirstDelta | None], alone_tps: float | None, deep_alone_s: float
) -> Seen:
    """Two deep prompts sent at once: span and steady figures, and what the first one to begin kept of its
    speed (`alone_tps`, at the same depth) until the second one began."""
    order = sorted(range(len(streams)), key=lambda i: _edges(streams[i])[0])
    (one, k1), other = (streams[order[0]], k1s[order[0]]), streams[order[1]]
    first, last = _edges(one)
    second = _edges(other)[0]
    until = min(second, last)
    figures = _known(
        span_tps=measures.span_tps(streams),
        steady_tps=measures.steady_tps(streams, k1s),
        stream_decode_tps=measures.stream_decode_tps(streams, k1s),
        contention=measures.contention(streams, k1s),
        ttft_first_s=measures.ttft_s(one),
        ttft_second_s=measures.ttft_s(other),
        ttft_deep_alone_s=deep_alone_s,
        decode_tps_alone=alone_tps,
        decode_tps_beside=_rate(one, k1, first, until),
        stall_max_s=_longest_gap(one, first, until),
    )
    seen = _judged(
        figures,
        alone_tps,
        figures.get("decode_tps_beside"),
        until - first,
        _waited(first, last, second, deep_alone_s),
    )
    in_line = (second - first) / 1e9 >= deep_alone_s / 2
    return Seen(figures=seen.figures, share=seen.share, doubt=seen.doubt, waited=seen.waited, in_line=in_line)


def _judged(
    figures: Mapping[str, float],
    alone_tps: float | None,
    beside_tps: float | None,
    window_ns: int,
    waited: bool,
) -> Seen:
    if waited:
        return Seen(figures=figures, waited=True)
    expected = (alone_tps or 0) * window_ns / 1e9
    if not alone_tps or beside_tps is None or expected < _LEAST:
        return Seen(
            figures=figures,
            doubt=f"they ran beside each other for {max(window_ns, 0) / 1e9:.2f} s, too short for {_LEAST} tokens",
        )
    share = beside_tps / alone_tps
    return Seen(figures={**figures, "decode_share": share}, share=share)


def _edges(stream: Stream) -> tuple[int, int]:
    deltas = stream.token_arrivals
    return stream.t0_ns + deltas[0].at_ns, stream.t0_ns + deltas[-1].at_ns


def _waited(begin: int, last: int, deep_first: int, deep_alone_s: float) -> bool:
    """Whether a prefill that could begin at `begin` did so only at the other stream's `last` token: its first
    token then comes a whole prefill after that, and else so much earlier as the stream decoded meanwhile."""
    decoded_s, after_s = (last - begin) / 1e9, (deep_first - last) / 1e9
    midway_s = deep_alone_s - min(decoded_s, deep_alone_s) / 2
    return decoded_s >= _TELLING * deep_alone_s and after_s >= midway_s


def _rate(stream: Stream, k1: FirstDelta | None, begin: int, end: int) -> float | None:
    """tokens in (begin, end] / that time"""
    counts = measures.delta_tokens(stream, k1)
    if not counts or end <= begin:
        return None
    arrivals = zip(stream.token_arrivals, counts, strict=True)
    return sum(n for a, n in arrivals if begin < stream.t0_ns + a.at_ns <= end) / (end - begin) * 1e9


def _gaps(stream: Stream, begin: int, end: int) -> list[tuple[int, int]]:
    """The gaps between deltas that lie at least in part in the time, as (index of the later delta, ns)."""
    at = [stream.t0_ns + a.at_ns for a in stream.token_arrivals]
    return [(i, b - a) for i, (a, b) in enumerate(itertools.pairwise(at), 1) if b > begin and a < end]


def _median_itl(stream: Stream, k1: FirstDelta | None, begin: int, end: int) -> float | None:
    counts = measures.delta_tokens(stream, k1)
    found = [ns / counts[i] / 1e9 for i, ns in _gaps(stream, begin, end) if counts and counts[i] > 0]
    return statistics.median(found) if found else None


def _longest_gap(stream: Stream, begin: int, end: int) -> float | None:
    return max((ns / 1e9 for _, ns in _gaps(stream, begin, end)), default=None)


def _known(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}
