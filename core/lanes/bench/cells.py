"""What a measurement gives: passes as they end, and a result for each cell."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field, frozen

from lanes.bench import measures
from lanes.bench.account import server_figures
from lanes.bench.measures import FirstDelta
from lanes.bench.plan import Cell, Load, Shape
from lanes.bench.slo import Slo
from lanes.bench.statistics import Interval, median_interval
from lanes.bench.stream import Stream
from lanes.bench.watch import NOTHING, Seen

Status = Literal["ok", "invalid", "crashed", "skipped"]


@frozen(kw_only=True)
class Progress:
    """Where a measurement stands: cell `index` of `cells` (from 1), pass `number` of `total` (from 1,
    warm-ups included), and the phase in words."""

    cell: Cell
    index: int
    cells: int
    number: int
    total: int
    phase: str


@frozen(kw_only=True)
class Pass:
    """One repetition of a cell.

    `number` counts from 1, the warm-ups and the measured passes each for themselves. `streams` are
    the raw timelines with their `first_deltas` (k1); `prefixes` the requests that filled the cache.
    `figures` are the pass's, named with their unit; `stream_figures` each stream's own;
    `server_figures` the server's account of the same. `client_cpu_s` is what this program used.
    `error` is None, or the first failure in one sentence.

    A pass of a closed or an open load has too many streams to hold: it counts its `requests`, and their
    timelines are handed over as they end. `fault` says why it cannot be believed although nothing
    failed. `notes` are what a reader should know of this pass.
    """

    cell: Cell
    number: int
    warmup: bool
    streams: tuple[Stream, ...]
    first_deltas: tuple[FirstDelta | None, ...] = ()
    prefixes: tuple[Stream, ...] = ()
    figures: Mapping[str, float] = field(factory=dict)
    stream_figures: tuple[Mapping[str, float], ...] = ()
    server_figures: Mapping[str, float] = field(factory=dict)
    client_cpu_s: float = 0.0
    error: str | None = None
    requests: int | None = None
    fault: str | None = None
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class CellResult:
    """One cell: its status with the reason, medians with intervals over the measured passes, and the
    passes themselves, warm-ups included. `server_metrics` is the server's own account."""

    pp: int
    tg: int
    depth: int
    concurrency: int
    shape: Shape = "suffix"
    load: Load = "burst"
    rate: float | None = None
    requests: int | None = None
    status: Status
    reason: str | None = None
    metrics: Mapping[str, Interval] = field(factory=dict)
    server_metrics: Mapping[str, Interval] = field(factory=dict)
    notes: tuple[str, ...] = ()
    passes: tuple[Pass, ...] = ()


def finished_pass(
    cell: Cell,
    number: int,
    warmup: bool,
    streams: Sequence[Stream],
    first_deltas: Sequence[FirstDelta | None],
    prefixes: Sequence[Stream] = (),
    client_cpu_s: float = 0.0,
    slo: Slo | None = None,
    seen: Seen = NOTHING,
) -> Pass:
    """Return the pass with its figures; a pass in which a stream failed has none. `seen` is what was
    seen of the server meanwhile."""
    failed = next((s.error for s in (*prefixes, *streams) if not s.ok), None)
    own = [stream_figures(s, k1) for s, k1 in zip(streams, first_deltas, strict=True)]
    return Pass(
        cell=cell,
        number=number,
        warmup=warmup,
        streams=tuple(streams),
        first_deltas=tuple(first_deltas),
        prefixes=tuple(prefixes),
        figures={} if failed else _pass_figures(streams, first_deltas, own) | _goodput(slo, streams, own),
        stream_figures=tuple(own),
        server_figures={} if failed else _medians([server_figures(s) for s in streams]) | dict(seen.figures),
        client_cpu_s=client_cpu_s,
        error=failed,
        notes=seen.notes,
    )


def cell_result(
    cell: Cell,
    status: Status,
    reason: str | None = None,
    passes: Sequence[Pass] = (),
    notes: Sequence[str] = (),
) -> CellResult:
    """Return the cell's result with the medians over its measured passes that have figures: a burst in
    which a stream failed has none, a load those of its other requests."""
    measured = [p for p in passes if not p.warmup and p.figures]
    return CellResult(
        pp=cell.pp,
        tg=cell.tg,
        depth=cell.depth,
        concurrency=cell.concurrency,
        shape=cell.shape,
        load=cell.load,
        rate=cell.rate,
        requests=cell.requests,
        status=status,
        reason=reason,
        metrics=_intervals([p.figures for p in measured]),
        server_metrics=_intervals([p.server_figures for p in measured]),
        notes=tuple(notes),
        passes=tuple(passes),
    )


def stream_figures(stream: Stream, k1: FirstDelta | None) -> dict[str, float]:
    """Return one stream's figures, those that its timeline has."""
    decode_tps = measures.decode_tps(stream, k1)
    itl_s, icl_s = measures.itl_s(stream, k1), measures.icl_s(stream)
    icl_median = _median(icl_s)
    figures = {
        "first_event_s": measures.first_event_s(stream),
        "ttft_s": measures.ttft_s(stream),
        "prefill_tps": measures.prefill_tps(stream),
        "decode_tps": decode_tps,
        "itl_s": icl_median if itl_s == icl_s else _median(itl_s),
        "itl_mean_s": _itl_mean_s(stream, decode_tps),
        "icl_s": icl_median,
        "e2e_s": measures.e2e_s(stream),
        "round_trip_s": stream.connect_s,
        "prompt_tokens": stream.prompt_tokens,
        "cached_tokens": stream.cached_tokens,
        "completion_tokens": stream.completion_tokens,
        "tokens_per_delta": _tokens_per_delta(stream, k1),
    }
    return {name: float(value) for name, value in figures.items() if value is not None}


def _itl_mean_s(stream: Stream, decode_tps: float | None) -> float | None:
    """1 / decode_tps; 0 where all tokens came at once, so that no time was between them"""
    deltas = stream.token_arrivals
    if decode_tps is None and deltas and deltas.at_ns[0] == deltas.at_ns[-1]:
        return 0.0
    return 1 / decode_tps if decode_tps else None


def _tokens_per_delta(stream: Stream, k1: FirstDelta | None) -> float | None:
    """(N - k1) / (deltas - 1): what a verify step accepted, where the server sends a delta a step"""
    deltas = len(stream.token_arrivals)
    if stream.completion_tokens is None or k1 is None or deltas < 2:
        return None
    return (stream.completion_tokens - k1.tokens) / (deltas - 1)


def _goodput(
    slo: Slo | None, streams: Sequence[Stream], own: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The share of a burst's streams that met the objective, and how many a second, from the first send
    to the last token."""
    if slo is None or not own:
        return {}
    met = sum(slo.met(one) for one in own)
    ends = [s.t0_ns + s.token_arrivals.at_ns[-1] for s in streams if s.token_arrivals]
    span_s = (max(ends) - min(s.t0_ns for s in streams)) / 1e9 if ends else 0.0
    return {"slo_share": met / len(own)} | ({"goodput_rps": met / span_s} if span_s > 0 else {})


def _pass_figures(
    streams: Sequence[Stream], k1s: Sequence[FirstDelta | None], own: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Medians over the streams; of several streams together the span and the steady rate too."""
    figures: dict[str, float | None] = dict(_medians(own))
    figures["generated_tokens"] = sum(o["completion_tokens"] for o in own if "completion_tokens" in o)
    figures["span_tps"] = measures.span_tps(streams)
    if len(streams) > 1:
        figures.pop("decode_tps", None)  # one stream's rate under a name that could pass for all
        figures["stream_decode_tps"] = measures.stream_decode_tps(streams, k1s)
        figures["steady_tps"] = measures.steady_tps(streams, k1s)
        figures["contention"] = measures.contention(streams, k1s)
        figures["ttft_max_s"] = max((o["ttft_s"] for o in own if "ttft_s" in o), default=None)
    return {name: value for name, value in figures.items() if value is not None}


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for one in figures for name in one))
    return {n: statistics.median(one[n] for one in figures if n in one) for n in names}


def _intervals(figures: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    names = list(dict.fromkeys(name for one in figures for name in one))
    return {n: median_interval([one[n] for one in figures if n in one]) for n in names}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
