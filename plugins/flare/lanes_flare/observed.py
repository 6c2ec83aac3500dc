"""What was seen when FLARE ran on DGX Sparks: stronger than any table, and bound to where it was seen."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from lanes.types import Evidence, Finding, Kind, Lane, Node, Verdict

_RECIPE = "dsv41-flash-1017-4x-flare"
_REPORT = "the report's four-lane comparison (2026-10-20/21)"
_DATE = datetime.date(2026, 10, 20)
_ANOTHER = "another revision of the package is out"


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """The engine on GB10, and the report's lane where it is run as it was: on four of them."""
    if not nodes or not all(_is_spark(node) for node in nodes):
        return
    recipe = lane.recipe
    # Files that a recipe names speak for themselves: they need not be what ran.
    if recipe is None or not recipe.artifacts:
        yield _seen(
            "sm",
            Verdict.RUNNABLE,
            "it ran on DGX Sparks (compute capability 12.1), one and four together",
        )
    yield _seen(
        "tool-choice",
        Verdict.DEGRADED,
        'it answers a request with tool_choice "required" with HTTP 500',
        Kind.SERVING,
        'ask with tool_choice "auto"',
    )
    if recipe is not None and recipe.name == _RECIPE and len(nodes) == 4:
        yield _seen(
            "memory", Verdict.RUNNABLE, "four DGX Sparks held 74.7 GiB a rank and a KV pool of 26.6M tokens"
        )
        yield _seen(
            "answers",
            Verdict.DEGRADED,
            "the gb10 package for four Sparks, at the revision that was run, crashes on the first prompt of an "
            "agent's size (RoCE: two-shot op abandoned), short ones are answered",
            Kind.SANITY,
            "try another revision of the package, or serve this model with another engine",
        )


def _is_spark(node: Node) -> bool:
    return bool(node.gpus) and all(gpu.target == "12.1" for gpu in node.gpus or ())


def _seen(
    question: str,
    verdict: Verdict,
    reason: str,
    kind: Kind = Kind.HARDWARE,
    next_step: str | None = None,
) -> Finding:
    return Finding(
        question=question,
        kind=kind,
        verdict=verdict,
        reason=reason,
        source=_REPORT,
        evidence=Evidence.OBSERVED,
        date=_DATE,
        next_step=next_step,
        recheck_when=_ANOTHER if verdict is Verdict.DEGRADED else None,
    )
