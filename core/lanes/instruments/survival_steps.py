"""One step of a climb: prompts sent at once, then a small question that a living server answers."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from attrs import evolve, frozen

from lanes.bench.plan import Limits
from lanes.bench.prompts import Prompt
from lanes.bench.session import Crashed, Session
from lanes.bench.stream import Stream
from lanes.instruments.base import Context
from lanes.instruments.survival_shape import SHAPES, Shape

_QUESTION = "What is the capital of France? Answer with one word."
_QUESTION_TOKENS = 8
_QUESTIONS = 2
"""How often the small question is asked before the server counts as hanging."""


@frozen(kw_only=True)
class Step:
    """So many prompts of so many tokens at once; or, by the name of its `shape`, a first short prompt."""

    tokens: int
    streams: int = 1
    shape: str | None = None

    def __str__(self) -> str:
        if self.shape:
            return f"a short prompt: {self.shape}"
        if self.streams > 1:
            return f"{self.streams} prompts of {self.tokens:,} tokens at once"
        return f"{self.tokens:,} tokens"

    @property
    def where(self) -> str:
        """Where it happens, as in "crashes at 9,216 tokens"."""
        return f"with {self}" if self.streams > 1 or self.shape else f"at {self}"


@frozen(kw_only=True)
class Tried:
    """What became of one step: `status` is `survived`, `refused` (a 4xx), `failed` (any other failure, and
    the server goes on serving), `crashed` or `hung` (it does not answer a small question any more).
    `bodies` are the requests; `tokens` is the length of the first as far as it is known."""

    step: Step
    status: str
    tokens: int
    reason: str | None = None
    streams: tuple[Stream, ...] = ()
    question_s: float | None = None
    bodies: tuple[dict[str, Any], ...] = ()

    @property
    def killed(self) -> bool:
        return self.status in ("crashed", "hung")


_LETTERS = str.maketrans("0123456789", "ghijklmnop")
"""A nonce of letters alone takes about as many tokens as any other; where digits cut it up, one more than another
takes many, and a prompt that was meant to fit would not."""


class Trial:
    """Puts steps to a server, within a running event loop; answers have `answer` tokens, and the small
    question has `patience_s` to be answered.

    `number` tells its prompts from those of other trials, which the server may still have in its cache.
    """

    def __init__(self, context: Context, answer: int, patience_s: float, number: int = 0) -> None:
        limits = context.plan.limits
        self.session = Session(context.endpoint, context.plan.seed, limits, context.alive)
        self._brief = Session(
            context.endpoint,
            context.plan.seed,
            Limits(connect_s=limits.connect_s, first_byte_s=patience_s, stall_s=patience_s),
            context.alive,
        )
        self.shape: Shape = SHAPES[0]
        self.refused: list[tuple[Shape, Stream]] = []
        self.asked: tuple[dict[str, Any], ...] = ()
        """The last request by which it learned."""
        self._answer, self._patience_s, self._number = answer, patience_s, number
        self._seed = f"{context.plan.comparison}/{context.plan.block}/survival/{number}"
        self._prompts = 0

    async def prepare(self, like: Trial | None = None) -> str | None:
        """Find a shape that the server takes, the agent's if it does, and learn its tokens; `like` another
        trial of the same lane, take its shape and what it learned. Returns why no prompt is answered, in
        a sentence, or None. Raises `Crashed`."""
        if like is not None:
            self.session.ruler.follow(like.session.ruler)
        said = None
        for one in (like.shape,) if like else SHAPES:
            self.shape = one
            stream = await self.session.watched(self.session.learn(self._nonce(one.name), self._ask_shaped))
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
        self.asked = (self._body(text, 1),)
        return await self.session.client.chat(self.asked[0])

    def _body(self, text: str, tokens: int) -> dict[str, Any]:
        return self.session.form.body("", tokens) | dict(self.shape.fields(text))

    def anew(self, context: Context) -> Trial:
        """A trial alike, with other prompts, of the lane where it serves now."""
        return Trial(context, self._answer, self._patience_s, self._number + 1)

    def _nonce(self, name: object) -> str:
        return hashlib.sha256(f"{self._seed}/{name}".encode()).hexdigest()[:16].translate(_LETTERS)

    async def _prompt(self, tokens: int) -> tuple[str, int]:
        """A text that no cache knows, and its tokens as nearly as they can be met."""
        self._prompts += 1
        ruler = self.session.ruler
        text = await ruler.fit(Prompt(self._nonce(self._prompts)), tokens)
        if ruler.tokenizes:
            tokens = round(await ruler.count(text) + ruler.template_tokens)
        return text, tokens

    async def step(self, step: Step) -> Tried:
        """Send the step's prompts, then the small question. Never raises `Crashed`: that is a result."""
        tried = Tried(step=step, status="crashed", tokens=step.tokens)
        try:
            made = [await self.session.watched(self._prompt(step.tokens)) for _ in range(step.streams)]
        except Crashed as crash:
            return evolve(tried, reason=str(crash))
        bodies = tuple(self._body(text, self._answer) for text, _ in made)
        sent = await self._send(evolve(tried, bodies=bodies, tokens=made[0][1]))
        for (text, _), stream in zip(made, sent.streams, strict=False):  # no streams where it crashed
            self.session.ruler.observe(text, stream)
        return sent

    async def again(self, tried: Tried) -> Tried:
        """Send the very requests of `tried`, then the small question. Never raises `Crashed`."""
        if not tried.bodies:  # it died while their tokens were counted
            return await self.step(tried.step)
        return await self._send(
            Tried(step=tried.step, status="crashed", tokens=tried.tokens, bodies=tried.bodies)
        )

    async def _send(self, tried: Tried) -> Tried:
        try:
            streams = await self.session.watched(self.session.burst(list(tried.bodies)))
            tried = evolve(tried, streams=tuple(streams), status="survived")
            failed = next((one for one in streams if one.error), None)
            if failed is not None:
                await self.session.survived(str(failed.error))
                polite = failed.status is not None and 400 <= failed.status < 500
                tried = evolve(tried, status="refused" if polite else "failed", reason=failed.error)
            elif tried.step.streams == 1:
                # The server's own count is the best there is.
                tried = evolve(tried, tokens=streams[0].prompt_tokens or tried.tokens)
            return await self._question(tried)
        except Crashed as crash:
            return evolve(tried, status="crashed", reason=str(crash))

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
