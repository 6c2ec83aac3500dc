"""Does the server live through what agents send? Prompts that grow to its context, then bursts of them;
after each the server must still answer a small question."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import attrs
from attrs import field, frozen

from lanes.bench import context as server_context
from lanes.bench.measures import prefill_tps, ttft_s
from lanes.bench.session import Crashed
from lanes.instruments import survival_bisect
from lanes.instruments.base import Context, Instrument, Measured, Row
from lanes.instruments.survival_steps import Step, Trial, Tried

_LEAST = 1024
_UNTOLD = 131072
"""How far prompts grow where the server does not tell its context and refuses none."""
_ROOM = 0.02
"""The share of the context that is left free where the length of a prompt is estimated."""


def _counts(_: Any, attribute: Any, value: tuple[int, ...]) -> None:
    if any(one < 1 for one in value):
        raise ValueError(f"{attribute.name} should hold numbers of at least 1")


def _positive(_: Any, attribute: Any, value: float | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"should be at least 1, not {value}")


@frozen(kw_only=True)
class Options:
    """`longest` prompt in tokens (by default what the server's context holds), `answer` tokens of each
    answer, `bursts` of so many prompts at once, each of `burst_tokens`; a server that does not answer a
    small question within `patience_s` hangs. With `bisect`, the length that kills is
    narrowed down to `tolerance` tokens by launching the lane again and again."""

    longest: int | None = field(default=None, validator=_positive)
    answer: int = field(default=16, validator=_positive)
    bursts: tuple[int, ...] = field(default=(2, 4, 8), validator=_counts)
    burst_tokens: int = field(default=2048, validator=_positive)
    patience_s: float = field(default=60.0, validator=_positive)
    bisect: bool = False
    tolerance: int = field(default=1, validator=_positive)


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
    options: Options = context.options or Options()
    with asyncio.Runner() as runner:
        survival = _Survival(context, options)
        killed = runner.run(survival.run())
    if killed is None:
        return survival.measured
    said = context.subject.explain(killed.reason or "")
    context.row(
        _row(killed, survival.keep(killed), said.reason, causes=[c.name for c in said.causes], log=said.log)
    )
    smallest = killed
    if options.bisect and killed.step.tokens and killed.step.streams == 1:
        smallest = survival_bisect.narrow(
            context,
            survival.trial,
            killed,
            survival.longest_survived,
            survival.keep,
            tolerance=options.tolerance,
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
        self.trial = Trial(context, options.answer, options.patience_s)

    async def run(self) -> Tried | None:
        """Return the step that killed the server, or None, with what else there is to say in `measured`."""
        context, options, trial = self._context, self._options, self.trial
        context.progress("asking in an agent's shape")
        try:
            reason = await trial.prepare()
        except Crashed as crash:
            step = Step(tokens=0, shape=trial.shape.name)
            return Tried(step=step, status="crashed", tokens=0, reason=str(crash), bodies=trial.asked)
        self._told(trial)
        if reason is not None:
            self.measured = Measured(status="failed", reason=f"no prompt is answered: {reason}")
            return None
        told = (await asyncio.to_thread(server_context.ask, context.endpoint)).tokens
        longest = options.longest or self._room(told, trial)
        context.began(
            {"shape": trial.shape.name, "context": told, "longest": longest, "options": attrs.asdict(options)}
        )
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
        done, refused = 0, False
        for step in (*climb, *bursts):
            if refused and step.streams == 1:
                continue  # longer ones will be no different
            context.progress(str(step), done / whole)
            tried = await trial.step(step)
            done += step.tokens * step.streams
            if tried.killed:
                return tried
            context.row(_row(tried, {}, tried.reason, within=self._within(tried, told)))
            if step.streams == 1:
                refused = tried.status != "survived"
                self.longest_survived = self.longest_survived if refused else tried.tokens
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
        """Write the requests and the logs beside the result; what to say of them as evidence."""
        folder = self._context.folder
        names = [f"request{number}.json" for number in range(1, len(tried.bodies) + 1)]
        for name, body in zip(names, tried.bodies, strict=True):
            (folder / name).write_text(json.dumps(body, indent=1), encoding="utf-8")
        for rank, lines in self._context.subject.logs().items():
            (folder / f"rank{rank}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {"requests": names}


def _row(tried: Tried, kept: dict[str, Any], reason: str | None, within: bool = True, **evidence: Any) -> Row:
    """The row of a step. A polite refusal counts against the server only where the prompt fits its context."""
    figures: dict[str, float] = {"prompt_tokens": tried.tokens} if tried.tokens else {}
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
