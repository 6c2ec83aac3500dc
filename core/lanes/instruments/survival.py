"""Does the server live through what agents send? Prompts that grow to its context, then bursts of them;
after each the server must still answer a small question."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

from attrs import evolve, field, frozen

from lanes.bench import context as server_context
from lanes.bench.measures import prefill_tps, ttft_s
from lanes.bench.plan import Limits
from lanes.bench.prompts import Prompt
from lanes.bench.session import Crashed, Session
from lanes.bench.stream import Stream
from lanes.instruments.base import Context, Instrument, Measured, Row
from lanes.instruments.survival_shape import SHAPES, Shape

_QUESTION = "What is the capital of France? Answer with one word."
_QUESTION_TOKENS = 8
_QUESTION_S = 60.0
_QUESTIONS = 2
"""How often the small question is asked before the server counts as hanging."""
_LEAST = 1024
_UNTOLD = 131072
"""How far prompts grow where the server does not tell its context and refuses none."""
_ROOM = 0.02
"""The share of the context that is left free where the length of a prompt is estimated."""


def _counts(_: Any, attribute: Any, value: tuple[int, ...]) -> None:
    if any(one < 1 for one in value):
        raise ValueError(f"{attribute.name} should hold numbers of at least 1")


def _positive(_: Any, attribute: Any, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"should be at least 1, not {value}")


@frozen(kw_only=True)
class Options:
    """`longest` prompt in tokens (by default what the server's context holds), `answer` tokens of each
    answer, `bursts` of so many prompts at once, each of `burst_tokens`. With `bisect`, the length that kills is
    narrowed down to `tolerance` tokens by launching the lane again and again."""

    longest: int | None = field(default=None, validator=_positive)
    answer: int = field(default=16, validator=_positive)
    bursts: tuple[int, ...] = field(default=(2, 4, 8), validator=_counts)
    burst_tokens: int = field(default=2048, validator=_positive)
    bisect: bool = False
    tolerance: int = field(default=1, validator=_positive)


@frozen(kw_only=True)
class Step:
    """So many prompts of so many tokens at once."""

    tokens: int
    streams: int = 1

    def __str__(self) -> str:
        if self.streams > 1:
            return f"{self.streams} prompts of {self.tokens:,} tokens at once"
        return f"{self.tokens:,} tokens"

    @property
    def where(self) -> str:
        """Where it happens, as in "crashes at 9,216 tokens"."""
        return f"with {self}" if self.streams > 1 else f"at {self}"


@frozen(kw_only=True)
class Tried:
    """What became of one step: `status` is `survived`, `refused` (a 4xx), `failed` (any other failure, and
    the server goes on serving), `crashed` or `hung` (it does not answer a small question any more).
    `body` is the request, or the first of them; `tokens` is its length as far as it is known."""

    step: Step
    status: str
    tokens: int
    reason: str | None = None
    streams: tuple[Stream, ...] = ()
    question_s: float | None = None
    body: dict[str, Any]

    @property
    def killed(self) -> bool:
        return self.status in ("crashed", "hung")


class Trial:
    """Puts steps to one launch of a server, within a running event loop. Raises `Crashed` while it prepares."""

    def __init__(self, context: Context, answer: int) -> None:
        limits = context.plan.limits
        self.session = Session(context.endpoint, context.plan.seed, limits, context.alive)
        patience = min(_QUESTION_S, limits.first_byte_s)
        self._brief = Session(
            context.endpoint,
            context.plan.seed,
            Limits(connect_s=limits.connect_s, first_byte_s=patience, stall_s=min(patience, limits.stall_s)),
            context.alive,
        )
        self.shape: Shape = SHAPES[0]
        self.refused: list[tuple[Shape, Stream]] = []
        self._answer = answer
        self._seed = f"{context.plan.comparison}/survival"
        self._number = 0

    async def prepare(self, shape: Shape | None = None) -> str | None:
        """Find a shape that the server takes, the agent's if it does, and learn its tokens. Returns why
        none was, in a sentence."""
        said = None
        for one in (shape,) if shape else SHAPES:
            self.shape = one
            stream = await self.session.watched(
                self.session.learn(f"{self._seed}/{time.time_ns()}", self._ask_shaped)
            )
            if stream.error is None:
                self._brief.form = self.session.form
                return None
            await self.session.survived(stream.error)
            if stream.status is None:
                return stream.error
            self.refused.append((one, stream))
            said = stream.error
        return said

    async def _ask_shaped(self, text: str) -> Stream:
        return await self.session.client.chat(self._body(text, 1))

    def _body(self, text: str, tokens: int) -> dict[str, Any]:
        return self.session.form.body("", tokens) | dict(self.shape.fields(text))

    async def prompt(self, tokens: int) -> tuple[dict[str, Any], int]:
        """A request whose prompt no cache knows, and its tokens as nearly as they can be met."""
        self._number += 1
        ruler = self.session.ruler
        # Long and launched anew: the number alone would repeat the prompts of the launch before.
        text = await ruler.fit(Prompt(f"{self._seed}/{self._number}/{time.time_ns():x}"), tokens)
        if ruler.tokenizes:
            tokens = round(await ruler.count(text) + ruler.template_tokens)
        return self._body(text, self._answer), tokens

    async def step(self, step: Step) -> Tried:
        """Send the step's prompts, then the small question. Never raises `Crashed`: that is a result."""
        bodies: list[dict[str, Any]] = []
        tried = Tried(step=step, status="crashed", tokens=step.tokens, body={})
        streams: list[Stream] = []
        try:
            for _ in range(step.streams):
                body, tokens = await self.session.watched(self.prompt(step.tokens))
                bodies.append(body)
            tried = evolve(tried, body=bodies[0], tokens=tokens)
            streams = await self.session.watched(self.session.burst(bodies))
            tried = evolve(tried, streams=tuple(streams), status="survived")
            failed = next((one for one in streams if one.error), None)
            if failed is not None:
                await self.session.survived(str(failed.error))
                polite = failed.status is not None and 400 <= failed.status < 500
                tried = evolve(tried, status="refused" if polite else "failed", reason=failed.error)
            elif step.streams == 1:
                # The server's own count is the best there is.
                tried = evolve(tried, tokens=streams[0].prompt_tokens or tokens)
            return await self._question(tried)
        except Crashed as crash:
            return evolve(tried, status="crashed", reason=str(crash), streams=tuple(streams))

    async def _question(self, tried: Tried) -> Tried:
        error = None
        for _ in range(_QUESTIONS):
            began = time.monotonic()
            stream = await self._brief.watched(self._small())
            if stream.ok and stream.token_arrivals:
                return evolve(tried, question_s=time.monotonic() - began)
            error = stream.error or "it answered without any token"
            await self._brief.survived(error)
        return evolve(tried, status="hung", reason=f"a small question after it: {error}")

    async def _small(self) -> Stream:
        return await self._brief.client.chat(self._brief.form.body(_QUESTION, _QUESTION_TOKENS))


def lengths(least: int, longest: int) -> list[int]:
    """Twice as long each, from the first that holds more than `least`, and `longest` last."""
    found, length = [], _LEAST
    while length < longest:
        if length > least:
            found.append(length)
        length *= 2
    return [*found, longest] if longest > least else found


def run(context: Context) -> Measured:
    """Try step after step until one kills the server; each is a row as it ends."""
    from lanes.instruments import survival_bisect

    options: Options = context.options or Options()
    with asyncio.Runner() as runner:
        survival = _Survival(context, options)
        killed = runner.run(survival.run())
    if killed is None:
        return survival.measured
    said = context.subject.explain(killed.reason or "")
    if killed.status == "hung":
        said = evolve(said, reason=str(killed.reason))
    context.row(
        _row(killed, survival.keep(killed), said.reason, causes=[c.name for c in said.causes], log=said.log)
    )
    smallest = killed
    if options.bisect and killed.step.streams == 1:
        smallest = survival_bisect.narrow(
            context, options, survival.shape, killed, survival.longest_survived, survival.keep
        )
    verb = "crashes" if killed.status == "crashed" else "hangs"
    where = smallest.step.where
    return Measured(
        status="unmeasurable",
        reason=f"{verb} {where}: {said.reason}",
        next_step=f"{said.next_step or 'look at the log'}; `lanes report --bug RUN` bundles it for the engine's maintainers",
    )


class _Survival:
    """One climb, from short prompts to bursts."""

    def __init__(self, context: Context, options: Options) -> None:
        self._context, self._options = context, options
        self.longest_survived = 0
        self.measured = Measured()
        self.shape: Shape = SHAPES[0]

    async def run(self) -> Tried | None:
        """Return the step that killed the server, or None, with what else there is to say in `measured`."""
        context, options = self._context, self._options
        context.progress("asking in an agent's shape")
        trial = Trial(context, options.answer)
        step = Step(tokens=_LEAST)
        try:
            reason = await trial.prepare()
        except Crashed as crash:
            return Tried(step=step, status="crashed", tokens=_LEAST, reason=str(crash), body={})
        self._told(trial)
        if reason is not None:
            self.measured = Measured(status="failed", reason=f"no prompt is answered: {reason}")
            return None
        self.shape = trial.shape
        told = (await asyncio.to_thread(server_context.ask, context.endpoint)).tokens
        longest = options.longest or self._room(told, trial)
        context.began({"shape": trial.shape.name, "context": told, "longest": longest, **_plain(options)})
        template = round(trial.session.ruler.template_tokens)
        climb = [Step(tokens=n) for n in lengths(template, longest)]
        bursts = [Step(tokens=min(options.burst_tokens, longest), streams=n) for n in options.bursts]
        if not climb:
            self.measured = Measured(
                status="failed",
                reason=f"the shape alone has {template:,} tokens, and {longest:,} is the longest prompt",
                next_step="give the lane a longer context",
            )
            return None
        whole = sum(one.tokens * one.streams for one in (*climb, *bursts))
        done = 0
        steps: Iterator[Step] = iter((*climb, *bursts))
        refused = None
        for step in steps:
            if refused is not None and step.streams == 1:
                continue
            context.progress(str(step), done / whole)
            tried = await trial.step(step)
            done += step.tokens * step.streams
            if tried.killed:
                return tried
            context.row(_row(tried, {}, tried.reason, within=self._within(tried, told)))
            if step.streams == 1 and tried.status == "survived":
                self.longest_survived = tried.tokens
            elif step.streams == 1:
                refused = tried  # longer ones will be no different
        return None

    def _within(self, tried: Tried, told: int | None) -> bool:
        return told is not None and tried.tokens + self._options.answer <= told

    def _room(self, told: int | None, trial: Trial) -> int:
        if told is None:
            return _UNTOLD
        free = 8 if trial.session.ruler.tokenizes else round(told * _ROOM)
        return max(told - self._options.answer - free, 1)

    def _told(self, trial: Trial) -> None:
        for shape, stream in trial.refused:
            broken = stream.status is None or stream.status >= 500
            self._context.row(
                Row(
                    name=shape.name,
                    status="failed" if broken else "refused",
                    fault=broken,
                    reason=stream.error,
                )
            )

    def keep(self, tried: Tried) -> dict[str, Any]:
        """Write the request and the logs beside the result; what to say of them as evidence."""
        folder = self._context.folder
        kept: dict[str, Any] = {}
        if tried.body:
            (folder / "request.json").write_text(json.dumps(tried.body, indent=1), encoding="utf-8")
            kept["request"] = "request.json"
        for rank, lines in self._context.subject.logs().items():
            (folder / f"rank{rank}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return kept


def _plain(options: Options) -> dict[str, Any]:
    import attrs

    return {name: value for name, value in attrs.asdict(options).items() if name != "longest"}


def _row(tried: Tried, kept: dict[str, Any], reason: str | None, within: bool = True, **evidence: Any) -> Row:
    """The row of a step. A polite refusal counts against the server only where the prompt fits its context."""
    figures: dict[str, float] = {"prompt_tokens": float(tried.tokens)}
    first = tried.streams[0] if tried.streams else None
    if first is not None and first.ok:
        figures |= {n: v for n, v in (("ttft_s", ttft_s(first)), ("prefill_tps", prefill_tps(first))) if v}
    if tried.question_s is not None:
        figures["question_s"] = tried.question_s
    return Row(
        name=str(tried.step),
        status=tried.status,
        fault=tried.status in ("failed", "crashed", "hung") or (tried.status == "refused" and within),
        reason=reason,
        figures=figures,
        evidence={**kept, **evidence},
    )


INSTRUMENT = Instrument(
    name="survival",
    summary="does it live through prompts up to its context in an agent's shape, and through bursts?",
    cost="reads about twice the context, and bursts of 2, 4 and 8 prompts of 2,048 tokens",
    run=run,
    options=Options,
)
