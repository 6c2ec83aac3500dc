"""The store: an append-only journal of what happened in each run, in SQLite.

Every event is a transaction of its own, written as it happens, so a kill at any moment loses nothing
that had ended. A run's document is folded from its events (see `document.py`); for a run that has
ended it is kept beside them, so that listing many runs is quick, and a summary (`summaries.py`) for searches.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lanes.errors import LanesError, UsageError
from lanes.owners import Owner
from lanes.results import summaries
from lanes.results.document import REQUESTS, Event, fold

SCHEMA_VERSION = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, started_at REAL NOT NULL, owner_pid INTEGER NOT NULL, owner_created REAL NOT NULL, document TEXT
);
CREATE TABLE IF NOT EXISTS events (
    run TEXT NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, at REAL NOT NULL,
    kind TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (started_at);
CREATE INDEX IF NOT EXISTS lanes_by_name ON events (json_extract(data, '$.name')) WHERE kind = 'new-lane';
"""


BUSY_S = 30.0
"""How long to wait for another process that is writing."""
_CACHE_KIB = 256
"""Of the file, in memory: what a long run writes is seldom read again."""
_AT_ONCE = 200
"""Runs that are summarised in one transaction."""


class Store:
    """Runs and their events. Several processes may write and read at the same time.

    Raises `LanesError`, with what to do, whenever the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._told("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        if version:
            raise LanesError(
                f"{self.path} was written by another version of lanes (schema {version}, here {SCHEMA_VERSION})",
                "upgrade lanes, or set LANES_HOME to another folder",
            )
        # SQLite does not wait when two processes change a new file's mode at once.
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn what SQLite says into a sentence."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            raise LanesError(f"the store {self.path} cannot be {what}: {error}", _mend(str(error))) from None

    def begin(self, owner: Owner, **data: Any) -> str:
        """Open a run and return its id: the local time it began, and four random characters."""
        now = time.time()
        taken = True
        with self._told("written"):
            while taken:
                run = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + "-" + secrets.token_hex(2)
                done = self._db.execute(
                    "INSERT OR IGNORE INTO runs (id, started_at, owner_pid, owner_created) VALUES (?, ?, ?, ?)",
                    (run, now, owner.pid, owner.created),
                )
                taken = done.rowcount == 0
        self.append(run, "run", **data)
        return run

    def resume(self, run: str, owner: Owner) -> None:
        """Go on with a run that ended or was cut; `run` is a whole id. Raises `LanesError` while another works
        on it."""
        with self._told("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                pid, created, kept = self._db.execute(
                    "SELECT owner_pid, owner_created, document FROM runs WHERE id = ?", (run,)
                ).fetchone()
                if kept is None and Owner(pid=pid, created=created).alive():
                    raise LanesError(
                        f"{run} is being worked on by lanes (pid {pid})", "wait, or stop that first"
                    )
                self._db.execute(
                    "UPDATE runs SET owner_pid = ?, owner_created = ?, document = NULL WHERE id = ?",
                    (owner.pid, owner.created, run),
                )
            finally:
                self._db.execute("COMMIT")
        self.append(run, "run-resumed")

    def keep(self, document: dict[str, Any], owner: Owner) -> str:
        """Take in a document that was made elsewhere, as a run of its own; return its id."""
        provenance = document.get("provenance") or {"by": "lanes", "source": f"run {document['run']}"}
        run = self.begin(owner, command="import", provenance=provenance)
        for index, lane in enumerate(document["lanes"]):
            apart = ("instruments", "boot", "attempts", "staging")
            self.append(
                run, "new-lane", **{k: v for k, v in lane.items() if k not in apart and v is not None}
            )
            for instrument in lane["instruments"]:
                of = {"lane": index, "instrument": instrument["name"]}
                self.append(run, "instrument", **of, plan=instrument["plan"])
                for cell in instrument["cells"]:
                    for one in cell["passes"]:
                        self.append(run, "pass", **of, cell=one["cell"], measured=one)
                    self.append(run, "cell", **of, cell={**cell, "passes": []})
                for row in instrument.get("rows") or ():
                    self.append(run, "row", **of, row=row)
                status = instrument.get("status") or "done"
                self.append(run, "instrument-end", **of, status=status, reason=instrument.get("reason"))
            self.append(run, "lane-end", lane=index, status=lane["status"], reason=lane["reason"])
        self.end(run, exit_code=None)
        return run

    def append(self, run: str, kind: str, **data: Any) -> None:
        """Write one event of a run; it is on disk when this returns."""
        with self._told("written"):
            self._db.execute(
                "INSERT INTO events SELECT ?, coalesce(max(seq), 0) + 1, ?, ?, ? FROM events WHERE run = ?",
                (run, time.time(), kind, json.dumps(data), run),
            )

    def end(self, run: str, **data: Any) -> None:
        """Close a run; its document is folded and kept."""
        self.append(run, "run-end", **data)
        with self._told("written"):
            document = self._fold(run, False)
            self._db.execute("UPDATE runs SET document = ? WHERE id = ?", (json.dumps(document), run))
            self._summarise([document])

    def search(self, wanted: summaries.Wanted, limit: int) -> tuple[int, Iterator[summaries.Hit]]:
        """How many runs are found, and the latest of them, the newest first."""
        with self._told("read"):
            self._db.execute(summaries.TABLE)
            # In parts: a large store's documents are not all held at once.
            runs = summaries.stale(self._db)
            for start in range(0, len(runs), _AT_ONCE):
                self._summarise([self._row(run) for run in runs[start : start + _AT_ONCE]])
            total, found = summaries.find(self._db, wanted, limit)
        return total, self._hits(found)

    def _hits(self, found: list[tuple[str, tuple[int, ...]]]) -> Iterator[summaries.Hit]:
        for run, lanes in found:
            with self._told("read"):
                document = self._row(run)
            yield summaries.Hit(document=document, lanes=lanes)

    def _summarise(self, documents: list[dict[str, Any]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute(summaries.TABLE)
            summaries.write(self._db, documents)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def document(self, run: str) -> dict[str, Any]:
        """The `lanes.result/1` document of a run. Raises `UsageError` when there is no such run."""
        with self._told("read"):
            matches = self._db.execute(
                "SELECT id FROM runs WHERE substr(id, 1, length(?)) = ? ORDER BY id = ? DESC LIMIT 2",
                (run, run, run),
            ).fetchall()
            if not matches or (len(matches) > 1 and matches[0][0] != run):
                what = f"several runs begin with {run!r}" if matches else f"there is no run {run!r}"
                raise UsageError(what, "`lanes history` lists them")
            return self._row(matches[0][0])

    def requests(self, run: str) -> Iterator[dict[str, Any]]:
        """The timelines of a run that its document does not hold, batch by batch (see `document.py`).
        `run` is a whole id."""
        rows = self._db.execute(
            "SELECT data FROM events WHERE run = ? AND kind = ? ORDER BY seq", (run, REQUESTS)
        )
        while True:
            with self._told("read"):
                row = rows.fetchone()
            if row is None:
                return
            yield json.loads(row[0])

    def recent(self, limit: int) -> Iterator[dict[str, Any]]:
        """The documents of the latest runs, the newest first."""
        yield from self._documents("SELECT id FROM runs ORDER BY started_at DESC, id DESC LIMIT ?", limit)

    def since(self, at: float) -> Iterator[dict[str, Any]]:
        """The documents of all runs that began at that time (Unix seconds) or later, the oldest first."""
        yield from self._documents("SELECT id FROM runs WHERE started_at >= ? ORDER BY started_at, id", at)

    def of_lane(self, name: str) -> Iterator[dict[str, Any]]:
        """The documents of all runs with a lane of this name, the oldest first."""
        yield from self._documents(
            "SELECT id FROM runs WHERE id IN (SELECT run FROM events WHERE kind = 'new-lane' "
            "AND json_extract(data, '$.name') = ?) ORDER BY started_at, id",
            name,
        )

    def _documents(self, query: str, value: Any) -> Iterator[dict[str, Any]]:
        with self._told("read"):
            rows = self._db.execute(query, (value,)).fetchall()
        for (run,) in rows:
            with self._told("read"):
                document = self._row(run)
            yield document

    def _row(self, run: str) -> dict[str, Any]:
        pid, created, kept = self._db.execute(
            "SELECT owner_pid, owner_created, document FROM runs WHERE id = ?", (run,)
        ).fetchone()
        if kept is not None:
            value: dict[str, Any] = json.loads(kept)
            return value
        return self._fold(run, Owner(pid=pid, created=created).alive())

    def _fold(self, run: str, alive: bool) -> dict[str, Any]:
        rows = self._db.execute(
            "SELECT at, kind, data FROM events WHERE run = ? AND kind != ? ORDER BY seq", (run, REQUESTS)
        )
        return fold(run, [Event(at=at, kind=kind, data=json.loads(data)) for at, kind, data in rows], alive)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mend(problem: str) -> str:
    if "locked" in problem:
        return "another process holds it: see who with `fuser`, and try again"
    if "full" in problem:
        return "free some space, or set LANES_HOME to another disk"
    if "readonly" in problem or "ermission" in problem or "unable to open" in problem:
        return "make it writable, or set LANES_HOME to another folder"
    return "move it away to begin a new one, or set LANES_HOME to another folder"
