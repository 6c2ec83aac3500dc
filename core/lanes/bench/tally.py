"""The figures of many requests: each is counted as it ends, and only its numbers are kept."""

from __future__ import annotations

import bisect
import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import evolve

from lanes.bench import measures
from lanes.bench.cells import Pass, stream_figures
from lanes.bench.loads import Sent, most_at_once
from lanes.bench.plan import Cell
from lanes.bench.slo import Slo
from lanes.bench.stream import Stream
from lanes.bench.validity import Facts, Terms, disagreements, late_reads, prompt_length, said, verdict
from lanes.bench.watch import NOTHING, Seen

_FIGURES = (
    "first_event_s", "ttft_s", "prefill_tps", "decode_tps", "itl_s", "itl_mean_s", "icl_s", "e2e_s",
    "round_trip_s", "prompt_tokens", "cached_tokens", "completion_tokens", "tokens_per_delta",
)  # fmt: skip
_TAILS = ("ttft_s", "itl_mean_s", "e2e_s")
"""Figures whose 90th and 99th percentiles are told beside the median."""
_LATE_S = 0.010
RATE_NS = 250_000_000
"""The time over which the rate of events is taken."""
_DOUBTFUL = 0.01
"""Up to this share of requests that cannot be believed, the others still can: figures are medians."""
_NOT_HELD = 0.10
_NOT_HELD_REQUESTS = 3
_QUEUED = 3


class Tally:
    """Takes the requests of one pass, in the order in which they ended.

    Closed load of c streams and N requests. Ramp-up is the first request of each stream; ramp-down
    begins when a stream ends and finds nothing left to send, which is the end of the (N - c + 1)th.
    Latencies are of the requests that came after the first c and ended before ramp-down. Rates are
    what came between the end of ramp-up (the last of the first c ended) and the start of ramp-down,
    divided by that time.

    Open load. Every request counts, and a request's ttft_s and e2e_s begin when it was due.
    """

    def __init__(self, terms: Terms, slo: Slo | None = None) -> None:
        self._terms = terms
        self._slo = slo
        self._columns = {name: array("d") for name in _FIGURES}
        self._numbers = array("q")
        self._due, self._t0, self._ended = array("q"), array("q"), array("q")
        self._met = array("b")
        self._merged = array("q")
        self._doubts = array("d")
        self._events: Counter[int] = Counter()
        self._in_window = 0.0
        self._first_ended = 0
        self._begin_ns = self._end_ns = 0
        self._stamps: set[str] = set()
        self._k1_sources: set[str] = set()
        self._doubted = 0
        self._doubt_of_first: str | None = None
        self.failures = 0
        self.failures_in_a_row = 0
        self.failed: Stream | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def generated_tokens(self) -> float:
        """All tokens of all answers."""
        return sum(n for n in self._columns["completion_tokens"] if not math.isnan(n))

    @property
    def _cell(self) -> Cell:
        return self._terms.cell

    def add(self, sent: Sent) -> None:
        """Count one request."""
        stream = sent.stream
        self._numbers.append(sent.number)
        self._due.append(sent.due_ns if sent.due_ns is not None else stream.t0_ns)
        self._t0.append(stream.t0_ns)
        self._ended.append(sent.ended_ns)
        self._window(sent)
        stream.arrivals.count_into(self._events, stream.t0_ns, RATE_NS)
        figures = dict(stream_figures(stream, sent.first_delta)) if stream.ok else {}
        if sent.due_ns is not None:
            # What the queue took from a request is the server's, not the prompt's speed.
            figures.pop("prefill_tps", None)
            for name in ("first_event_s", "ttft_s", "e2e_s"):
                if name in figures:
                    figures[name] += sent.delay_s
        for name, column in self._columns.items():
            column.append(figures.get(name, math.nan))
        self._met.append(bool(self._slo and stream.ok and self._slo.met(figures)))
        self._merged.append(stream.merged_reads)
        self._doubts.append(stream.doubt_s)
        if stream.ok:
            self.failures_in_a_row = 0
            self._stamps.add(stream.stamps)
            if sent.first_delta:
                self._k1_sources.add(sent.first_delta.source)
            self._doubt(sent)
        else:
            self.failures += 1
            self.failures_in_a_row += 1
            self.failed = self.failed or stream

    def _window(self, sent: Sent) -> None:
        """Follow where ramp-up ends and ramp-down begins, and count the tokens between."""
        streams, requests = self._cell.concurrency, self._cell.requests or 0
        if self._cell.load != "closed":
            return
        if sent.number < streams:
            self._first_ended += 1
            self._begin_ns = max(self._begin_ns, sent.ended_ns)
        if len(self._numbers) == requests - streams + 1:
            self._end_ns = sent.ended_ns
        if self._first_ended == streams:
            counts = measures.delta_tokens(sent.stream, sent.first_delta)
            times = sent.stream.token_arrivals.at_ns
            for after_ns, count in zip(times, counts, strict=bool(counts)):
                at_ns = sent.stream.t0_ns + after_ns
                if self._begin_ns < at_ns and (not self._end_ns or at_ns <= self._end_ns):
                    self._in_window += count

    def _doubt(self, sent: Sent) -> None:
        """Count why this request cannot be believed, if it cannot. Its prompt's length, and how late it
        was read, are judged with the others'."""
        own = max((sent.stream.prompt_tokens or 0) - self._cell.warm_tokens, 0)
        whole = self._cell.shape == "ctx"
        cell = evolve(self._cell, depth=own) if whole else evolve(self._cell, pp=own)
        terms = evolve(self._terms, cell=cell, passes=1)
        one = Pass(
            cell=terms.cell,
            number=1,
            warmup=False,
            streams=(evolve(sent.stream, doubt_s=0.0),),
            first_deltas=(sent.first_delta,),
        )
        if reason := verdict(terms, [one]):
            self._doubt_of_first = self._doubt_of_first or reason
            self._doubted += 1

    def _counted(self) -> Sequence[int]:
        """The rows whose latencies count."""
        rows = range(len(self._numbers))
        if self._cell.load != "closed":
            return rows
        streams = self._cell.concurrency
        last = (self._cell.requests or 0) - streams + 1
        return [row for row in rows if self._numbers[row] >= streams and row < last]

    def figures(self) -> dict[str, float]:
        """Return the pass's figures: medians over the requests that count, their tails, and rates."""
        rows = self._counted()
        figures: dict[str, float] = {}
        for name, column in self._columns.items():
            values = sorted(v for v in (column[row] for row in rows) if not math.isnan(v))
            if not values:
                continue
            figures[name] = statistics.median(values)
            if name in _TAILS:
                stem = name.removesuffix("_s")
                figures[f"{stem}_p90_s"] = quantile(values, 0.90)
                figures[f"{stem}_p99_s"] = quantile(values, 0.99)
        if "decode_tps" in figures:
            figures["stream_decode_tps"] = figures.pop("decode_tps")
        figures["generated_tokens"] = self.generated_tokens
        figures["requests"] = float(len(self._numbers))
        figures["counted_requests"] = float(len(rows))
        if self._numbers:
            figures |= self._closed_rates() if self._cell.load == "closed" else self._open_rates()
        return figures

    def _closed_rates(self) -> dict[str, float]:
        span_s = (self._end_ns - self._begin_ns) / 1e9
        if self._first_ended < self._cell.concurrency or span_s <= 0:
            return {}
        inside = [self._begin_ns < at <= self._end_ns for at in self._ended]
        figures = {"load_tps": self._in_window / span_s, "request_rps": sum(inside) / span_s}
        return figures | self._goodput([row for row, yes in enumerate(inside) if yes], span_s)

    def _open_rates(self) -> dict[str, float]:
        span_s = (max(self._ended) - min(self._due)) / 1e9
        delays = sorted((t0 - due) / 1e9 for t0, due in zip(self._t0, self._due, strict=True))
        scheduled_s = (max(self._due) - min(self._due)) / 1e9
        figures = {
            "schedule_delay_s": statistics.median(delays),
            "schedule_delay_p99_s": quantile(delays, 0.99),
            "schedule_delay_max_s": delays[-1],
            "in_flight_max": float(self._most_in_flight()),
            "drain_s": (max(self._ended) - max(self._due)) / 1e9,
        }
        if scheduled_s > 0:
            figures["offered_rps"] = (len(self._due) - 1) / scheduled_s
        if span_s > 0:
            figures["request_rps"] = (len(self) - self.failures) / span_s
            figures["load_tps"] = self.generated_tokens / span_s
            figures |= self._goodput(range(len(self)), span_s)
        return figures

    def _goodput(self, rows: Sequence[int], span_s: float) -> dict[str, float]:
        if self._slo is None or not rows:
            return {}
        met = sum(self._met[row] for row in rows)
        return {"slo_share": met / len(rows), "goodput_rps": met / span_s}

    @property
    def events_per_s(self) -> float:
        """Events in the busiest quarter of a second, a second."""
        return max(self._events.values(), default=0) * 1e9 / RATE_NS

    @property
    def most_at_once(self) -> int:
        """The most requests that were under way at one time, sent and not only due."""
        ended = sorted(self._ended)
        t0 = sorted(self._t0)
        return max((n - bisect.bisect_left(ended, at) for n, at in enumerate(t0, 1)), default=0)

    def _most_in_flight(self) -> int:
        ended = sorted(self._ended)
        due = sorted(self._due)
        return max(n - bisect.bisect_right(ended, at) for n, at in enumerate(due, 1))

    def fault(self) -> str | None:
        """Return why the pass cannot be believed although every request was answered, or None."""
        if self._doubted > _DOUBTFUL * len(self):
            return self._doubtful()
        prompts = [n for n in self._columns["prompt_tokens"] if not math.isnan(n)]
        if prompts and (reason := prompt_length(self._cell, statistics.median(prompts))):
            return reason
        if self._doubts and (reason := late_reads(statistics.median(self._doubts))):
            return reason
        delays = [(t0 - due) / 1e9 for t0, due in zip(self._t0, self._due, strict=True)]
        if delays and statistics.median(delays) > _LATE_S and not self._crowded():
            late = _ms(statistics.median(delays))
            return f"the client was late: half of its requests started over {late} after they were due"
        if self._cell.load == "closed" and self._numbers and not self._counted():
            return "no request fell between ramp-up and ramp-down: send more (--requests)"
        return None

    def _doubtful(self) -> str:
        return f"{self._doubted:,} of {len(self):,} requests: {self._doubt_of_first}"

    def _crowded(self) -> bool:
        """Whether requests waited here because too many were under way, which is the server's doing."""
        return self._most_in_flight() >= most_at_once()

    def remarks(self) -> Iterator[str]:
        """Yield what a reader should know of how the load went."""
        if 0 < self._doubted <= _DOUBTFUL * len(self):
            yield f"not to be believed, and too few to matter: {self._doubtful()}"
        if self._cell.load != "open" or not self._numbers:
            return
        delays = sorted((t0 - due) / 1e9 for t0, due in zip(self._t0, self._due, strict=True))
        if held := self._not_held():
            yield held
        if delays[-1] > _LATE_S:
            why = ", for too many were under way" if self._crowded() else ""
            yield (
                f"the schedule was kept to {_ms(statistics.median(delays))} (median), "
                f"{_ms(quantile(delays, 0.99))} (p99) and {_ms(delays[-1])} (worst){why}; "
                "latencies count from the schedule"
            )

    def _not_held(self) -> str | None:
        """Say so when, in the second half of the schedule, fewer requests ended than came, by more than
        a tenth and more than 3. When no answer is quicker than that half, this tells nothing; then the
        last answers must have taken far longer than the quickest, or it cannot be told."""
        due = sorted(self._due)
        half = due[len(due) // 2 :]
        answers = [value for value in self._columns["e2e_s"] if not math.isnan(value)]
        if len(half) < 2 or not answers:
            return None
        seconds = (half[-1] - half[0]) / 1e9
        if min(answers) > seconds:
            drain_s = (max(self._ended) - due[-1]) / 1e9
            if drain_s > _QUEUED * min(answers):
                return (
                    f"the server does not hold {self._cell.rate:g} requests/s: the last answer came {drain_s:.2g} s "
                    f"after the schedule's end, and the quickest one took {min(answers):.2g} s"
                )
            return (
                f"the schedule is too short to tell whether the server holds {self._cell.rate:g} requests/s: "
                f"its second half took {seconds:.2g} s, and the quickest answer {min(answers):.2g} s"
            )
        ended = sum(half[0] < at <= half[-1] for at in self._ended)
        came = len(half) - 1
        if came - ended <= max(_NOT_HELD * came, _NOT_HELD_REQUESTS):
            return None
        waiting = sum(at > half[-1] for at in self._ended)
        return (
            f"the server does not hold {self._cell.rate:g} requests/s: in the schedule's second half "
            f"{came / seconds:.2g} came a second and {ended / seconds:.2g} ended, and {waiting} were under way "
            "at its end; latencies grow with the number of requests"
        )

    def error(self) -> str | None:
        """Return what failed, in one sentence, or None."""
        if self.failed is None:
            return None
        asked = self._cell.requests or 0
        rest = f", the other {asked - len(self)} were not sent" if len(self) < asked else ""
        return f"{self.failures} of {len(self)} requests failed{rest}: {self.failed.error}"

    def facts(self) -> Facts | None:
        """Return what is to be said of the requests that told their tokens; None where there are none."""
        prompts, answers, cached = (
            self._columns[name] for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
        )
        told = [
            row for row in range(len(self)) if not math.isnan(prompts[row]) or not math.isnan(answers[row])
        ]
        if not told:
            return None
        return Facts(
            stamps=self._stamps,
            k1_sources=self._k1_sources,
            prompts=[prompts[row] for row in told if not math.isnan(prompts[row])],
            answers=[answers[row] for row in told if not math.isnan(answers[row])],
            all_cached_told=not any(math.isnan(cached[row]) for row in told),
            merged_reads=sum(self._merged[row] for row in told),
        )


def load_pass(
    tally: Tally,
    terms: Terms,
    number: int,
    prefixes: Sequence[Stream] = (),
    client_cpu_s: float = 0.0,
    seen: Seen = NOTHING,
) -> Pass:
    """Return the pass that `tally` has counted; `seen` is what was seen of the server meanwhile."""
    counted = Pass(
        cell=terms.cell,
        number=number,
        warmup=False,
        streams=(),
        prefixes=tuple(prefixes),
        figures=tally.figures(),
        server_figures=dict(seen.figures),
        client_cpu_s=client_cpu_s,
        error=tally.error(),
        requests=len(tally),
        fault=tally.fault(),
    )
    facts = tally.facts()
    shown = (*said(terms, facts), *disagreements([counted])) if facts else ()
    return evolve(counted, notes=(*tally.remarks(), *shown, *seen.notes))


def load_verdict(passes: Sequence[Pass], asked: int) -> str | None:
    """Return why a cell of a load is invalid, in one sentence, or None. `passes` are the measured ones."""
    failed = [p for p in passes if p.error]
    if failed:
        rest = ", the others were not tried" if len(passes) < asked else ""
        return f"{len(failed)} of {len(passes)} passes failed{rest}: {failed[0].error}"
    return next((p.fault for p in passes if p.fault), None)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the `ordered` values that at least `share` of them do not exceed (nearest
    rank: no value is made up between two)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.3g} s"
