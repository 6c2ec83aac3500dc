"""The figures that are compared: what they are called, which way is better, which are judged."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen


@frozen(kw_only=True)
class Metric:
    """One figure. `higher` says that more is better; `speed` chooses "faster" over "better".

    `judged` says whether lanes are judged by it: figures that tell the same twice are shown, not judged, for
    each figure that is looked at makes every claim harder.
    """

    name: str
    title: str
    higher: bool = True
    speed: bool = True
    judged: bool = False


_METRICS = (
    Metric(name="ttft_s", title="TTFT s", higher=False),
    Metric(name="prefill_tps", title="prefill tok/s", judged=True),
    Metric(name="decode_tps", title="decode tok/s", judged=True),
    Metric(name="stream_decode_tps", title="decode of a stream tok/s", judged=True),
    Metric(name="span_tps", title="span tok/s"),
    Metric(name="steady_tps", title="all streams tok/s"),
    Metric(name="batch_prefill_tps", title="prefill of all streams tok/s", judged=True),
    Metric(name="batch_decode_tps", title="decode of all streams tok/s", judged=True),
    Metric(name="load_tps", title="load tok/s", judged=True),
    Metric(name="request_rps", title="requests/s"),
    Metric(name="ttft_p99_s", title="TTFT p99 s", higher=False, judged=True),
    Metric(name="goodput_rps", title="goodput/s"),
    Metric(name="slo_share", title="SLO met", speed=False),
    Metric(name="e2e_s", title="whole answer s", higher=False),
    Metric(name="itl_s", title="time between tokens s", higher=False),
    Metric(name="contention", title="contention", higher=False, speed=False),
    Metric(name="score", title="quality", speed=False, judged=True),
    Metric(name="points", title="points", speed=False),
    Metric(name="responsiveness", title="responsiveness", speed=False),
    Metric(name="median_turn_s", title="median turn s", higher=False, judged=True),
)
METRICS = {metric.name: metric for metric in _METRICS}

DECODE = ("decode_tps", "stream_decode_tps", "batch_decode_tps")
"""Decode by what a cell has: one stream's, or all together where an instrument tells no other."""


def judged(held: Iterable[str]) -> list[Metric]:
    """The figures of a cell by which lanes are judged: TTFT only where there is no prefill rate."""
    names = set(held)
    found = [metric for metric in _METRICS if metric.judged and metric.name in names]
    if "prefill_tps" not in names and "ttft_p99_s" not in names and "ttft_s" in names:
        found.insert(0, METRICS["ttft_s"])
    return found
