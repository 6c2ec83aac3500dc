"""What a search of the history looks at: a short summary of each lane of each run, beside the documents.

It holds nothing that the journal does not: rows are made anew whenever a run's journal has grown, and a
store from before it was there gets it with the first search.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from lanes.results.document import cell_name

TABLE = """
CREATE TABLE IF NOT EXISTS summaries (
    run TEXT NOT NULL, lane INTEGER NOT NULL, stamp INTEGER NOT NULL, name TEXT NOT NULL, engine TEXT NOT NULL,
    model TEXT NOT NULL, recipe TEXT NOT NULL, status TEXT NOT NULL, node TEXT NOT NULL, gpu TEXT NOT NULL,
    text TEXT NOT NULL, PRIMARY KEY (run, lane)
)
"""
CHANGING = -1
"""The stamp of a run that somebody works on: it is never what was read."""
STATUSES = ("measured", "unrunnable", "unmeasurable", "crashed", "failed", "interrupted", "running")
"""What can become of a lane."""
_LOG_LINES = 50
_POINT = {"pp", "tg", "depth", "concurrency"}


@frozen(kw_only=True)
class Wanted:
    """What is searched for. A lane is found when all that is asked for is true of it: every one of `words` stands somewhere
    in what is known of it, and of each other name one of its values is part of what it has, whatever the case;
    `status` is one of `STATUSES` in full. `since` and `until` (Unix seconds) are of the run's beginning."""

    words: tuple[str, ...] = ()
    lane: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None


@frozen(kw_only=True)
class Hit:
    """A run that was found: its document, and which of its lanes (their places) it was found by."""

    document: dict[str, Any]
    lanes: tuple[int, ...]


def stale(db: sqlite3.Connection) -> list[str]:
    """The runs whose summaries are not those of their journal."""
    rows = db.execute(
        "SELECT id FROM runs WHERE coalesce((SELECT stamp FROM summaries WHERE run = id LIMIT 1), 0) "
        "!= (SELECT coalesce(max(seq), 0) FROM events WHERE run = id)"
    )
    return [run for (run,) in rows]


def write(db: sqlite3.Connection, documents: Iterable[Mapping[str, Any]]) -> None:
    """Put the summaries of these documents in the place of older ones."""
    for document in documents:
        run = document["run"]
        (stamp,) = db.execute("SELECT coalesce(max(seq), 0) FROM events WHERE run = ?", (run,)).fetchone()
        db.execute("DELETE FROM summaries WHERE run = ?", (run,))
        stamp = CHANGING if document["status"] == "running" else stamp
        db.executemany(
            "INSERT INTO summaries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(run, number, stamp, *row) for number, row in enumerate(_safely(document))],
        )


def find(db: sqlite3.Connection, wanted: Wanted, limit: int) -> tuple[int, list[tuple[str, tuple[int, ...]]]]:
    """How many runs are found in all, and the latest of them with the lanes that are meant, the newest first."""
    conditions, values = ["1"], []
    for word in wanted.words:
        conditions.append("instr(text, ?)")
        values.append(_line(word))
    for column, named in (
        ("name", wanted.lane), ("engine", wanted.engine), ("model", wanted.model), ("recipe", wanted.recipe),
        ("node", wanted.node), ("gpu", wanted.gpu),
    ):  # fmt: skip
        if named:
            conditions.append("(" + " OR ".join(f"instr({column}, ?)" for _ in named) + ")")
            values += map(_line, named)
    if wanted.status:
        conditions.append(f"status IN ({', '.join('?' for _ in wanted.status)})")
        values += wanted.status
    moments: list[float] = []
    for comparison, at in (("started_at >= ?", wanted.since), ("started_at < ?", wanted.until)):
        if at is not None:
            conditions.append(comparison)
            moments.append(at)
    rows = db.execute(
        "SELECT run, group_concat(lane) FROM summaries JOIN runs ON id = run WHERE "
        + " AND ".join(conditions)
        + " GROUP BY run ORDER BY started_at DESC, id DESC",
        (*values, *moments),
    ).fetchall()
    return len(rows), [(run, tuple(sorted(map(int, lanes.split(","))))) for run, lanes in rows[:limit]]


def _safely(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a document; one that is not as it should be is found by its text alone, and is in nobody's way."""
    try:
        return list(_rows(document))
    except (AttributeError, KeyError, TypeError):
        return [("", "", "", "", str(document["status"]), "", "", _line(json.dumps(document)))]


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each lane, or one for a run that has none."""
    about = [document["run"], str(document.get("command") or ""), *_scalars(document.get("provenance"))]
    for lane in document["lanes"] or [{}]:
        recipe = lane.get("recipe") or {}
        nodes = (lane.get("environment") or {}).get("nodes") or ()
        gpus = [gpu for node in nodes for gpu in node.get("gpus") or ()]
        parts = (
            [lane.get("name")],
            [lane.get("engine")],
            _scalars(recipe.get("model")),
            [recipe.get("name")],
            [lane.get("status") or document["status"]],
            [lane.get("cluster"), *(node.get(key) for node in nodes for key in ("name", "arch", "os"))],
            _scalars(gpus),
        )
        columns = [_joined(part) for part in parts]
        yield (*columns, _joined([*about, *columns, *_told(lane)]))


def _told(lane: Mapping[str, Any]) -> Iterator[Any]:
    """What else a person may remember of a lane."""
    recipe, environment = lane.get("recipe") or {}, lane.get("environment") or {}
    yield from (recipe.get(key) for key in ("description", "image", "origin"))
    for key in ("options", "env"):
        yield from (f"{name}={_shown(value)}" for name, value in (recipe.get(key) or {}).items())
    yield from (environment.get(key) for key in ("plugin", "engine_version", "kernel"))
    yield from (lane.get(key) for key in ("url", "reason", "next_step"))
    yield from _scalars(lane.get("causes"))
    yield from _scalars(lane.get("overrides"))
    yield from (one["reason"] for one in lane.get("findings") or () if one.get("verdict") != "runnable")
    yield from (one.get("reason") for one in lane.get("attempts") or ())
    for instrument in lane.get("instruments") or ():
        yield from (instrument.get(key) for key in ("name", "status", "reason"))
        for cell in instrument.get("cells") or ():
            # What is left of a journal that was cut may name no point.
            yield from ([cell_name(cell)] if cell.keys() >= _POINT else [])
            yield from (cell.get("status"), cell.get("reason"))
        for row in instrument.get("rows") or ():
            yield from (row.get(key) for key in ("name", "status", "reason"))
    yield from list(_scalars(lane.get("log")))[-_LOG_LINES:]


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _scalars(one)
    elif value is not None:
        yield value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joined(parts: Iterable[Any]) -> str:
    """The texts, each once and on a line of its own, as they are compared."""
    return "\n".join(dict.fromkeys(_line(_shown(one)) for one in parts if one not in (None, "")))


def _line(text: str) -> str:
    return " ".join(text.split()).casefold()
