"""The client against the metronome: its error, its cost, and how much it sustains."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen

from lanes.bench import measures
from lanes.bench.calibration.envelope import CellError, Envelope, events_per_s, made
from lanes.bench.calibration.habits import combination
from lanes.bench.calibration.metronome import Metronome, Sent
from lanes.bench.client import Client
from lanes.bench.requests import Form
from lanes.bench.stream import Stream
from lanes.bench.transport import ConnectError, Connection
from lanes.errors import LaneError
from lanes.types import Endpoint

TTFT_GOAL_S, TTFT_GOAL = 0.001, 0.005
"""The median error of TTFT: at most so many seconds, and such a part of it."""
DECODE_GOAL = 0.005
P99_GOAL_S, P99_FROM = 0.010, 64
"""The 99th percentile of TTFT's error, from so many streams on."""
CONCURRENCY = (1, 16, 64, 256)
_FEW = 8
"""With fewer streams than that a burst tells little, and there are more and shorter ones."""
_GAPS_S = (0.02, 0.01, 0.007, 0.005, 0.0035, 0.0025)
"""Of the steps by which the load grows until something gives."""
_STEP_S = 1.5
_KEPT_PACE = 0.8
"""Of the events that were due, the part that a metronome brings which holds its schedule."""


@frozen(kw_only=True)
class Load:
    """What to stream: `tokens` of each stream with `gap_s` between deltas, in `passes` bursts."""

    tokens: int = 96
    ttft_s: float = 0.2
    gap_s: float = 0.01
    passes: int = 3
    plain: bool = False
    """Without the habits that leave timing unchanged."""


def calibrate(
    concurrency: Sequence[int] = CONCURRENCY,
    *,
    on_cell: Callable[[CellError], None] = lambda _: None,
    on_step: Callable[[float], None] = lambda _: None,
) -> Envelope:
    """Hold the client against the metronome on this machine.

    `on_cell` gets each cell as it ends; `on_step` the events a second of each step of the growing load.
    Raises LaneError when the metronome does not start, or connections cannot be opened.
    """
    with Metronome() as metronome, asyncio.Runner() as runner:
        bench = Bench(metronome)
        cells = []
        for c in concurrency:
            load = Load() if c >= _FEW else Load(tokens=64, ttft_s=0.1, gap_s=0.005, passes=12)
            cells.append(runner.run(bench.cell(c, load)))
            on_cell(cells[-1])
        rate, limited_by = runner.run(bench.sustained(max(concurrency), on_step))
    return made(cells, rate, limited_by)


class Bench:
    """The client, a metronome, and what each says of the same streams."""

    def __init__(self, metronome: Metronome) -> None:
        self._metronome = metronome
        self._endpoint = Endpoint(url=metronome.url, model="metronome")
        self._form = Form(endpoint=self._endpoint, seed=1)
        self._number = 0

    async def cell(self, concurrency: int, load: Load) -> CellError:
        """Measure one cell, each stream with other habits."""
        client = Client(self._endpoint)
        streams: list[Stream] = []
        truth: dict[Any, Sent] = {}
        cpu_s = 0.0
        await self._burst(client, 1, Load(tokens=4, ttft_s=0.0))  # whatever is done once only
        first = self._number
        for _ in range(load.passes):
            before = time.process_time()
            streams += await self._burst(client, concurrency, load)
            cpu_s += time.process_time() - before
        truth = {sent.id: sent for sent in await asyncio.to_thread(self._metronome.truth)}
        pairs = [(stream, truth.get(first + n)) for n, stream in enumerate(streams)]
        return _cell_error(concurrency, pairs, cpu_s)

    async def sustained(self, concurrency: int, on_step: Callable[[float], None]) -> tuple[float, str]:
        """Return the most events a second at which the goals are met, and who gave up after that."""
        best = 0.0
        for gap_s in _GAPS_S:
            tokens = max(16, round(_STEP_S / gap_s))
            cell = await self.cell(concurrency, Load(tokens=tokens, gap_s=gap_s, passes=1, plain=True))
            if cell.events_per_s < _KEPT_PACE * concurrency / gap_s:
                return max(best, 0.0 if cell.missed else cell.events_per_s), "metronome"
            if cell.missed:
                return best, "client"
            best = max(best, cell.events_per_s)
            on_step(cell.events_per_s)
        return best, "metronome"

    async def _burst(self, client: Client, concurrency: int, load: Load) -> list[Stream]:
        """Open all connections, then send all requests at once."""
        connections: list[Connection] = []
        try:
            for _ in range(concurrency):
                connections.append(await client.open())
        except ConnectError as error:
            for connection in connections:
                connection.close()
            raise LaneError(f"{concurrency} connections could not be opened: {error}") from None
        bodies = []
        for _ in connections:
            script = {} if load.plain else combination(self._number)
            script |= {"ttft_s": load.ttft_s, "gap_s": load.gap_s}
            body = self._form.body("Go on counting, one beat after the other.", load.tokens)
            bodies.append(body | {"script": script, "id": self._number})
            self._number += 1
        chats = (client.chat(body, c) for body, c in zip(bodies, connections, strict=True))
        return list(await asyncio.gather(*chats))


def _cell_error(concurrency: int, pairs: Sequence[tuple[Stream, Sent | None]], cpu_s: float) -> CellError:
    ttft: list[float] = []
    decode: list[float] = []
    truths: list[float] = []
    late: list[int] = []
    failure = None
    for stream, sent in pairs:
        if not stream.ok or sent is None or not sent.at_ns or not stream.token_arrivals:
            failure = failure or stream.error or "a stream is missing in the metronome's account"
            continue
        truths.append((sent.at_ns[0] - stream.t0_ns) / 1e9)
        ttft.append(sent.ttft_error_s(stream.t0_ns + stream.token_arrivals.at_ns[0]))
        late += sent.late_ns
        # k1 as the server knows it: how to learn it from a server is not the client's timing.
        rate = measures.decode_tps(stream, measures.first_delta(stream, sent.tokens[0]))
        if rate is not None and sent.decode_tps:
            decode.append(abs(rate / sent.decode_tps - 1))
    streams = [stream for stream, _ in pairs]
    events = sum(len(s.arrivals) for s in streams)
    nothing = math.inf
    error = CellError(
        concurrency=concurrency,
        streams=len(pairs),
        ttft_s=statistics.median(ttft) if ttft else nothing,
        ttft_p99_s=percentile(ttft, 0.99) if ttft else nothing,
        decode=statistics.median(decode) if decode else nothing,
        late_s=percentile(late, 0.99) / 1e9 if late else 0.0,
        events_per_s=events_per_s(streams),
        cpu_us=cpu_s / events * 1e6 if events else 0.0,
    )
    return _judged(error, statistics.median(truths) if truths else 0.0, failure)


def _judged(error: CellError, truth_s: float, failure: str | None) -> CellError:
    """Return `error` with the first goal that it missed."""
    goal_s = TTFT_GOAL_S + TTFT_GOAL * truth_s
    missed = None
    if failure:
        missed = f"a stream failed: {failure}"
    elif error.ttft_s > goal_s:
        missed = f"TTFT was {error.ttft_s * 1e3:.2f} ms off, more than {goal_s * 1e3:.2f} ms"
    elif error.decode > DECODE_GOAL:
        missed = f"decode was {error.decode:.2%} off, more than {DECODE_GOAL:.1%}"
    elif error.concurrency >= P99_FROM and error.ttft_p99_s > P99_GOAL_S:
        missed = f"one TTFT in a hundred was {error.ttft_p99_s * 1e3:.1f} ms off, more than {P99_GOAL_S * 1e3:g} ms"
    return evolve(error, missed=missed)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least `part` of the values do not exceed."""
    return sorted(values)[max(math.ceil(part * len(values)), 1) - 1]
