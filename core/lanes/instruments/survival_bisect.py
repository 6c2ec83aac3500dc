"""The smallest prompt that kills: lengths halved, with the lane launched anew after each death."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from attrs import evolve

from lanes.bench.session import Crashed
from lanes.errors import LaneError
from lanes.instruments.base import Context, Row
from lanes.instruments.survival_steps import Step, Trial, Tried

ROW = "smallest prompt that kills"


def narrow(
    context: Context,
    like: Trial,
    killed: Tried,
    survived: int,
    keep: Callable[[Tried], dict[str, Any]],
    tolerance: int,
) -> Tried:
    """Halve the lengths between `survived` and what killed, and return the smallest that kills, to
    `tolerance` tokens. `like` is the trial that found it; `keep` keeps what each killing prompt was.

    Each attempt updates one row, so that whatever was found is kept when the user interrupts. Ends early, with
    the reason in the row, where the lane cannot be launched again.
    """
    return _Bisection(context, like, killed, survived, keep, tolerance).run()


class _Bisection:
    def __init__(
        self,
        context: Context,
        like: Trial,
        killed: Tried,
        survived: int,
        keep: Callable[[Tried], dict[str, Any]],
        tolerance: int,
    ) -> None:
        self._context, self._like, self._keep = context, like, keep
        self._tolerance = tolerance
        self._smallest, self._survived = killed, survived
        self._alone = False
        """Whether the smallest one killed a server that had just been launched."""
        self._attempts: list[str] = []
        self._launches = 0
        self._spent_s = 0.0

    def run(self) -> Tried:
        if self._context.subject.relaunch is None:
            self._row("not bisected", "only `lanes run` can launch the lane again")
            return self._smallest
        self._row("bisecting")
        try:
            self._halve()
            if not self._alone:
                self._confirm()
        except LaneError as error:
            self._row("interrupted", error.message)
        return self._smallest

    def _halve(self) -> None:
        fresh = True
        while self._gap > self._tolerance:
            self._progress()
            began = time.monotonic()
            if fresh:
                self._relaunch()
            step = Step(tokens=(self._survived + self._smallest.tokens) // 2)
            tried = self._try(partial(Trial.step, step=step))
            self._spent_s += time.monotonic() - began
            if not self._survived < tried.tokens < self._smallest.tokens:
                break  # prompts are not cut more finely than that
            self._attempts.append(f"{tried.tokens:,}: {tried.status}")
            if tried.killed:
                self._found(tried, alone=fresh)
                fresh = True
            else:
                self._survived, fresh = tried.tokens, False
            self._row("bisecting")
        self._row("found")

    def _confirm(self) -> None:
        """Whether it kills alone, or only together with what was sent before it: the very request, as another
        of that length may be a token shorter where lengths are estimates."""
        tokens = self._smallest.tokens
        self._context.progress(f"{tokens:,} tokens again, on a fresh launch")
        self._relaunch()
        tried = self._try(partial(Trial.again, tried=self._smallest))
        self._attempts.append(f"{tried.tokens:,} on a fresh launch: {tried.status}")
        if tried.killed:
            self._alone = True
            self._row("found")
        else:
            self._row("found", "it kills only after others: a fresh launch survives it")

    def _found(self, tried: Tried, alone: bool) -> None:
        step = evolve(tried.step, tokens=tried.tokens)
        self._smallest, self._alone = evolve(tried, step=step), alone
        self._keep(self._smallest)

    def _relaunch(self) -> None:
        relaunch = self._context.subject.relaunch
        assert relaunch is not None
        self._context = evolve(self._context, endpoint=relaunch())
        self._launches += 1

    def _try(self, what: Callable[[Trial], Awaitable[Tried]]) -> Tried:
        like = self._like

        async def attempt() -> Tried:
            self._like = trial = self._like.anew(self._context)
            try:
                if reason := await trial.prepare(like):
                    raise LaneError(f"the lane that was launched anew does not answer: {reason}")
            except Crashed as crash:
                raise LaneError(f"the lane that was launched anew died before its prompt: {crash}") from None
            return await what(trial)

        with asyncio.Runner() as runner:
            return runner.run(attempt())

    @property
    def _gap(self) -> int:
        return self._smallest.tokens - self._survived

    def _progress(self) -> None:
        left = math.ceil(math.log2(max(self._gap / self._tolerance, 1)))
        done = len(self._attempts)
        text = f"it survives {self._survived:,} tokens, {self._smallest.tokens:,} kill; launching and trying between"
        share = done / (done + left) if done + left else None
        # The share of this search, not of the whole instrument.
        self._context.tell(text + (_left(self._spent_s, share) if share else f", {left} attempts left"))

    def _row(self, status: str, reason: str | None = None) -> None:
        smallest = self._smallest.tokens
        about = "" if self._like.session.ruler.tokenizes else ", by estimates: the server has no tokenizer"
        self._context.row(
            Row(
                name=ROW,
                status=status,
                fault=True,
                reason=reason or f"{smallest:,} tokens kill, {self._survived:,} do not{about}",
                figures={
                    "prompt_tokens": smallest,
                    "survived_tokens": self._survived,
                },
                evidence={
                    "attempts": list(self._attempts),
                    "launches": self._launches,
                    "alone": self._alone,
                },
            )
        )


def _left(spent_s: float, share: float) -> str:
    left_s = spent_s * (1 - share) / share
    return f", about {left_s:.0f} s left" if left_s < 90 else f", about {left_s / 60:.0f} min left"
