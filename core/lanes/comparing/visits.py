"""Several visits to one launch, told as one: what `lanes ab --request` measures twice in each launch.

A figure of both is the geometric mean of the two, for lanes are compared by ratio: a drift that is the same from visit
to visit then falls out of A B B A.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lanes.results.document import CELL_KEY

VISITS = 2
"""To each side, in a launch that both share."""


def folded(lanes: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], bool]]:
    """The lanes of a document, those that are visits of one side to one launch as one, and whether it is whole."""
    found: list[list[Mapping[str, Any]]] = []
    by_launch: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for lane in lanes:
        block = lane.get("block") or {}
        if "visit" not in block:
            found.append([lane])
            continue
        key = (block["number"], block["attempt"], block["side"])
        if key not in by_launch:
            found.append(by_launch.setdefault(key, []))
        by_launch[key].append(lane)
    return [_one(some) for some in found]


def _one(visits: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], bool]:
    first = visits[0]
    if "visit" not in (first.get("block") or {}):
        return first, True
    bad = [lane for lane in visits if lane["status"] != "measured"]
    told = bad[0] if bad else first
    names = dict.fromkeys(one["name"] for lane in visits for one in lane["instruments"])
    whole = len(visits) == VISITS and not bad
    return {
        **first,
        **{name: told[name] for name in ("status", "reason", "next_step")},
        "instruments": [_instrument(name, visits) for name in names],
    }, whole


def _instrument(name: str, visits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    held = [one for lane in visits for one in lane["instruments"] if one["name"] == name]
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for one in held:
        for cell in one["cells"]:
            cells.setdefault(tuple(cell.get(key) for key in CELL_KEY), []).append(cell)
        for row in one.get("rows") or ():
            rows.setdefault(row["name"], []).append(row)
    return {
        **held[0],
        "cells": [_cell(some) for some in cells.values()],
        "rows": [_row(some) for some in rows.values()],
    }


def _cell(some: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    status, reason = "ok", None
    if bad := [cell for cell in some if cell["status"] != "ok"]:
        status, reason = bad[0]["status"], bad[0]["reason"]
    elif len(some) < VISITS:
        status, reason = "invalid", "only one of the two visits to this launch measured it"
    return {
        **some[0],
        "status": status,
        "reason": reason,
        "metrics": _figures([cell["metrics"] for cell in some]),
        "server_metrics": _figures([cell.get("server_metrics") or {} for cell in some]),
        "notes": list(dict.fromkeys(note for cell in some for note in cell["notes"])),
        "passes": [one for cell in some for one in cell["passes"]],
    }


def _row(some: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    told = next((row for row in some if row.get("fault")), some[0])
    if len(some) < VISITS:
        return {**told, "figures": {}}
    return {**told, "figures": _figures([row["figures"] for row in some])}


def _figures(some: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures that all visits have."""
    return {name: _both([one[name] for one in some]) for name in some[0] if all(name in one for one in some)}


def _both(values: Sequence[Any]) -> Any:
    """One value of several: intervals, numbers, or else what the first visit told."""
    if all(isinstance(one, Mapping) and "median" in one for one in values):
        return {
            **values[0],
            "median": _mean([one["median"] for one in values]),
            "lo": min(one["lo"] for one in values),
            "hi": max(one["hi"] for one in values),
            "n": sum(one["n"] for one in values),
        }
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        return _mean(values)
    return values[0]


def _mean(values: Sequence[float]) -> float:
    if min(values) > 0:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)
