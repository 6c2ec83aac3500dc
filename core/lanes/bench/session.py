"""One server, asked by an instrument that notices when it dies: client, form, ruler and vigil together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from attrs import evolve

from lanes.bench import measures
from lanes.bench.client import Client
from lanes.bench.plan import Limits
from lanes.bench.recorder import TEXT_LIMIT
from lanes.bench.requests import Form
from lanes.bench.ruler import Ask, Ruler
from lanes.bench.stream import Stream
from lanes.bench.transport import ConnectError
from lanes.types import Endpoint

_POLL_S = 1.0
_KNOCKS = 4
_KNOCK_S = 0.3
_NOT_OF_THE_FORM = (401, 403, 404)
"""Refusals that no other form of the request would mend."""

T = TypeVar("T")


class Crashed(Exception):
    """The server is gone; the message is the reason."""


class Session:
    """Ask `endpoint`, within a running event loop.

    `alive` tells how the engine died, in a sentence, as soon as it has; None while it lives or where
    nobody knows. `notes` are what a reader of the figures should know of how was asked.

    Raises UsageError when the endpoint's URL or API key is wrong.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        seed: int,
        limits: Limits | None = None,
        alive: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.client = Client(endpoint, limits)
        self.form = Form(endpoint=endpoint, seed=seed)
        self.ruler = Ruler(self.client)
        self.notes: list[str] = []
        self._alive = alive

    async def ask(self, content: str) -> Stream:
        """Send one user message and ask for one token."""
        return await self.client.chat(self.form.body(content, 1))

    async def learn(self, seed: str, ask: Ask | None = None) -> Stream:
        """Learn the server's tokens and whether it takes our optional fields.

        `ask` puts a text where the prompts to be measured will have theirs; by default it is the whole
        message. Returns the last request, which may have failed.
        """
        ask = ask or self.ask
        stream = await self.ruler.learn(seed, ask)
        if stream.status is not None and 400 <= stream.status < 500 and stream.status not in _NOT_OF_THE_FORM:
            full, self.form = self.form, evolve(self.form, plain=True)
            again = await self.ruler.learn(seed, ask)
            if again.ok:
                dropped = ", ".join(full.optional)
                self.notes.append(f"sent without {dropped}, for the server refused: {stream.error}")
                stream = again
            else:
                self.form = full
        if self.ruler.note:
            self.notes.append(self.ruler.note)
        return stream

    async def burst(self, bodies: Sequence[dict[str, Any]], keep: int = TEXT_LIMIT) -> list[Stream]:
        """Open all connections, then send all requests at once; `keep` as in `Client.chat`."""
        opened = await asyncio.gather(*(self.client.open() for _ in bodies), return_exceptions=True)
        connections = [c for c in opened if not isinstance(c, BaseException)]
        try:
            failure = next((c for c in opened if isinstance(c, BaseException)), None)
            if isinstance(failure, ConnectError):
                return [Stream(t0_ns=time.time_ns(), failure="connect", error=str(failure)) for _ in bodies]
            if failure is not None:
                raise failure
            return list(
                await asyncio.gather(
                    *(self.client.chat(b, c, keep) for b, c in zip(bodies, connections, strict=True))
                )
            )
        finally:
            for connection in connections:
                connection.close()

    async def first_delta(self, stream: Stream) -> measures.FirstDelta | None:
        """Return k1 of `stream`, by the server's tokenizer where the stream does not tell it."""
        known = measures.first_delta(stream)
        if known is None or not known.approximate:
            return known
        return measures.first_delta(stream, await self.ruler.count_bare(stream.first_text))

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` while asking whether the engine lives. Raises Crashed when it does not."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=_POLL_S))[0]:
                if reason := self._alive():
                    raise Crashed(reason)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def survived(self, error: str) -> None:
        """Raise Crashed when the server is gone after a failure that said `error`.

        A process that dies closes its sockets a little before anybody can see it dead, and a busy
        server may refuse for a moment: knock several times.
        """
        refusal: str | None = None
        for _ in range(_KNOCKS):
            if reason := self._alive():
                raise Crashed(reason)
            refusal = await self.client.accepts()
            if refusal is None:
                return
            await asyncio.sleep(_KNOCK_S)
        if reason := self._alive():
            raise Crashed(reason)
        raise Crashed(error if refusal == error else f"{error}; then {refusal}")
