"""Is an answer the same alone and in a batch? Greedy prompts alone, then among others at once."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen

from lanes.bench import measures
from lanes.bench.plan import Cell
from lanes.bench.prompts import Prompt, nonce, task
from lanes.bench.session import Crashed, Session
from lanes.bench.stream import Stream
from lanes.instruments.base import MEASURED, Context, Instrument, Measured, Row

_KEEP = 1 << 20
"""Characters of an answer that are compared."""
_SHOWN = 160
"""Characters of an answer around the place where it departs, kept as evidence."""


def _counts(_: Any, attribute: Any, value: Any) -> None:
    if not value or any(one < 1 for one in (value if isinstance(value, tuple) else (value,))):
        raise ValueError(f"{attribute.name} should be at least 1")


def _several(_: Any, attribute: Any, value: tuple[int, ...]) -> None:
    if not value or any(one < 2 for one in value):
        raise ValueError(f"{attribute.name} should hold numbers of at least 2")


@frozen(kw_only=True)
class Options:
    """`batches` of so many requests at once, `prompts` that are compared in each, `prompt` and `answer` tokens."""

    batches: tuple[int, ...] = field(default=(2, 4, 8), validator=_several)
    prompts: int = field(default=3, validator=_counts)
    prompt: int = field(default=256, validator=_counts)
    answer: int = field(default=128, validator=_counts)


@frozen(kw_only=True)
class Compared:
    """An answer beside the same prompt's answer alone: `chars` and `tokens` of the common prefix, whether
    they are `identical`, the most streams that decoded at once meanwhile, and the `cached` tokens of both prompts."""

    identical: bool
    chars: int
    tokens: float | None
    at_once: int
    cached: tuple[int | None, int | None]
    evidence: Mapping[str, Any] = field(factory=dict)


def compare(alone: Stream, other: Stream, batch: Sequence[Stream] = ()) -> Compared:
    """Hold `other`, one of `batch`, against the answer that came `alone`."""
    pairs = enumerate(zip(alone.text, other.text, strict=False))
    identical = alone.text == other.text
    chars = next((i for i, (a, b) in pairs if a != b), min(len(alone.text), len(other.text)))
    begin = max(chars - _SHOWN // 2, 0)
    shown = {
        "alone": alone.text[begin : begin + _SHOWN],
        "in_batch": other.text[begin : begin + _SHOWN],
        "from_character": begin,
    }
    return Compared(
        identical=identical,
        chars=chars,
        tokens=_tokens(other, chars),
        at_once=_at_once(other, batch),
        cached=(alone.cached_tokens, other.cached_tokens),
        evidence={} if identical else shown,
    )


def _tokens(stream: Stream, chars: int) -> float | None:
    """The tokens of the deltas that lie whole within the first `chars` characters."""
    counts = measures.delta_tokens(stream, measures.first_delta(stream))
    total, at = 0.0, 0
    for arrival, count in zip(stream.token_arrivals, counts, strict=False):
        at += arrival.chars
        if at > chars:
            break
        total += count
    return total if counts else None


def _at_once(stream: Stream, batch: Sequence[Stream]) -> int:
    """The most streams, `stream` among them, between their first and last token at one time of its own."""
    spans = [
        (one.t0_ns + one.token_arrivals[0].at_ns, one.t0_ns + one.token_arrivals[-1].at_ns)
        for one in batch
        if one.token_arrivals
    ]
    if not stream.token_arrivals:
        return 0
    first, last = (stream.t0_ns + stream.token_arrivals[i].at_ns for i in (0, -1))
    starts = [first, *(begin for begin, _ in spans if first <= begin < last)]
    return max((sum(begin <= at < end for begin, end in spans) for at in starts), default=1) or 1


class _Failed(Exception):
    """A request failed; the message is the reason."""


def run(context: Context) -> Measured:
    """Compare prompt after prompt; each batch's row is updated after each."""
    with asyncio.Runner() as runner:
        return runner.run(_Invariance(context).run())


class _Invariance:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._options: Options = context.options or Options()
        self._session = Session(context.endpoint, context.plan.seed, context.plan.limits, context.alive)
        self._found: dict[int, list[Compared]] = {}
        self._failed: set[int] = set()
        sizes = (1, 1, 1, *self._options.batches)
        self._done, self._whole = 0, sum(sizes) * self._options.prompts

    async def run(self) -> Measured:
        context = self._context
        try:
            context.progress("learning the server's tokens")
            seed = f"{context.plan.comparison}/invariance"
            learned = await self._session.watched(self._session.learn(seed))
            if learned.error:
                await self._session.survived(learned.error)
                return Measured(status="failed", reason=learned.error)
            context.began(
                {"options": attrs.asdict(self._options), "seed": context.plan.seed, "temperature": 0}
            )
            for number in range(self._options.prompts):
                await self._prompt(number)
        except _Failed as failed:
            return Measured(status="failed", reason=str(failed))
        except Crashed as crash:
            return Measured(status="crashed", reason=str(crash))
        return MEASURED

    async def _prompt(self, number: int) -> None:
        """One prompt: once to warm the cache, so that all its answers come from the same, then alone twice,
        then in each batch."""
        body = await self._body(number, 0)
        await self._alone(number, body)
        alone = await self._alone(number, body)
        again = await self._alone(number, body)
        self._row(1, compare(alone, again, (again,)))
        for size in self._options.batches:
            if size in self._failed:
                continue
            self._progress(f"prompt {number + 1} of {self._options.prompts}, in a batch of {size}", size)
            others = [await self._body(number, size * 100 + i) for i in range(1, size)]
            batch = await self._session.watched(self._session.burst([body, *others], _KEEP))
            broken = next((one for one in batch if one.error), None)
            if broken is None:
                self._row(size, compare(alone, batch[0], batch))
                continue
            await self._session.survived(str(broken.error))
            self._failed.add(size)
            busy = broken.status in (429, 503)
            self._context.row(
                Row(
                    name=_name(size),
                    status="refused" if busy else "failed",
                    fault=not busy,
                    reason=broken.error,
                )
            )

    async def _alone(self, number: int, body: Mapping[str, Any]) -> Stream:
        self._progress(f"prompt {number + 1} of {self._options.prompts}, alone", 1)
        stream = await self._session.watched(self._session.client.chat(body, keep=_KEEP))
        if stream.error:
            await self._session.survived(stream.error)
            raise _Failed(stream.error)
        return stream

    async def _body(self, number: int, other: int) -> dict[str, Any]:
        """The prompt of that number, or another one that keeps it company, of another length."""
        options = self._options
        length = options.prompt if not other else max(options.prompt * (2 + other % 5) // 4, 32)
        cell = Cell(pp=options.prompt, tg=options.answer, concurrency=max(options.batches))
        prompt = Prompt(nonce(self._context.plan, cell, number, other), task(options.answer))
        return self._session.form.body(await self._session.ruler.fit(prompt, length), options.answer)

    def _progress(self, text: str, size: int) -> None:
        self._context.progress(text, self._done / self._whole)
        self._done += size

    def _row(self, size: int, one: Compared) -> None:
        found = self._found.setdefault(size, [])
        found.append(one)
        sure = all(alone.identical for alone in self._found[1])
        self._context.row(row(size, found, sure))


def _name(size: int) -> str:
    return "alone, again" if size == 1 else f"in a batch of {size}"


def row(size: int, found: Sequence[Compared], sure: bool = True) -> Row:
    """The row of a batch, from its prompts so far. Where answers alone differ too (not `sure`), a batch
    proves nothing."""
    differing = [one for one in found if not one.identical]
    figures = {
        "prompts": len(found),
        "identical": len(found) - len(differing),
        "at_once": statistics.median_low(one.at_once for one in found),
    }
    notes = []
    if differing:
        shortest = min(differing, key=lambda one: one.chars)
        figures["common_chars"] = shortest.chars
        where = f"{shortest.chars:,} characters"
        if shortest.tokens is not None:
            figures["common_tokens"] = round(shortest.tokens)
            where = f"{shortest.tokens:,.0f} tokens ({where})"
        status = "differs"
        count = f"{len(differing)} of {len(found)} answers differ" if len(found) > 1 else "the answer differs"
        notes.append(f"{count} from the one alone, at the earliest after {where}")
        if any(one.cached[0] != one.cached[1] for one in differing):
            notes.append("not as much of the prompt came from the cache, which may be why")
        if size > 1 and not sure:
            status = "not known"
            notes.append("but alone it is not the same twice either")
    elif size > 1 and figures["at_once"] < 2:
        status = "not batched"
        notes.append("the server answered one request after the other, so there was no batch")
    else:
        status = "identical"
        if size > 1 and figures["at_once"] < size:
            notes.append(f"only {figures['at_once']:g} streams decoded at once")
    return Row(
        name=_name(size),
        status=status,
        fault=status == "differs",
        reason="; ".join(notes) or None,
        figures=figures,
        evidence={"differences": [dict(one.evidence) for one in differing]},
    )


INSTRUMENT = Instrument(
    name="invariance",
    summary="is a greedy answer the same alone and inside batches of 2, 4 and 8?",
    cost="17 answers of 128 tokens a prompt, three prompts",
    run=run,
    options=Options,
)
