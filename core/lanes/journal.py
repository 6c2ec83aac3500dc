"""One run's journal: what happened is written to the store, and told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanes.owners import Owner
from lanes.results.store import Store

Listener = Callable[[str, dict[str, Any]], None]
"""Hears every event: its kind and its data (kinds as in `results/document.py`, and `progress`)."""


class Journal:
    def __init__(self, store: Store, listener: Listener, **about: Any) -> None:
        self.store = store
        self.run = store.begin(Owner.me(), **about)
        self._listener = listener
        self._lanes = 0

    def record(self, kind: str, **data: Any) -> None:
        """Write an event, then tell it."""
        self.store.append(self.run, kind, **data)
        self._listener(kind, data)

    def tell(self, kind: str, **data: Any) -> None:
        """Tell an event that is not worth keeping, such as progress."""
        self._listener(kind, data)

    def lane(self, **data: Any) -> int:
        """Open a lane and return its index in this run."""
        index = self._lanes
        self._lanes += 1
        self.record("new-lane", **data)
        return index

    def end(self, exit_code: int) -> None:
        self.store.end(self.run, exit_code=exit_code)
        self._listener("run-end", {"exit_code": exit_code})
