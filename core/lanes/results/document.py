"""Fold a run's events into one document, `"schema": "lanes.result/1"` (docs/result.schema.json).

Events, in the order they may come (each with the index `lane` where it belongs to one):

    run            command, lanes_version, host, comparison
    new-lane       name, engine, recipe, cluster, environment, overrides, url
    environment    environment
    findings       verdict, findings
    phase          phase
    staged         staged
    launched       launch, folder
    attempt        number, of, status, reason, seconds, causes, log
    step           step
    images         images
    instrument     instrument, plan
    row            instrument, row
    pass           instrument, cell, measured
    requests       instrument, cell, number, count, packed
    cell           instrument, cell
    instrument-end instrument, status, reason
    block          block
    fields         request
    lane-end       status, reason, next_step, causes, log
    run-end        exit_code
    run-resumed    (nothing)

`requests` are the timelines of many requests, for those who compute figures anew: a document does not hold
them, and is folded without them.

A run whose owner is gone without `run-end` was interrupted: what had ended is all there. A journal may
be cut or damaged anywhere: whatever events there are fold to a document, and no pass is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

SCHEMA = "lanes.result/1"

REQUESTS = "requests"
"""The kind of event that is kept for its own sake, and is in no document."""

CELL_KEY = ("pp", "tg", "depth", "concurrency", "shape", "load", "rate")
"""What tells a cell from others; older runs have only the first four."""


def cell_name(cell: Mapping[str, Any]) -> str:
    """`pp2048 tg128`, with `@ d4096` after a cached prefix, `c4`, `c4 closed` or `2.5/s` where they apply;
    `ctx4096 tg128` where all the depth is the prompt."""
    load = cell.get("load", "burst")
    depth = f" @ d{cell['depth']}" if cell["depth"] else ""
    prompt = f"pp{cell['pp']}"
    if cell.get("shape") == "ctx":
        prompt, depth = f"ctx{cell['depth']}", ""
    streams = f" c{cell['concurrency']}" if cell["concurrency"] > 1 or load == "closed" else ""
    if load == "closed":
        streams += " closed"
    elif load == "open":
        streams = f" {cell['rate']:g}/s"
    return f"{prompt} tg{cell['tg']}{depth}{streams}"


@attrs.frozen(kw_only=True)
class Event:
    """One line of the journal: when (Unix seconds), what kind, and its data."""

    at: float
    kind: str
    data: dict[str, Any]


def fold(run: str, events: Sequence[Event], alive: bool) -> dict[str, Any]:
    """The document of a run. `alive` says whether its owner still works on it."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run,
        "status": "running" if alive else "interrupted",
        "started_at": events[0].at if events else None,
        "ended_at": None,
        "exit_code": None,
        "lanes": [],
    }
    standing = {"status": document["status"], "ended_at": None, "exit_code": None}
    for event in events:
        _apply(document, event)
        if event.kind == "run-resumed":
            document.update(standing)
    for lane in document["lanes"]:
        _close(lane, alive)
    return document


def _apply(document: dict[str, Any], event: Event) -> None:
    data = dict(event.data)
    if event.kind == "run":
        document.update(data)
    elif event.kind == "run-end":
        document.update(status="done", ended_at=event.at, exit_code=data["exit_code"])
    elif event.kind == "new-lane":
        document["lanes"].append(empty_lane() | data)
    elif "lane" in data and event.kind != REQUESTS:
        index = data.pop("lane")
        while len(document["lanes"]) <= index:
            document["lanes"].append(empty_lane())
        _apply_to_lane(document["lanes"][index], event, data)


def empty_lane() -> dict[str, Any]:
    """A lane of which nothing is known yet."""
    return {
        "name": "unknown",
        "engine": None,
        "recipe": None,
        "cluster": "local",
        "verdict": None,
        "findings": [],
        "status": None,
        "reason": None,
        "next_step": None,
        "environment": {},
        "boot": [],
        "staging": [],
        "attempts": [],
        "lane_metrics": {},
        "overrides": [],
        "instruments": [],
    }


def _apply_to_lane(lane: dict[str, Any], event: Event, data: dict[str, Any]) -> None:
    if event.kind == "phase":
        _end_phase(lane, event.at)
        lane["boot"].append({"phase": data["phase"], "started_at": event.at, "seconds": None})
    elif event.kind == "instrument":
        instrument = _instrument(lane, data["instrument"])
        instrument["plan"] = data["plan"]
        if instrument["started_at"] is None:
            instrument["started_at"] = event.at
    elif event.kind == "instrument-end":
        instrument = _instrument(lane, data["instrument"])
        instrument.update(status=data["status"], reason=data["reason"])
        if instrument["started_at"] is not None:
            instrument["seconds"] = round(event.at - instrument["started_at"], 3)
    elif event.kind == "row":
        rows = _instrument(lane, data["instrument"])["rows"]
        named = next((i for i, row in enumerate(rows) if row["name"] == data["row"]["name"]), len(rows))
        rows[named : named + 1] = [data["row"]]
    elif event.kind == "pass":
        _cell(lane, data)["passes"].append(data["measured"])
    elif event.kind == "cell":
        cell = _cell(lane, data)
        cell.update(data["cell"], passes=cell["passes"])
    elif event.kind == "attempt":
        lane["attempts"].append(data)
    elif event.kind == "step":
        lane.setdefault("rehearsal", []).append(data["step"])
    elif event.kind == "staged":
        lane["staging"].append(data["staged"])
    elif event.kind == "lane-end":
        _end_phase(lane, event.at)
        lane.update(data)
    else:
        lane.update(data)


def _end_phase(lane: dict[str, Any], at: float) -> None:
    if lane["boot"] and lane["boot"][-1]["seconds"] is None:
        lane["boot"][-1]["seconds"] = round(at - lane["boot"][-1]["started_at"], 3)


def _instrument(lane: dict[str, Any], name: str) -> dict[str, Any]:
    for instrument in lane["instruments"]:
        if instrument["name"] == name:
            found: dict[str, Any] = instrument
            return found
    new: dict[str, Any] = {
        "name": name,
        "status": None,
        "reason": None,
        "plan": {},
        "started_at": None,
        "seconds": None,
        "cells": [],
        "rows": [],
    }
    lane["instruments"].append(new)
    return new


def _cell(lane: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    instrument = _instrument(lane, data["instrument"])
    key = {name: data["cell"][name] for name in CELL_KEY if name in data["cell"]}
    for cell in instrument["cells"]:
        if all(cell.get(name) == value for name, value in key.items()):
            found: dict[str, Any] = cell
            return found
    new: dict[str, Any] = {**key, "status": None, "reason": None, "metrics": {}, "notes": [], "passes": []}
    instrument["cells"].append(new)
    return new


def _close(lane: dict[str, Any], alive: bool) -> None:
    """Name the state of a lane, and of its cells, that nobody has ended."""
    if lane["status"] is None:
        phase = lane["boot"][-1]["phase"] if lane["boot"] else "starting"
        if alive:
            lane.update(status="running", reason=f"{phase} now")
        else:
            lane.update(status="interrupted", reason=f"lanes was killed while {phase}")
    word = "running" if lane["status"] == "running" else "interrupted"
    for instrument in lane["instruments"]:
        if instrument["status"] is None:
            instrument["status"] = word
        for cell in instrument["cells"]:
            if cell["status"] is None:
                measured = sum(1 for one in cell["passes"] if not one.get("warmup"))
                cell.update(status="invalid", reason=f"{word}: {measured} measured passes had ended")
