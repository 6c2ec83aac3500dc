"""The figures of a past measurement, computed anew from its raw timelines by the present definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, fields, frozen

from lanes.bench import measures
from lanes.bench.cells import CellResult, Pass, cell_result, finished_pass
from lanes.bench.codec import from_json
from lanes.bench.loads import Sent
from lanes.bench.plan import Cell
from lanes.bench.slo import Slo
from lanes.bench.statistics import Interval
from lanes.bench.tally import Tally, load_pass
from lanes.bench.timelines import unpack
from lanes.bench.validity import Terms
from lanes.bench.watch import Seen

_SAME = 1e-9
"""Relative; a sum in another order is no other figure."""


@frozen(kw_only=True)
class Difference:
    """A figure of a cell that is not what it was: None is that there was, or is, none."""

    metric: str
    was: Interval | None
    now: Interval | None


def recompute(
    cell: Mapping[str, Any], plan: Mapping[str, Any], batches: Iterable[Mapping[str, Any]] = ()
) -> CellResult:
    """Return the result of `cell`, as a result document holds it, with its figures computed anew.

    `batches` are the timelines of its requests, as they were journaled. The status, the reason
    and what was seen of the server meanwhile stay as they were.
    """
    what = _cell(cell)
    slo = from_json(Slo, plan["slo"]) if plan.get("slo") else None
    kept = [from_json(Pass, {"cell": cell} | dict(one)) for one in cell["passes"]]
    sent: dict[tuple[bool, int], list[Sent]] = {}
    for batch in batches:
        sent.setdefault((batch["warmup"], batch["number"]), []).extend(unpack(batch["packed"]))
    passes = [
        (_burst if one.requests is None else _load)(one, what, slo, sent.get((one.warmup, one.number), []))
        for one in kept
    ]
    return cell_result(what, cell["status"], cell["reason"], passes, cell["notes"])


def differences(cell: Mapping[str, Any], now: CellResult) -> Iterator[Difference]:
    """Yield where the figures of `now` differ from those that `cell` holds."""
    for name in dict.fromkeys((*cell["metrics"], *now.metrics)):
        kept = cell["metrics"].get(name)
        was = from_json(Interval, kept) if kept else None
        new = now.metrics.get(name)
        if was is None or new is None or not _same(was, new):
            yield Difference(metric=name, was=was, now=new)


def _same(a: Interval, b: Interval) -> bool:
    pairs = ((a.median, b.median), (a.lo, b.lo), (a.hi, b.hi))
    return a.n == b.n and all(abs(x - y) <= _SAME * max(abs(x), abs(y)) for x, y in pairs)


def _cell(data: Mapping[str, Any]) -> Cell:
    names = [a.name for a in fields(Cell)]
    return Cell(**{name: data[name] for name in names if data.get(name) is not None})


def _burst(kept: Pass, cell: Cell, slo: Slo | None, sent: Sequence[Sent]) -> Pass:
    if len(sent) != len(kept.streams):
        return kept  # its timelines are not all there: what was computed then is all there is
    streams = [one.stream for one in sent]
    # What the server's tokenizer said then cannot be asked again.
    k1s = [
        measures.first_delta(stream, int(k1.tokens) if k1 and k1.source == "tokenizer" else None)
        for stream, k1 in zip(streams, kept.first_deltas, strict=True)
    ]
    now = finished_pass(
        kept.cell, kept.number, kept.warmup, streams, k1s, kept.prefixes, kept.client_cpu_s, slo
    )
    return evolve(now, server_figures={**kept.server_figures, **now.server_figures}, notes=kept.notes)


def _load(kept: Pass, cell: Cell, slo: Slo | None, sent: Sequence[Sent]) -> Pass:
    if len(sent) != kept.requests:
        return kept
    tally = Tally(_terms(cell), slo)
    for one in sent:
        tally.add(evolve(one, first_delta=measures.first_delta(one.stream)))
    seen = Seen(figures=kept.server_figures)
    now = load_pass(tally, _terms(cell), kept.number, kept.prefixes, kept.client_cpu_s, seen)
    return evolve(now, fault=kept.fault, notes=kept.notes)


def _terms(cell: Cell) -> Terms:
    return Terms(cell=cell, passes=1, fixed_length=False)


def lines(name: str, found: Sequence[Difference]) -> Iterator[str]:
    """Yield a sentence for each difference of the cell `name`."""
    for one in found:
        was, now = (f"{i.median:.6g} (n {i.n})" if i else "absent" for i in (one.was, one.now))
        yield f"{name}: {one.metric} was {was}, now {now}"
