"""What is seen of the server while a pass runs: its own metrics, and its GPUs where they are ours to see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from lanes.bench.gpus import Gpus
from lanes.bench.scrape import Scraper
from lanes.types import Endpoint

if TYPE_CHECKING:
    from lanes.bench.cells import Pass

_OFF = 0.05
_SETTLE_S = 0.1
"""Servers count a request a little after its last token."""


@frozen(kw_only=True)
class Seen:
    """Figures of one pass as the server and its GPUs tell them, and what is to be said of them."""

    figures: Mapping[str, float] = field(factory=dict)
    notes: tuple[str, ...] = ()


NOTHING = Seen()


class Watch:
    """Looks at a server during each pass. Use it as a context manager: it may hold a process."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._scraper = Scraper(endpoint)
        self._gpus = Gpus(endpoint)
        self._began_ns = 0

    def __enter__(self) -> Watch:
        self._gpus.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._scraper.stop()
        self._gpus.stop()

    async def begin(self) -> None:
        """Look at the server just before a pass, and from then on at a low rate."""
        await asyncio.to_thread(self._scraper.begin)
        await asyncio.to_thread(self._gpus.begin)
        self._began_ns = time.time_ns()

    async def end(self, tokens: float) -> Seen:
        """Look at it just after the pass, which brought so many completion tokens."""
        ended_ns = time.time_ns()
        self._gpus.ask()
        if self._scraper.works:
            await asyncio.sleep(_SETTLE_S)
        figures = dict(await asyncio.to_thread(self._scraper.end))
        gpus, notes = await asyncio.to_thread(self._gpus.between, self._began_ns, ended_ns)
        energy_j = gpus.pop("gpu_energy_j", None)
        if energy_j is not None:
            gpus["gpu_energy_j"] = energy_j
            if tokens > 0:
                gpus["gpu_energy_j_per_token"] = energy_j / tokens
        return Seen(figures=figures | gpus, notes=notes)


def disagreements(passes: Sequence[Pass]) -> Iterator[str]:
    """Yield where what the server counted is more than 5% off what its streams told us."""
    pairs = (
        ("generated_tokens", "generated_tokens", "tokens made in a pass"),
        ("acceptance", "tokens_per_delta", "tokens a verify step"),
    )
    for theirs, ours, what in pairs:
        both = [
            (p.server_figures[theirs], p.figures[ours])
            for p in passes
            if p.server_figures.get(theirs, 0) > 0 and ours in p.figures
        ]
        if not both:
            continue
        said, told = sorted(both, key=lambda pair: pair[1] / pair[0])[len(both) // 2]
        if abs(told / said - 1) > _OFF:
            why = (
                "somebody else uses it, or its usage is wrong"
                if theirs == "generated_tokens"
                else "it does not send each step as a delta, or counts in another way"
            )
            yield f"the server counts {said:,.4g} {what}, its streams tell {told:,.4g} ({told / said - 1:+.0%}): {why}"
