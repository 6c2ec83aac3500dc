"""One pass of a closed or an open load: prompts made just ahead, requests sent, each counted as it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lanes.bench import loads, measures, timelines
from lanes.bench.client import Client
from lanes.bench.loads import Sent
from lanes.bench.plan import Cell
from lanes.bench.poll import hurry
from lanes.bench.stream import Stream
from lanes.bench.tally import Tally
from lanes.bench.timelines import Batch
from lanes.bench.transport import ConnectError

T = TypeVar("T")
X = TypeVar("X")

_AHEAD = 16
"""Prompts that are made before they are needed."""
_WRITE_S = 1.0
_A_BATCH = 64
"""Timelines that are packed together, at most: large pieces of memory that come and go leave holes."""
_GIVE_UP = 10
"""So many failures in a row, and in every stream, end a pass: more of them tell nothing."""


class LoadPass:
    """`body` makes the request of a number, on a thread of its own; `on_batch` gets the timelines about
    each second, `on_count` how many requests have ended."""

    def __init__(
        self,
        client: Client,
        cell: Cell,
        tally: Tally,
        body: Callable[[int], Mapping[str, Any]],
        number: int,
        on_batch: Callable[[Batch], None],
        on_count: Callable[[int], None],
    ) -> None:
        self._client = client
        self._cell = cell
        self._tally = tally
        self._body = body
        self._number = number
        self._on_batch = on_batch
        self._on_count = on_count
        self._lines: list[bytes] = []
        # One thread, and not one of a pool: each has its own arena of memory, which never shrinks.
        self._thread = ThreadPoolExecutor(1, "lanes-load")
        # Which prompt goes with which number does not matter: all are cold, and of the same length.
        self._bodies: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(max(_AHEAD, cell.concurrency))

    async def run(self, seed: str) -> None:
        """Send the load; `seed` makes an open one's schedule."""
        requests, rate = self._cell.requests or 0, self._cell.rate
        try:
            async with asyncio.TaskGroup() as group:
                sides = [group.create_task(self._make(requests)), group.create_task(self._write())]
                while self._bodies.qsize() < min(self._bodies.maxsize, requests):
                    await asyncio.sleep(0.001)
                if rate is None:
                    await loads.closed(self._cell.concurrency, requests, self._send_now)
                else:
                    with hurry():
                        await loads.opened(seed, rate, requests, self._send_when_due)
                for side in sides:
                    side.cancel()
            await self._flush()
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _make(self, requests: int) -> None:
        for number in range(requests):
            await self._bodies.put(await self._aside(self._body, number))

    async def _aside(self, work: Callable[[X], T], what: X) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, what)

    async def _send_now(self, number: int) -> bool:
        return self._ended(Sent(number=number, stream=await self._chat()))

    async def _send_when_due(self, number: int, due_ns: int) -> bool:
        stream = await self._chat(due_ns)
        return self._ended(Sent(number=number, due_ns=due_ns, stream=stream))

    async def _chat(self, due_ns: int = 0) -> Stream:
        """Send one request on a connection that was opened for it, when it is due (CLOCK_REALTIME, ns)."""
        body = await self._bodies.get()
        try:
            connection = await self._client.open()
        except ConnectError as error:
            await loads.until(due_ns)
            return Stream(t0_ns=time.time_ns(), failure="connect", error=str(error))
        try:
            await loads.until(due_ns)
            return await self._client.chat(body, connection)
        finally:
            connection.close()

    def _ended(self, sent: Sent) -> bool:
        """Count a request that has ended; return whether to go on."""
        # Asking the tokenizer for k1 now would take from the load: it is told by the stream, or an average.
        first = measures.first_delta(sent.stream)
        sent = Sent(number=sent.number, due_ns=sent.due_ns, stream=sent.stream, first_delta=first)
        self._tally.add(sent)
        self._lines.append(timelines.line(sent))
        self._on_count(len(self._tally))
        return self._tally.failures_in_a_row < max(_GIVE_UP, self._cell.concurrency)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_S)
            await self._flush()

    async def _flush(self) -> None:
        while self._lines:
            lines = self._lines[:_A_BATCH]
            packed = await self._aside(timelines.pack, lines)
            # Not before: when this is cancelled at the end of the load, the last flush takes them again.
            del self._lines[: len(lines)]
            self._on_batch(Batch(cell=self._cell, number=self._number, count=len(lines), packed=packed))


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The first of the errors themselves."""
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
