"""What people see of an image on its way to nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lanes.amounts import duration, size

WINDOW_S = 10.0
"""A rate is what came in within this time."""


class Progress:
    """Says how far the node is that has most left to get. `left` are the bytes that each is to get (None: not
    known)."""

    def __init__(self, name: str, left: Mapping[str, int | None], tell: Callable[[str], None]) -> None:
        self._name, self._left, self._tell = name, left, tell
        self._samples: list[tuple[float, int]] = []

    def __call__(self, received: Mapping[str, int]) -> None:
        node = max(received, key=lambda one: (self._left[one] or 0) - received[one])
        now, done, total = time.monotonic(), received[node], self._left[node]
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[1][0] < now - WINDOW_S:
            del self._samples[0]
        first, before = self._samples[0]
        text = f"{self._name} to {node}"
        if len(received) > 1:
            text += f", the last of {len(received)}"
        text += f": {size(done)}" + (f" of {size(max(done, total))}" if total else "")
        if done > before:
            rate = (done - before) / (now - first)
            text += f" at {size(rate)}/s"
            if total and total > done:
                text += f", {duration((total - done) / rate)} left"
        self._tell(text)
