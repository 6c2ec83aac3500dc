"""One run's journal: what happened is written to the store, and told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lanes import paths
from lanes.owners import Owner
from lanes.results.store import Store

Listener = Callable[[str, dict[str, Any]], None]
"""Hears every event: its kind and its data (kinds as in `results/document.py`, and `progress`)."""


class Events(Protocol):
    """What measuring needs of a journal."""

    def record(self, kind: str, **data: Any) -> None:
        """Write an event, then tell it."""

    def tell(self, kind: str, **data: Any) -> None:
        """Tell an event that is not worth keeping, such as progress."""

    def document(self) -> dict[str, Any]:
        """The run as it stands, as a result."""

    def folder(self, lane: int, instrument: str) -> Path:
        """Where the files of an instrument go; it need not be there yet."""


class Journal:
    def __init__(self, store: Store, listener: Listener, *, resume: str | None = None, **about: Any) -> None:
        """Open a new run, or go on with the one of that whole id. Raises `LanesError` while another works on it."""
        self.store = store
        self._listener = listener
        self._lanes = 0
        if resume is None:
            self.run = store.begin(Owner.me(), **about)
            return
        self.run = resume
        store.resume(resume, Owner.me())
        for index, lane in enumerate(store.document(resume)["lanes"]):
            self._lanes += 1
            if lane["status"] == "running":
                # It was cut: as if nobody had gone on with the run.
                how = f"lanes was killed while {lane['boot'][-1]['phase'] if lane['boot'] else 'starting'}"
                self.record("lane-end", lane=index, status="interrupted", reason=how, next_step=None)

    def record(self, kind: str, **data: Any) -> None:
        """Write an event, then tell it."""
        self.store.append(self.run, kind, **data)
        self._listener(kind, data)

    def tell(self, kind: str, **data: Any) -> None:
        """Tell an event that is not worth keeping, such as progress."""
        self._listener(kind, data)

    def document(self) -> dict[str, Any]:
        """The run as it stands, as a result."""
        return self.store.document(self.run)

    def folder(self, lane: int, instrument: str) -> Path:
        """Where the files of an instrument go; it need not be there yet."""
        return paths.artefacts() / self.run / f"lane{lane}" / instrument

    def lane(self, **data: Any) -> int:
        """Open a lane and return its index in this run."""
        index = self._lanes
        self._lanes += 1
        self.record("new-lane", **data)
        return index

    def end(self, exit_code: int) -> None:
        self.store.end(self.run, exit_code=exit_code)
        self._listener("run-end", {"exit_code": exit_code})
