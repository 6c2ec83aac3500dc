"""What do running streams lose while another one prefills? One that decodes beside a deep prefill, and two
deep prompts at once."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
from attrs import field, frozen

from lanes.bench import context as server_context
from lanes.bench.measures import FirstDelta, decode_tps, ttft_s
from lanes.bench.plan import Cell
from lanes.bench.prompts import Prompt, nonce, task
from lanes.bench.session import Crashed, Session
from lanes.bench.statistics import median_interval
from lanes.bench.stream import Stream
from lanes.instruments.base import MEASURED, Context, Instrument, Measured, Row
from lanes.instruments.contention_figures import Seen, beside, together, word

_LEAD_TOKENS = 48
_LEAD_S = (0.3, 10.0)
"""How long a stream runs alone before the other one comes: so many tokens, within these bounds."""
_TAIL_TOKENS = 16
_MOST_TOKENS = 16384


def _counts(_: Any, attribute: Any, value: Iterable[int] | int) -> None:
    if any(one < 1 for one in (value if isinstance(value, tuple) else (value,))):
        raise ValueError(f"{attribute.name} should be at least 1")


@frozen(kw_only=True)
class Options:
    """`depths`: tokens of the deep prompts (where `--depth` gives none), `passes` of each, `prompt` tokens of the
    stream that runs meanwhile."""

    depths: tuple[int, ...] = field(default=(4096, 32768), validator=_counts)
    passes: int = field(default=3, validator=_counts)
    prompt: int = field(default=256, validator=_counts)


class _Failed(Exception):
    """A request failed; the message is the reason."""


def run(context: Context) -> Measured:
    """Measure each depth, pass by pass; its two rows are updated after each pass."""
    with asyncio.Runner() as runner:
        return runner.run(_Contention(context).run())


class _Contention:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._options: Options = context.options or Options()
        plan = context.plan
        self._depths = tuple(d for d in plan.depth if d) or self._options.depths
        self._answer = plan.tg[0]
        self._session = Session(context.endpoint, plan.seed, plan.limits, context.alive)
        self._limit = server_context.Context()
        self._rows: dict[str, Row] = {}
        self._done, self._whole = 0.0, 1.0

    async def run(self) -> Measured:
        try:
            return await self._run()
        except Crashed as crash:
            return Measured(status="crashed", reason=str(crash))

    async def _run(self) -> Measured:
        context, options = self._context, self._options
        context.progress("learning the server's tokens")
        learned = await self._session.watched(self._session.learn(f"{context.plan.comparison}/contention"))
        if learned.error:
            await self._session.survived(learned.error)
            return Measured(status="failed", reason=learned.error)
        self._limit = await asyncio.to_thread(server_context.ask, context.endpoint)
        context.began(
            {"depths": list(self._depths), "answer": self._answer, "context": self._limit.tokens}
            | {name: value for name, value in attrs.asdict(options).items() if name != "depths"}
        )
        self._whole = float(sum(4 * depth * options.passes for depth in self._depths))
        for depth in self._depths:
            cell = Cell(pp=0, tg=self._answer, depth=depth, shape="ctx")
            try:
                if self._limit.lacks(cell) is None:
                    await self._depth(depth)
            except _Failed as failed:
                self._close(depth, "failed", str(failed))
            except Crashed as crash:
                self._close(depth, "crashed", str(crash))
                raise
            if reason := self._limit.lacks(cell):
                self._close(depth, "skipped", reason)
        if all(self._rows[name].status == "skipped" for depth in self._depths for name in _names(depth)):
            return Measured(
                status="failed",
                reason=f"not even {min(self._depths):,} tokens fit into the server's context",
                next_step="give smaller depths with --depth, or the lane a longer context",
            )
        return MEASURED

    def _close(self, depth: int, status: str, reason: str) -> None:
        """End the rows of a depth before its time; the figures of the passes before are kept."""
        for name in _names(depth):
            before = self._rows.get(name, Row(name=name, status=status))
            self._row(attrs.evolve(before, status=status, fault=status != "skipped", reason=reason))

    def _row(self, row: Row) -> None:
        self._rows[row.name] = row
        self._context.row(row)

    async def _depth(self, depth: int) -> None:
        besides: list[Seen] = []
        togethers: list[Seen] = []
        short = await self._ask(self._options.prompt, _LEAD_TOKENS + _TAIL_TOKENS, depth, "short")
        for number in range(1, self._options.passes + 1):
            of = f"depth {depth:,}, pass {number} of {self._options.passes}"
            self._progress(f"{of}: alone")
            alone = await self._ask(depth, self._answer, depth, f"alone{number}")
            self._done += depth
            self._progress(f"{of}: decode beside a prefill")
            kept = max((one.share for one in besides if one.share is not None), default=1.0)
            besides.append(await self._beside(depth, number, short, alone, kept))
            self._done += depth
            self._row(_beside_row(depth, besides))
            self._progress(f"{of}: two prompts at once")
            togethers.append(await self._together(depth, number, alone))
            self._done += 2 * depth
            self._row(_together_row(depth, togethers))

    async def _beside(self, depth: int, number: int, short: Stream, alone: Stream, kept: float) -> Seen:
        """Start a short prompt with a long answer; when it has run for a while, send the deep one.

        The answer is as long as the other prefill takes alone, at the share of its speed that it `kept` in
        the passes before: more would only have to be waited for.
        """
        rate = decode_tps(short, await self._session.first_delta(short)) or 10.0
        deep_s = ttft_s(alone) or 1.0
        lead_s = min(max(_LEAD_TOKENS / rate, _LEAD_S[0]), _LEAD_S[1])
        tokens = round(rate * (2 * lead_s + deep_s * min(1.5 * kept, 1))) + _TAIL_TOKENS
        room = (self._limit.tokens or _MOST_TOKENS) - self._options.prompt - _TAIL_TOKENS
        tokens = max(min(tokens, room, _MOST_TOKENS), _LEAD_TOKENS)
        running = await self._body(self._options.prompt, tokens, depth, f"running{number}")
        deep = await self._body(depth, _TAIL_TOKENS, depth, f"deep{number}")
        wait_s = 1.5 * (ttft_s(short) or 0.0) + lead_s

        async def late() -> Stream:
            # A connection that is opened before would be idle meanwhile, and servers close those.
            await asyncio.sleep(wait_s)
            return await self._session.client.chat(deep)

        async def both() -> list[Stream]:
            return list(await asyncio.gather(self._session.client.chat(running), late()))

        one, other = await self._good(await self._session.watched(both()), depth)
        return beside(one, await self._session.first_delta(one), other, deep_s)

    async def _together(self, depth: int, number: int, alone: Stream) -> Seen:
        bodies = [await self._body(depth, self._answer, depth, f"together{number}/{i}") for i in range(2)]
        streams = await self._good(await self._session.watched(self._session.burst(bodies)), depth)
        k1s: list[FirstDelta | None] = [await self._session.first_delta(one) for one in streams]
        rate = decode_tps(alone, await self._session.first_delta(alone))
        return together(streams, k1s, rate, ttft_s(alone) or 0.0)

    async def _ask(self, prompt: int, tokens: int, depth: int, name: str) -> Stream:
        body = await self._body(prompt, tokens, depth, name)
        (stream,) = await self._good([await self._session.watched(self._session.client.chat(body))], depth)
        return stream

    async def _good(self, streams: Sequence[Stream], depth: int) -> Sequence[Stream]:
        """Return the streams if all brought tokens. Raises `_Failed`, or `Crashed`."""
        for one in streams:
            if one.error:
                await self._session.survived(one.error)
                self._limit.refused(Cell(pp=0, tg=self._answer, depth=depth, shape="ctx"), one)
                raise _Failed(one.error)
            if len(one.token_arrivals) < 2:
                raise _Failed(f"an answer had {len(one.token_arrivals)} deltas with tokens, too few to time")
        return streams

    async def _body(self, prompt: int, tokens: int, depth: int, name: str) -> dict[str, Any]:
        """A request with a cold prompt of so many tokens."""
        cell = Cell(pp=prompt, tg=tokens, depth=depth)
        text = Prompt(nonce(self._context.plan, cell, None, _stream_number(name)), task(tokens))
        return self._session.form.body(await self._session.ruler.fit(text, prompt), tokens)

    def _progress(self, text: str) -> None:
        self._context.progress(text, self._done / self._whole)


def _stream_number(name: str) -> int:
    """A number of its own for each request of a depth, which makes its prompt cold."""
    return int.from_bytes(name.encode(), "big")


def _names(depth: int) -> tuple[str, str]:
    return f"depth {depth:,}: decode beside a prefill", f"depth {depth:,}: two prompts at once"


def _figures(passes: Sequence[Seen]) -> dict[str, Any]:
    names = dict.fromkeys(name for one in passes for name in one.figures)
    return {n: median_interval([one.figures[n] for one in passes if n in one.figures]) for n in names}


def _share(passes: Sequence[Seen]) -> float | None:
    shares = [one.share for one in passes if one.share is not None]
    return statistics.median(shares) if shares else None


def _median(passes: Sequence[Seen], name: str, show: Callable[[float], str]) -> str:
    values = [one.figures[name] for one in passes if name in one.figures]
    return show(statistics.median(values)) if values else "?"


def _beside_row(depth: int, passes: Sequence[Seen]) -> Row:
    share = _share(passes)
    if share is not None:
        status = word(share)
        reason = f"decode keeps {share:.0%} of its speed while another stream prefills {depth:,} tokens"
        if status != "full speed":
            reason += f"; its longest pause is {_median(passes, 'stall_max_s', _seconds)}"
    elif any(one.waited for one in passes):
        status = "one at a time"
        reason = "the other prompt was not read before the running stream had ended"
    else:
        status, reason = "not known", next((str(one.doubt) for one in passes if one.doubt), "")
    return Row(
        name=_names(depth)[0],
        status=status,
        fault=status == "starved",
        reason=reason,
        figures=_figures(passes),
    )


def _together_row(depth: int, passes: Sequence[Seen]) -> Row:
    share = _share(passes)
    waited = any(one.waited for one in passes)
    in_line = sum(one.in_line for one in passes) * 2 > len(passes)
    order = "one at a time" if waited else "in line" if in_line else "side by side"
    first, second = (_median(passes, name, _seconds) for name in ("ttft_first_s", "ttft_second_s"))
    read = {
        "one at a time": "the second prompt was not read before the first stream had ended",
        "in line": f"the prompts are read in line, first tokens after {first} and {second}",
        "side by side": f"the prompts are read side by side, first tokens after {first} and {second}",
    }[order]
    reason = f"{_median(passes, 'span_tps', lambda v: f'{v:.3g}')} tok/s over all: {read}"
    if share is not None:
        reason += f"; between them the first stream decodes at {share:.0%} of its speed alone"
    decode = word(share) if share is not None else None
    return Row(
        name=_names(depth)[1],
        status=f"{order}, {decode}" if decode else order,
        fault=decode == "starved",
        reason=reason,
        figures=_figures(passes),
    )


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


INSTRUMENT = Instrument(
    name="contention",
    summary="what does decode lose while another stream prefills, and are prompts read in line?",
    cost="four prefills of each depth (4,096 and 32,768 tokens, where they fit) a pass, three passes",
    run=run,
    options=Options,
)
