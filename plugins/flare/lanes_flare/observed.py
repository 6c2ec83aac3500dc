"""What was seen when FLARE ran on DGX Sparks: stronger than any table, and bound to where it was seen."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence

from lanes.types import Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

_REPORT = "the report's four-lane comparison (2026-10-20/21)"
_DATE = datetime.date(2026, 10, 21)
_V41_1017 = re.compile(r"(?:deepseek[-_ ]?v4[._]?1|dsv41)[-_ ]?flash[-_ ]?1017", re.IGNORECASE)


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """The engine on GB10, and the report's lane on four of them, under whatever name it is kept."""
    if not nodes or not all(_is_spark(node) for node in nodes):
        return
    recipe = lane.recipe
    # Files that a recipe names speak for themselves: they need not be what ran.
    if recipe is None or not recipe.artifacts:
        yield _seen("sm", Verdict.RUNNABLE, "it ran on DGX Sparks (GB10, compute capability 12.1)")
    if recipe is None:
        return
    yield _seen(
        "tool-choice",
        Verdict.DEGRADED,
        'it answers HTTP 500 to tool_choice "required"',
        Kind.SERVING,
        next_step='ask with tool_choice "auto"',
        recheck_when="a later FLARE",
    )
    if len(nodes) == 4 and _is_v41(recipe):
        yield _seen(
            "memory", Verdict.RUNNABLE, "the package validates with 74.7 GiB a rank on four DGX Sparks"
        )
        yield _seen(
            "agent-prompts",
            Verdict.DEGRADED,
            "short prompts are answered, and the package for four Sparks dies on the first agent-sized one "
            "(RoCE proxy failed: kernel timed out): 0/100 in tool-eval-bench, unmeasurable",
            Kind.SANITY,
            next_step="measure short prompts only, or take another engine",
            recheck_when="a later revision of the package for four Sparks",
        )


def _is_spark(node: Node) -> bool:
    return bool(node.gpus) and all(gpu.target == "12.1" for gpu in node.gpus or ())


def _is_v41(recipe: Recipe) -> bool:
    names = (recipe.name, recipe.model.name, recipe.model.repo, recipe.model.path)
    return any(name is not None and _V41_1017.search(name) for name in names)


def _seen(
    question: str,
    verdict: Verdict,
    reason: str,
    kind: Kind = Kind.HARDWARE,
    *,
    next_step: str | None = None,
    recheck_when: str | None = None,
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
        recheck_when=recheck_when,
    )
