"""Carry out a recipe's copies on every node of its lane at once, and say how far they are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from lanes.amounts import duration, size
from lanes.staging.crew import Station, work
from lanes.types import Copy, Recipe

Tell = Callable[[str], None]

WINDOW_S = 10.0
"""A rate is what was copied within this time."""
COLLAPSE = 6.0
"""A rate that is this many times less than usual has collapsed."""


@frozen(kw_only=True)
class Copied:
    """What became of a copy on a node. `copied` bytes were read from the source, `kept` were there from a
    run that was killed, `there` is the number of files that needed nothing."""

    node: str
    name: str
    files: int
    there: int
    copied: int
    kept: int
    copy_s: float
    verify_s: float


def carry_out(
    copies: Sequence[Copy],
    stations: Sequence[Station],
    recipe: Recipe | None,
    tell: Tell = lambda _: None,
    warn: Tell = lambda _: None,
) -> list[Copied]:
    """Copy everything, on all nodes at once; room is looked for everywhere before anything is copied.

    `tell` hears progress, `warn` what a person should know of though it is no failure. With a recipe
    whose processes run in containers, links that lead nowhere there are found. Raises StagingError.
    """
    job = {"do": "copies", "copies": [asdict(copy) for copy in copies], **_links(copies, recipe)}
    watch = _Watch(tell, warn, several=len(stations) > 1)
    work(stations, lambda _: job, watch)
    return watch.copied


def _links(copies: Sequence[Copy], recipe: Recipe | None) -> dict[str, Any]:
    """Where links are to be followed as the containers see them: in what is copied, and the model."""
    if recipe is None or recipe.image is None:
        return {"mounts": [], "roots": [], "under": []}
    folder = f"models--{recipe.model.repo.replace('/', '--')}" if recipe.model.repo else None
    return {
        "mounts": [[mount.source, mount.target] for mount in recipe.mounts],
        "roots": [*(copy.target for copy in copies), *([recipe.model.path] if recipe.model.path else [])],
        "under": [folder, f"hub/{folder}"] if folder else [],
    }


class Rate:
    """How fast one node copies, and how fast it usually does. Times are in seconds of any one clock."""

    def __init__(self, window_s: float | None = None) -> None:
        self.window_s = window_s or WINDOW_S
        self._samples: list[tuple[float, int]] = []
        self._past: list[float] = []
        self._last = 0.0
        self.collapsed = False

    def at(self, now: float, copied: int) -> None:
        """So much was copied by now."""
        if self._samples and copied < self._samples[-1][1]:
            self._samples.clear()  # another copy has begun
        self._samples.append((now, copied))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self.window_s:
            del self._samples[0]

    def pause(self) -> None:
        """What comes next is no copying, and says nothing of the rate."""
        self._samples.clear()

    @property
    def now(self) -> float | None:
        """Bytes a second, lately; None where too little is known."""
        if len(self._samples) < 2:
            return None
        (first, before), (last, copied) = self._samples[0], self._samples[-1]
        return (copied - before) / (last - first) if last > first else None

    @property
    def usual(self) -> float | None:
        # Of the two in the middle the higher: in a window in which the rate fell, it was not the usual one.
        return statistics.median_high(self._past) if self._past else None

    def judge(self) -> str | None:
        """What to say when the rate has just collapsed, or has come back."""
        rate = self.now
        if rate is None or self._samples[-1][0] - self._samples[0][0] < self.window_s:
            return None
        usual = self.usual
        low = usual is not None and rate * COLLAPSE <= usual
        if not low and self._samples[-1][0] - self._last >= self.window_s:
            self._last = self._samples[-1][0]
            self._past.append(rate)
        if usual is None or low == self.collapsed or (self.collapsed and rate * COLLAPSE / 2 < usual):
            return None
        self.collapsed = low
        if not low:
            return f"{size(rate)}/s again"
        return (
            f"the rate has collapsed from {size(usual)}/s to {size(rate)}/s: "
            "the source's storage is overloaded, or its network is"
        )


class _Watch:
    def __init__(self, tell: Tell, warn: Tell, several: bool) -> None:
        self.copied: list[Copied] = []
        self._tell, self._warn, self._several = tell, warn, several
        self._last: dict[str, Mapping[str, Any]] = {}
        self._rates: dict[str, Rate] = {}

    def heard(self, node: str, event: Mapping[str, Any]) -> None:
        if event["event"] == "progress":
            self._last[node] = event
        elif event["event"] == "waiting":
            self._tell(f"{node} waits: another lane is copying into {event['folder']}")
        elif event["event"] == "copied":
            about = {key: value for key, value in event.items() if key != "event"}
            self.copied.append(Copied(node=node, **about))
            self._last.pop(node, None)

    def tick(self) -> None:
        now = time.monotonic()
        for node, event in self._last.items():
            rate = self._rates.setdefault(node, Rate())
            if event["doing"] != "copying":
                rate.pause()
                continue
            # Without news of it nothing was copied, as far as one can tell.
            rate.at(now, event["copied"])
            if said := rate.judge():
                self._warn(f"{event['name']} on {node}: {said}")
        if self._last:
            self._tell(self._line())

    def _line(self) -> str:
        """How far the node is that has most left to do."""
        node = max(self._last, key=lambda one: self._last[one]["total"] - self._last[one]["done"])
        event = self._last[node]
        where = f" on {node}, the last of {len(self._last)}" if self._several else ""
        text = f"{event['name']}{where}: {size(event['done'])} of {size(max(event['total'], event['done']))}"
        rate = self._rates[node].now
        if event["doing"] != "copying":
            return f"{text}, {event['doing']}"
        if rate:
            text += f" at {size(rate)}/s, {duration((event['total'] - event['done']) / rate)} left"
        return text
