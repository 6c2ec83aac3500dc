"""What a result says of a lane's making: recipe, environment, findings, launch, as plain data."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from typing import Any

import attrs
import cattrs.preconf.json

from lanes._version import __version__
from lanes.plugins import Engine
from lanes.types import Finding, Lane, Launch, Node

_SECRET = re.compile(r"key|token(?!s|izer)|secret|passw|credential|auth", re.IGNORECASE)

HIDDEN = "(hidden)"


def plain(value: Any) -> Any:
    """An attrs value as JSON-able data."""
    return cattrs.preconf.json.make_converter().unstructure(value)


def recipe(lane: Lane) -> dict[str, Any] | None:
    """The recipe as it was used: options with their defaults filled in, secrets hidden."""
    if lane.recipe is None:
        return None
    options = plain(lane.options) if attrs.has(type(lane.options)) else {}
    return {**plain(lane.recipe), "options": options, "env": hide(lane.recipe.env)}


def environment(engine: Engine, nodes: Sequence[Node]) -> dict[str, Any]:
    """Versions and hardware: what a figure depends on."""
    info = engine.ask("lanes_engine")
    return {
        "lanes": __version__,
        "plugin": engine.plugin.distribution,
        "engine_version": info.version,
        "nodes": plain(tuple(nodes)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()),
    }


def finding(value: Finding) -> dict[str, Any]:
    data: dict[str, Any] = plain(attrs.evolve(value, date=None))
    return {**data, "date": value.date.isoformat() if value.date else None}


def launch(value: Launch) -> dict[str, Any]:
    """The processes as they were launched, secrets in their environment hidden."""
    data: dict[str, Any] = plain(value)
    for process in data["processes"]:
        process["env"] = hide(process["env"])
    return data


def hide(env: Any) -> dict[str, str]:
    return {k: HIDDEN if is_secret(k) else v for k, v in env.items()}


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET.search(name) is not None
