"""What was seen when TensorFold ran on DGX Sparks: stronger than any table, and bound to where it was seen."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from lanes.types import Evidence, Finding, Kind, Lane, Node, Verdict

_RECIPE = "dsv41-flash-1017-2x-tensorfold"
_REPORT = f"the report on {_RECIPE} (2026-10-19)"
_DATE = datetime.date(2026, 10, 19)
_VERSION = "0.6.0"


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """The engine on GB10, and the report's lane where it is run as it was: on two of them."""
    if not nodes or not all(_is_spark(node) for node in nodes):
        return
    recipe = lane.recipe
    # Files that a recipe names speak for themselves: they need not be what ran.
    if recipe is None or not recipe.artifacts:
        yield _seen("sm", "it ran on two DGX Sparks (compute capability 12.1), decoding 50.4 tok/s")
    if recipe is not None and recipe.name == _RECIPE and len(nodes) == 2:
        yield _seen("memory", "the weights and a context of 262,144 tokens were served by two DGX Sparks")
        yield _seen("answers", "it scored 89/100 in tool-eval-bench v2.8.0 (seed 42, hardmode)", Kind.SANITY)


def _is_spark(node: Node) -> bool:
    return bool(node.gpus) and all(gpu.target == "12.1" for gpu in node.gpus or ())


def _seen(question: str, reason: str, kind: Kind = Kind.HARDWARE) -> Finding:
    return Finding(
        question=question,
        kind=kind,
        verdict=Verdict.RUNNABLE,
        reason=reason,
        source=_REPORT,
        evidence=Evidence.OBSERVED,
        engine_version=_VERSION,
        date=_DATE,
    )
