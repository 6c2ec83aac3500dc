"""What llama-benchy said of a cell, and where it is known to be wrong.

Its JSON has a row for each phase, without a word of the requests that failed; its progress file has an event for each
request and each delta. Both together tell what to believe (as of llama-benchy 0.4.0):

- Its prefill ends at the first event with a choice in it, which may be an empty delta with a role and no token. With
  times to the first token at hand, prefill is computed from those.
- Without token ids in the stream it counts N - 1 tokens after the first delta, however many that one held. N - k1 is
  right, with k1 tokens in the first delta.
- It exits with 0 when requests failed, even all of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from lanes.bench.cells import CellResult, cell_result
from lanes.bench.plan import Cell
from lanes.bench.statistics import median_interval
from lanes.bench.validity import prompt_length

EARLY_SHARE = 0.03
"""By how much of the time to the first token its prefill may end early before it is a matter of a wrong event."""
_EARLY_S = 0.002
_BUNDLED = 1.5
_LENGTH_OFF = 0.02


@define(kw_only=True)
class Request:
    """One request as its progress file tells: `phase` counts the bursts of a run, `deltas` those with text,
    `counted` whether each came with its token ids. Times are in seconds."""

    run: int
    phase: int
    prompt_tokens: int = 0
    total_tokens: int = 0
    deltas: int = 0
    counted: bool = True
    first_event_s: float | None = None
    ttft_s: float | None = None
    error: str | None = None
    ended: bool = False


@frozen(kw_only=True)
class Flag:
    """A known error that bit: `kind` is `early-role`, `k1` or `failed`; `figure` is the one it spoilt, `said`
    what llama-benchy says of it and `right` what it comes to when that is put right (None: nothing does)."""

    kind: str
    sentence: str
    figure: str | None = None
    said: float | None = None
    right: float | None = None


@frozen(kw_only=True)
class Judged:
    """A cell by llama-benchy: its result with what can be put right put right, what the program said itself
    (medians), and the flags."""

    result: CellResult
    said: Mapping[str, float] = field(factory=dict)
    flags: tuple[Flag, ...] = ()


def requests(lines: Iterable[str]) -> list[Request]:
    """Read a progress file, whole or as far as it got. Lines that are no events are passed over.

    With prefix caching a run has two bursts, the context's and the prompt's: a burst ends where the first
    request of the next one starts after the end of another.
    """
    found: dict[int, Request] = {}
    phase, ended_since_start = -1, True
    run = None
    for line in lines:
        event = _event(line)
        kind, number = event.get("type"), event.get("request_id")
        if not isinstance(number, int):
            continue
        if kind == "request_start":
            if event.get("run_index") != run:
                run, phase = event.get("run_index"), -1
                ended_since_start = True
            if ended_since_start:
                phase, ended_since_start = phase + 1, False
            found[number] = Request(run=int(run or 0), phase=phase)
        elif number in found:
            _take(found[number], kind, event)
            ended_since_start |= kind == "request_end"
    return list(found.values())


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _take(request: Request, kind: Any, event: Mapping[str, Any]) -> None:
    if kind == "request_first_response":
        request.first_event_s = event.get("ttfr_s")
    elif kind == "request_first_token":
        request.ttft_s = event.get("ttft_s")
    elif kind == "tokens":
        request.deltas += 1
        request.counted &= not event.get("estimated", False)
    elif kind == "request_end":
        request.prompt_tokens = int(event.get("prompt_tokens") or 0)
        request.total_tokens = int(event.get("total_tokens") or 0)
        request.error = str(event.get("error") or "") or None
        request.ended = True


def rows(report: str) -> list[dict[str, Any]]:
    """The rows of its JSON; none when there is no JSON, or of another kind."""
    value = _event(report)
    found = value.get("benchmarks")
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def latency_s(report: str) -> float:
    """What it took for the network's latency and subtracted."""
    return float(_event(report).get("latency_ms") or 0.0) / 1e3


def judge(
    cell: Cell,
    row: Mapping[str, Any] | None,
    sent: Sequence[Request],
    latency: float = 0.0,
    k1: float | None = None,
    fixed: bool = True,
) -> Judged:
    """Put a row of its JSON and the requests behind it together.

    `latency` in seconds is what it subtracted. `k1` is how many tokens the first delta holds, where that is
    known better than as the mean of all deltas. `fixed` says that the server had to give exactly tg tokens.
    """
    reason = _invalid(cell, row, sent, fixed)
    if row is None:
        return Judged(result=cell_result(cell, "invalid", reason), flags=_failed(sent, reason))
    figures = _figures(cell, row)
    said = {name: statistics.median(values) for name, values in figures.items()}
    flags = [*_failed(sent, reason)]
    for put_right in (_early_role, _bundled):
        flags += put_right(cell, figures, sent, latency, k1)
    result = cell_result(
        cell, "invalid" if reason else "ok", reason, notes=[flag.sentence for flag in flags if flag.figure]
    )
    metrics = {name: median_interval(values) for name, values in figures.items() if values}
    return Judged(result=evolve(result, metrics=metrics), said=said, flags=tuple(flags))


def _figures(cell: Cell, row: Mapping[str, Any]) -> dict[str, list[float]]:
    """Its values under our names, where they mean the same; its own totals of several streams under their own."""
    decode = "decode_tps" if cell.concurrency == 1 else "stream_decode_tps"
    names = {
        "ttft_s": ("e2e_ttft", 1e-3),
        "first_event_s": ("ttfr", 1e-3),
        "prefill_tps": ("pp_req_throughput", 1.0),
        decode: ("tg_req_throughput", 1.0),
    }
    if cell.concurrency > 1:
        names |= {"batch_prefill_tps": ("pp_throughput", 1.0), "batch_decode_tps": ("tg_throughput", 1.0)}
    found = {}
    for name, (theirs, unit) in names.items():
        metric = row.get(theirs)
        values = metric.get("values") if isinstance(metric, dict) else None
        if values:
            found[name] = [float(value) * unit for value in values]
    return found


def _invalid(cell: Cell, row: Mapping[str, Any] | None, sent: Sequence[Request], fixed: bool) -> str | None:
    """Why its figures are not to be believed, or None."""
    failed = [one for one in sent if one.error]
    if failed:
        return f"{len(failed)} of its {len(sent)} requests failed, which its exit code does not tell: {failed[0].error}"
    if row is None:
        return "it has no figures of this cell"
    if not sent or not all(one.ended for one in sent):
        return "it tells of no request" if not sent else "it was ended before its requests were"
    lacking = [name for name in ("e2e_ttft", "tg_req_throughput") if not row.get(name)]
    if lacking:
        return f"it has no {' and no '.join(lacking)}, although its requests did not fail"
    if not all(one.prompt_tokens for one in sent):
        return "the server sent no usage, so nobody knows how many tokens the prompts had"
    if reason := prompt_length(cell, statistics.median(one.prompt_tokens for one in sent)):
        return reason
    least = cell.tg * (1 - _LENGTH_OFF) - 1 if fixed else cell.tg / 2
    most = cell.tg * (1 + _LENGTH_OFF) + 1
    odd = [one.total_tokens for one in sent if not least <= one.total_tokens <= most]
    return f"an answer had {odd[0]} tokens instead of {cell.tg}" if odd else None


def _failed(sent: Sequence[Request], reason: str | None) -> tuple[Flag, ...]:
    failed = sum(1 for one in sent if one.error)
    return (Flag(kind="failed", sentence=str(reason)),) if failed else ()


def _early_role(
    cell: Cell, figures: dict[str, list[float]], sent: Sequence[Request], latency: float, k1: float | None
) -> list[Flag]:
    """Its prefill ends at the first event, not at the first token: compute it to the first token."""
    known = [
        (one, one.ttft_s, one.first_event_s) for one in sent if one.ttft_s and one.first_event_s is not None
    ]
    early = [(one, ttft) for one, ttft, first in known if ttft - first > max(EARLY_SHARE * ttft, _EARLY_S)]
    if not early:
        return []
    said = statistics.median(figures["prefill_tps"]) if figures.get("prefill_tps") else None
    ahead = statistics.median(ttft - (one.first_event_s or 0.0) for one, ttft in early)
    cold = [(one.prompt_tokens - cell.warm_tokens, ttft - latency) for one, ttft, _ in known]
    right = [tokens / taken for tokens, taken in cold if tokens > 0 and taken > 0]
    if not right:
        return []
    figures["prefill_tps"] = right
    by_token = statistics.median(right)
    claim = f"says a prefill of {said:,.0f} tok/s" if said else "has no figure of prefill"
    return [
        Flag(
            kind="early-role",
            figure="prefill_tps",
            said=said,
            right=by_token,
            sentence=(
                f"llama-benchy {claim}, for it stops its clock at an event without a token, {ahead:.3f} s before "
                f"the first one: {by_token:,.0f} tok/s by the first token"
            ),
        )
    ]


def _bundled(
    cell: Cell, figures: dict[str, list[float]], sent: Sequence[Request], latency: float, k1: float | None
) -> list[Flag]:
    """It takes the first delta for one token where the stream has no token ids."""
    name = "decode_tps" if cell.concurrency == 1 else "stream_decode_tps"
    blind = [one for one in sent if not one.counted and one.deltas > 1]
    if not blind or not figures.get(name):
        return []
    mean = statistics.median(one.total_tokens / one.deltas for one in blind)
    first = k1 if k1 is not None else mean
    total = statistics.median(one.total_tokens for one in blind)
    if first < _BUNDLED or total <= first:
        return []
    said = statistics.median(figures[name])
    share = (total - first) / (total - 1)
    figures[name] = [value * share for value in figures[name]]
    source = "" if k1 is not None else ", taken as the mean of all deltas"
    return [
        Flag(
            kind="k1",
            figure=name,
            said=said,
            right=said * share,
            sentence=(
                f"llama-benchy says a decode of {said:.1f} tok/s, {1 / share - 1:.1%} too much, for it takes the "
                f"first delta for one token and it held {first:.3g}{source}: {said * share:.1f} tok/s"
            ),
        )
    ]
