"""What the client was found to hold on this machine, kept; and whether a cell went beyond it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Sequence

import cattrs
from attrs import frozen

from lanes import paths
from lanes._version import __version__
from lanes.bench import codec
from lanes.bench.stream import Stream

SCHEMA = "lanes.calibration/1"


@frozen(kw_only=True)
class CellError:
    """The client's error in one cell, against what the metronome really sent.

    Of `streams` streams, `concurrency` at once: the median and the 99th percentile of |TTFT - truth|,
    and the median of |decode / truth - 1|. `late_s` is how far the metronome was behind its own
    schedule (99th percentile): the truth takes it into account. `events_per_s` came while all
    streams ran; `cpu_us` is the client's CPU time for each. `missed` is None, or the goal that was missed.
    """

    concurrency: int
    streams: int
    ttft_s: float
    ttft_p99_s: float
    decode: float
    late_s: float
    events_per_s: float
    cpu_us: float
    missed: str | None = None


@frozen(kw_only=True)
class Envelope:
    """A calibration: where and when, its cells, and how many events a second the client sustains.

    `limited_by` says who gave up first, the `client` or the `metronome`; in the latter case the
    client might do more.
    """

    date: str
    host: str
    cpus: int
    versions: dict[str, str]
    cells: tuple[CellError, ...]
    events_per_s: float
    limited_by: str

    @property
    def concurrency(self) -> int:
        """Up to how many streams at once the goals were met."""
        met = 0
        for cell in sorted(self.cells, key=lambda c: c.concurrency):
            if cell.missed:
                break
            met = cell.concurrency
        return met

    @property
    def name(self) -> str:
        """For a run to name what its client was held against."""
        return f"calibrated {self.date} on {self.host}: {self.concurrency} streams, {self.events_per_s:,.0f} events/s"

    def beyond(self, streams: Sequence[Stream]) -> str | None:
        """Return why the client cannot be trusted with what it took of `streams`, in one sentence, or
        None when it can."""
        return self.exceeded(overlap(streams), events_per_s(streams))

    def exceeded(self, at_once: int, rate: float) -> str | None:
        """Return why the client cannot be trusted with so many streams at once and so many events a
        second, in one sentence, or None when it can."""
        if at_once > self.concurrency:
            return (
                f"the client was the bottleneck: {at_once} streams at once, where it is calibrated for"
                f" {self.concurrency} (`lanes calibrate --concurrency {at_once}` tries)"
            )
        if rate > self.events_per_s:
            return (
                f"the client was the bottleneck: {rate:,.0f} events a second, where it is calibrated for"
                f" {self.events_per_s:,.0f}"
            )
        return None


def envelope() -> Envelope | None:
    """Return what `lanes calibrate` found on this machine; None when it was not calibrated, or since
    changed its name, its number of processors, or the version of `lanes`."""
    try:
        data = json.loads(paths.calibration().read_text())
        kept = codec.from_json(Envelope, data) if data.get("schema") == SCHEMA else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, cattrs.BaseValidationError):
        return None
    if kept is None or (kept.host, kept.cpus, kept.versions.get("lanes")) != (
        platform.node(),
        os.cpu_count(),
        __version__,
    ):
        return None
    return kept


def keep(found: Envelope) -> None:
    """Keep `found` for the runs to come."""
    path = paths.calibration()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(as_json(found), indent=2) + "\n")
    fresh.replace(path)


def as_json(found: Envelope) -> dict[str, object]:
    """Return the document that is kept."""
    return {"schema": SCHEMA, **codec.as_json(found)}


def made(cells: Sequence[CellError], events_per_s: float, limited_by: str) -> Envelope:
    """Return the envelope of this machine, as it is now."""
    return Envelope(
        date=time.strftime("%Y-%m-%d"),
        host=platform.node(),
        cpus=os.cpu_count() or 1,
        versions={"lanes": __version__, "python": platform.python_version(), "kernel": platform.release()},
        cells=tuple(cells),
        events_per_s=events_per_s,
        limited_by=limited_by,
    )


def overlap(streams: Sequence[Stream]) -> int:
    """Return the most streams that ran at one time, from their t0 to their last event."""
    edges = sorted(
        (at, change)
        for s in streams
        if s.arrivals
        for at, change in ((s.t0_ns, 1), (s.t0_ns + s.arrivals.at_ns[-1], -1))
    )
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


_WINDOW_NS = 250_000_000


def events_per_s(streams: Sequence[Stream]) -> float:
    """Return the rate of events in the busiest quarter of a second."""
    counts: Counter[int] = Counter()
    for s in streams:
        s.arrivals.count_into(counts, s.t0_ns, _WINDOW_NS)
    return max(counts.values(), default=0) * 1e9 / _WINDOW_NS
