"""What a lane's figures may depend on, by name: whatever differs here between two lanes may be the cause."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from lanes.comparing.comparison import Difference, Side

_CONCEPTS = {
    "context": ("context_length", "context", "max_model_len"),
    "thinking effort": ("reasoning_effort", "SGLANG_DSV41_REASONING_EFFORT", "TF_DSV41_DEFAULT_EFFORT"),
    "speculation": (
        "speculative_algorithm",
        "speculative_config",
        "speculative_dspark_block_size",
        "drafts",
    ),
}
"""What engines call by different names: factor -> options and environment variables."""
_CONCEPT = {key: concept for concept, keys in _CONCEPTS.items() for key in keys}

_UNIVERSAL = (
    "engine",
    "engine version",
    "plugin",
    "model",
    "checkpoint",
    "quantisation",
    "image",
    "nodes",
    "gpu",
    "gpu clock",
    "driver",
    "host",
    "instrument version",
    "measured from",
    *_CONCEPTS,
)
"""Factors that every lane has, whatever its engine; the others are options of one engine."""
_REQUEST = "request "
"""Before the name of a field that every request had, which any engine may be sent."""


def of(lane: Mapping[str, Any]) -> dict[str, str]:
    """The factors of a lane of a `lanes.result/1` document, as far as it tells them."""
    return {name: text for name, value in _pairs(lane) if (text := _text(value)) is not None}


def _pairs(lane: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    environment = lane.get("environment") or {}
    recipe = lane.get("recipe") or {}
    model = recipe.get("model") or {}
    options = dict(recipe.get("options") or {})
    env = dict(recipe.get("env") or {})
    nodes = environment.get("nodes") or []
    gpus = [gpu for node in nodes for gpu in node.get("gpus") or ()]
    yield "engine", lane.get("engine")
    yield "engine version", environment.get("engine_version")
    yield "plugin", environment.get("plugin")
    yield "model", model.get("name")
    yield "checkpoint", " ".join(str(model[k]) for k in ("repo", "path", "revision") if model.get(k)) or None
    yield "quantisation", model.get("quantization")
    yield "image", _images(lane, recipe)
    yield "nodes", recipe.get("nodes")
    yield "cluster", lane.get("cluster")
    yield "gpu", ", ".join(sorted({gpu["name"] for gpu in gpus})) or ("none" if nodes else None)
    yield "driver", ", ".join(sorted({gpu["driver"] for gpu in gpus if gpu.get("driver")})) or None
    yield "host", environment.get("kernel")
    yield "instrument version", environment.get("lanes")
    yield "measured from", (environment.get("client") or {}).get("from")
    yield "url", lane.get("url")
    for concept, keys in _CONCEPTS.items():
        found = [
            f"{_text(value)}" for key in keys if _text(value := options.get(key, env.get(key))) is not None
        ]
        yield concept, " ".join(found) or None
    yield from ((key, value) for key, value in options.items() if key not in _CONCEPT)
    yield from ((f"env {key}", value) for key, value in env.items() if key not in _CONCEPT)
    yield from ((f"{_REQUEST}{key}", value) for key, value in (lane.get("request") or {}).items())


def _images(lane: Mapping[str, Any], recipe: Mapping[str, Any]) -> str | None:
    ids = {str(image.get("id") or image.get("reference")) for image in (lane.get("images") or {}).values()}
    if ids:
        return ", ".join(sorted(ids))
    processes = (lane.get("launch") or {}).get("processes") or ()
    seen = {process["container"]["image"] for process in processes if process.get("container")}
    return ", ".join(sorted(seen)) or recipe.get("image")


def _text(value: Any) -> str | None:
    if value is None or value == "" or value == [] or value == {}:
        return None
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


_CLOCKS = 0.02
"""Clocks that are closer than that do not differ."""


def with_clocks(sides: Sequence[Side]) -> list[Side]:
    """The lanes with the clock of their GPUs among their factors, where clocks differ."""
    clocks = {
        side.name: statistics.median(held)
        for side in sides
        if (held := [p.figures["gpu_clock_mhz"].median for p in side.points if "gpu_clock_mhz" in p.figures])
    }
    if not clocks or max(clocks.values()) <= min(clocks.values()) * (1 + _CLOCKS):
        return list(sides)
    return [
        evolve(side, factors={**side.factors, "gpu clock": f"{clocks[side.name]:.0f} MHz"})
        if side.name in clocks
        else side
        for side in sides
    ]


def differences(lanes: Sequence[tuple[str, Mapping[str, str]]]) -> tuple[Difference, ...]:
    """What is not the same in all lanes, each a name with its factors. An engine's own options are told
    where all lanes that differ in them are of that engine."""
    engines = {factors.get("engine") for _, factors in lanes}
    found = []
    for factor in _order(factors for _, factors in lanes):
        values = {name: factors.get(factor) for name, factors in lanes}
        shared = factor in (*_UNIVERSAL, "cluster", "url") or factor.startswith(_REQUEST)
        if len(set(values.values())) > 1 and (len(engines) == 1 or shared):
            found.append(Difference(factor=factor, values=values))
    return tuple(found)


def unknown(lanes: Sequence[tuple[str, Mapping[str, str]]]) -> tuple[str, ...]:
    """What no lane tells although figures depend on it: it may differ all the same."""
    always = ("engine version", "gpu", "instrument version")
    return tuple(name for name in always if not any(name in factors for _, factors in lanes))


def cause(a: Mapping[str, str], b: Mapping[str, str]) -> str | None:
    """The one thing that differs between two lanes, as `threads 1 -> 2`; None when nothing does, when more
    does, or when it is not told what does."""
    pair = (("a", a), ("b", b))
    found = differences(pair)
    if len(found) != 1 or unknown(pair):
        return None
    values = found[0].values
    return f"{found[0].factor} {values['a'] or 'not set'} -> {values['b'] or 'not set'}"


def _order(every: Iterable[Mapping[str, str]]) -> list[str]:
    """All factors, those of every lane first."""
    names: dict[str, None] = {}
    for factors in every:
        names.update(dict.fromkeys(factors))
    return [*(n for n in _UNIVERSAL if n in names), *(n for n in names if n not in _UNIVERSAL)]
