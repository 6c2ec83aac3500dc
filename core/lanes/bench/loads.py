"""How requests come when they are not one burst: streams kept busy, or a schedule that waits for nobody."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator

from attrs import frozen

from lanes.bench.measures import FirstDelta
from lanes.bench.stream import Stream

LEAD_S = 0.25
"""A connection is opened so long before its request is due."""
_MOST = 1000
"""Requests under way at once, at most; those after them wait here, and their wait is in their figures."""
_SPARE_FILES = 64


@frozen(kw_only=True)
class Sent:
    """One request of a load: its `number` in the order of sending, from 0; when it was due, on the
    clock of the stream's t0 (None in a closed load, where it is due when it is sent); and what came."""

    number: int
    due_ns: int | None = None
    stream: Stream
    first_delta: FirstDelta | None = None

    @property
    def delay_s(self) -> float:
        """t0 - due: how much later than its schedule the request was sent"""
        return (self.stream.t0_ns - self.due_ns) / 1e9 if self.due_ns is not None else 0.0

    @property
    def ended_ns(self) -> int:
        """When its last token came; of a stream without any, when its last event came."""
        tokens = self.stream.token_arrivals or self.stream.arrivals
        return self.stream.t0_ns + (tokens.at_ns[-1] if tokens else 0)


def gaps(seed: str, rate: float) -> Iterator[float]:
    """Yield the seconds between arrivals of a Poisson process of `rate` a second, the same for the same
    seed: -ln(1 - u) / rate, u uniform in [0, 1)."""
    chance = random.Random(seed)
    while True:
        yield chance.expovariate(rate)


async def closed(streams: int, requests: int, send: Callable[[int], Awaitable[bool]]) -> None:
    """Keep `streams` requests under way until `requests` were sent.

    `send` makes the request of a number and returns whether to go on.
    """
    numbers = iter(range(requests))
    going = True

    async def one_stream() -> None:
        nonlocal going
        for number in numbers:
            if not going:
                return
            going = await send(number) and going

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(one_stream())


async def opened(seed: str, rate: float, requests: int, send: Callable[[int, int], Awaitable[bool]]) -> None:
    """Send `requests` by the schedule of `seed`, whether answers come or not.

    `send` gets the number of a request and when it is due (CLOCK_REALTIME, ns), `LEAD_S` before that
    time, and returns whether to go on.
    """
    going = True
    places = asyncio.Semaphore(most_at_once())

    async def one(number: int, due_ns: int) -> None:
        nonlocal going
        try:
            going = await send(number, due_ns) and going
        finally:
            places.release()

    due_ns = time.time_ns() + int(2 * LEAD_S * 1e9)
    async with asyncio.TaskGroup() as group:
        for number, gap in zip(range(requests), itertools.chain([0.0], gaps(seed, rate)), strict=False):
            due_ns += int(gap * 1e9)
            await until(due_ns - int(LEAD_S * 1e9))
            await places.acquire()
            if not going:
                return
            group.create_task(one(number, due_ns))


async def until(due_ns: int) -> None:
    """Sleep until CLOCK_REALTIME is `due_ns`."""
    while (left := (due_ns - time.time_ns()) / 1e9) > 0:
        await asyncio.sleep(left)


def most_at_once() -> int:
    """How many requests may be under way: as many as this process may have files, up to 1,000."""
    try:
        import resource
    except ImportError:  # not on this system
        return _MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(soft - _SPARE_FILES, 1)
    return _MOST
