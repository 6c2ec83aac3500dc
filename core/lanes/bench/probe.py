"""The probe: warm-ups, then measured passes of cold prompts, cell by cell."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from lanes.bench import context, timelines
from lanes.bench.calibration.envelope import envelope
from lanes.bench.cells import CellResult, Pass, Progress, cell_result, finished_pass
from lanes.bench.context import Context
from lanes.bench.loadpass import LoadPass
from lanes.bench.plan import Cell, Plan
from lanes.bench.prompts import Prompt, nonce, task
from lanes.bench.ruler import cut_to
from lanes.bench.session import Crashed, Session
from lanes.bench.stream import Stream
from lanes.bench.tally import Tally, load_pass, load_verdict
from lanes.bench.timelines import Batch
from lanes.bench.until import Until
from lanes.bench.validity import Terms, remarks, verdict
from lanes.bench.watch import Watch, disagreements
from lanes.types import Endpoint

_TOLD_S = 0.5
_FITTED_TOKENS = 2_000_000
_LEAST_FITTED, _MOST_FITTED = 8, 128
"""Prompts of a load that are fitted before each pass, as many as have so many tokens."""
_GIVE_UP = 3
"""A cell is given up after so many failed passes in a row: waiting for as many stalls tells nothing."""


def measure(
    endpoint: Endpoint,
    plan: Plan,
    *,
    on_pass: Callable[[Pass], None] = lambda _: None,
    on_batch: Callable[[Batch], None] = lambda _: None,
    on_cell: Callable[[CellResult], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    alive: Callable[[], str | None] = lambda: None,
) -> tuple[CellResult, ...]:
    """Measure each cell of `plan` at `endpoint` and return their results in the plan's order.

    `on_pass` gets each pass as it ends, warm-ups and failed ones too; `on_batch` its timelines before that, those of a
    closed or an open load about each second; `on_cell` each cell's result; `on_progress` each new phase.
    `alive` is asked about each second, and when a pass failed: a sentence means that the engine
    died, and ends the measurement at once. All five are called on this thread and must be quick.

    A failed request makes its pass failed and its cell `invalid`; other passes and cells go on. A
    cell that does not fit into the server's context is `skipped`. A server that died or no longer
    accepts connections makes the cell `crashed`, and those after it `skipped`. KeyboardInterrupt
    passes through, with all connections closed.

    Raises UsageError when the endpoint's URL or API key is wrong.
    """
    with asyncio.Runner() as runner:
        return runner.run(_Probe(endpoint, plan, on_pass, on_batch, on_cell, on_progress, alive).run())


class _Probe:
    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        on_pass: Callable[[Pass], None],
        on_batch: Callable[[Batch], None],
        on_cell: Callable[[CellResult], None],
        on_progress: Callable[[Progress], None],
        alive: Callable[[], str | None],
    ) -> None:
        self._plan = plan
        self._on_pass = on_pass
        self._on_batch = on_batch
        self._on_cell = on_cell
        self._on_progress = on_progress
        self._session = Session(endpoint, plan.seed, plan.limits, alive)
        self._ruler = self._session.ruler
        self._watch = Watch(endpoint)
        self._context = Context()
        self._envelope = envelope()
        self._answer_rate: float | None = None
        self._learned = False
        self._session.notes.append(
            f"the client is {self._envelope.name}"
            if self._envelope
            else "the client's error on this machine is not known: `lanes calibrate` finds it"
        )

    async def run(self) -> tuple[CellResult, ...]:
        with self._watch:
            return await self._grid()

    async def _grid(self) -> tuple[CellResult, ...]:
        results: list[CellResult] = []
        cells = self._plan.cells
        for index, cell in enumerate(cells, 1):
            passes: list[Pass] = []
            try:
                results.append(await self._cell(cell, index, passes))
                self._on_cell(results[-1])
            except Crashed as crash:
                results.append(self._result(cell, "crashed", str(crash), passes))
                reason = f"the server was gone since {cell}"
                results.extend(cell_result(later, "skipped", reason) for later in cells[index:])
                for result in results[index - 1 :]:
                    self._on_cell(result)
                break
        return tuple(results)

    async def _cell(self, cell: Cell, index: int, passes: list[Pass]) -> CellResult:
        plan = self._plan
        progress = Progress(
            cell=cell,
            index=index,
            cells=len(plan.cells),
            number=1,
            total=plan.warmups + plan.passes,
            phase="fitting the prompt length",
        )
        self._on_progress(progress)
        if not self._learned:
            seed = f"{plan.comparison}/{plan.block}/learn"
            stream = await self._session.watched(self._session.learn(seed))
            if stream.error:
                await self._session.survived(stream.error)
                return self._result(cell, "invalid", stream.error, passes)
            self._learned = True
            self._context = await asyncio.to_thread(context.ask, self._session.client.endpoint)
        if reason := self._context.lacks(cell):
            return self._result(cell, "skipped", reason, passes)
        until = Until(plan)
        progress = evolve(progress, total=plan.warmups + until.least)
        for number in itertools.count(1):
            progress = evolve(progress, number=number, total=max(number, progress.total))
            one = await self._session.watched(self._pass(progress))
            passes.append(one)
            if one.streams:
                self._on_batch(timelines.burst(one))
            self._on_pass(one)
            if one.error:
                if reason := self._context.lacks(cell):
                    return self._result(cell, "skipped", reason, passes)
                await self._session.survived(one.error)
                if len(passes) >= _GIVE_UP and all(p.error for p in passes[-_GIVE_UP:]):
                    break
            measured = [p for p in passes if not p.warmup]
            if measured and until.enough(measured):
                break
        return self._judged(cell, passes, until)

    def _judged(self, cell: Cell, passes: Sequence[Pass], until: Until) -> CellResult:
        measured = [p for p in passes if not p.warmup]
        # With `until` nobody knows before how many there will be.
        asked = self._plan.passes if self._plan.until is None else len(measured)
        if measured and cell.load != "burst":
            reason = load_verdict(measured, asked)
        else:
            # A cell that was given up in its warm-ups has its reason there.
            reason = verdict(evolve(self._terms(cell), passes=asked), measured or passes)
        if reason is None and self._envelope is not None and cell.load == "burst":
            beyond = (self._envelope.beyond(p.streams) for p in measured)
            reason = next((why for why in beyond if why), None)
        return self._result(cell, "invalid" if reason else "ok", reason, passes, until.note)

    def _terms(self, cell: Cell) -> Terms:
        return Terms(
            cell=cell,
            passes=self._plan.passes,
            fixed_length=self._session.form.fixes_length,
            template_tokens=self._ruler.template_tokens,
            counted=self._ruler.tokenizes,
            answer_rate=self._answer_rate,
        )

    def _result(
        self, cell: Cell, status: Any, reason: str | None, passes: Sequence[Pass], *notes: str | None
    ) -> CellResult:
        measured = [p for p in passes if not p.warmup]
        said = [
            *self._session.notes,
            *(note for note in notes if note),
            *remarks(self._terms(cell), measured),
        ]
        # What a load has to say of itself is told of its last pass.
        said += [*disagreements(measured), *(measured[-1].notes if measured else ())]
        return cell_result(cell, status, reason, passes, said)

    async def _pass(self, progress: Progress) -> Pass:
        """Make one pass. The warm-ups of a load are bursts: as many requests as it has streams."""
        plan = self._plan
        warmup = progress.number <= plan.warmups
        number = progress.number if warmup else progress.number - plan.warmups
        kind, total = ("warm-up", plan.warmups) if warmup else ("pass", progress.total - plan.warmups)
        named = evolve(progress, phase=f"{kind} {number} of {total}")
        if progress.cell.load == "burst" or warmup:
            return await self._burst_pass(named, number, warmup)
        return await self._load_pass(named, number)

    async def _burst_pass(self, progress: Progress, number: int, warmup: bool) -> Pass:
        """Prompts are fitted and prefixes warmed first, connections opened, then all is sent."""
        cell = progress.cell
        self._on_progress(evolve(progress, phase="fitting the prompt length"))
        prefixes: list[Stream] = []
        contents: list[str] = []
        for stream in range(max(cell.concurrency, 1)):
            content = await self._content(cell, progress.number - 1, stream, prefixes)
            contents.append(content)
            if prefixes and not prefixes[-1].ok:
                self._context.refused(cell, prefixes[-1])
                return finished_pass(cell, number, warmup, (), (), prefixes)
        self._on_progress(progress)
        await self._watch.begin()
        cpu_s = time.process_time()
        streams = await self._session.burst(
            [self._session.form.body(content, cell.tg) for content in contents]
        )
        cpu_s = time.process_time() - cpu_s
        seen = await self._watch.end(sum(s.completion_tokens or 0 for s in streams))
        for content, one in zip(contents, streams, strict=True):
            self._ruler.observe(content, one)
            self._context.refused(cell, one)
        k1s = [await self._session.first_delta(one) for one in streams]
        if streams[0].ok and (answer := streams[0].text):
            tokens = await self._ruler.count_bare(answer)
            # The densest answer seen: digits and names of nobody are a token a character.
            self._answer_rate = (
                max(self._answer_rate or 0.0, tokens / len(answer)) if tokens else self._answer_rate
            )
        return finished_pass(cell, number, warmup, streams, k1s, prefixes, cpu_s, self._plan.slo, seen)

    async def _load_pass(self, progress: Progress, number: int) -> Pass:
        """Prefixes are warmed first, and prompts fitted; then nothing is asked but what is measured."""
        cell, index = progress.cell, progress.number - 1
        self._on_progress(evolve(progress, phase="fitting the prompt length"))
        # One prefix a stream; a load at a rate shares one.
        prefixes: list[Stream] = []
        warm = [""] * max(cell.concurrency, 1)
        for stream in range(len(warm) if cell.warm_tokens else 0):
            warm[stream] = await self._prefix(cell, stream, prefixes)
            if not prefixes[-1].ok:
                self._context.refused(cell, prefixes[-1])
                return finished_pass(cell, number, False, (), (), prefixes)
        fitted = await self._chars(cell, index)
        mean = statistics.mean(fitted)

        def body(request: int) -> dict[str, Any]:
            prompt = Prompt(nonce(self._plan, cell, index, request), task(cell.tg))
            own = cut_to(prompt, fitted[request] if request < len(fitted) else mean)
            return self._session.form.body(warm[request % len(warm)] + own, cell.tg)

        told_at = 0.0

        def on_count(count: int) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= _TOLD_S:
                told_at = time.monotonic()
                phase = f"{progress.phase}: {count:,} of {cell.requests or 0:,} requests"
                self._on_progress(evolve(progress, phase=phase))

        on_count(0)
        tally = Tally(self._terms(cell), self._plan.slo)
        load = LoadPass(self._session.client, cell, tally, body, number, self._on_batch, on_count)
        await self._watch.begin()
        cpu_s = time.process_time()
        await load.run(nonce(self._plan, cell, index, -1))
        cpu_s = time.process_time() - cpu_s
        seen = await self._watch.end(tally.generated_tokens)
        if tally.failed is not None:
            self._context.refused(cell, tally.failed)
        one = load_pass(tally, self._terms(cell), number, prefixes, cpu_s, seen)
        if one.fault is None and self._envelope is not None:
            one = evolve(one, fault=self._envelope.exceeded(tally.most_at_once, tally.events_per_s))
        return one

    async def _content(self, cell: Cell, number: int, stream: int, prefixes: list[Stream]) -> str:
        """Return the message of one stream; its prefix, if it has one, is warmed first (into `prefixes`)."""
        prefix = await self._prefix(cell, stream, prefixes) if cell.warm_tokens else ""
        return prefix + await self._own_part(cell, number, stream)

    async def _prefix(self, cell: Cell, stream: int, prefixes: list[Stream]) -> str:
        # It is the same in each pass, so only the first one has to compute it.
        prefix = await self._ruler.fit(Prompt(nonce(self._plan, cell, None, stream)), cell.warm_tokens)
        warm = await self._session.ask(prefix)
        prefixes.append(warm)
        self._ruler.observe(prefix, warm)
        return prefix

    async def _own_part(self, cell: Cell, number: int, stream: int) -> str:
        """Return the cold part of a message: all of it, or what follows the prefix."""
        prompt = Prompt(nonce(self._plan, cell, number, stream), task(cell.tg))
        cold = cell.prompt_tokens - cell.warm_tokens
        return await self._ruler.fit(prompt, cold, template=not cell.warm_tokens)

    async def _chars(self, cell: Cell, index: int) -> list[int]:
        """Return how many characters the cold part of the first messages of a load's pass has, when they
        are fitted; those after them get the mean. Their length scatters by some tokens, whatever it is,
        so that short prompts are in need of it."""
        fitted = max(min(_FITTED_TOKENS // (cell.prompt_tokens or 1), _MOST_FITTED), _LEAST_FITTED)
        numbers = range(min(fitted, cell.requests or 0))
        return [len(await self._own_part(cell, index, number)) for number in numbers]
