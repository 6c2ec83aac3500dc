"""What was seen when a shipped recipe was run: stronger than any table, and bound to where it was seen."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from lanes.types import Evidence, Finding, Kind, Node, Recipe, Verdict

from lanes_sglang.flags import Settings

_REPORT = "the report on dsv41-flash-1017-4x-sglang (2026-10-18)"
_DATE = datetime.date(2026, 10, 18)

_MEMORY = Finding(
    question="memory",
    verdict=Verdict.RUNNABLE,
    reason="it ran on four DGX Sparks with 12 to 13 GB of GPU memory left beside a KV pool of 9.2M tokens",
    source=_REPORT,
    evidence=Evidence.OBSERVED,
    date=_DATE,
)
_SANITY = Finding(
    question="answers",
    kind=Kind.SANITY,
    verdict=Verdict.RUNNABLE,
    reason="it scored 87/100 in tool-eval-bench v2.8.0 (seed 42, hardmode)",
    source=_REPORT,
    evidence=Evidence.OBSERVED,
    date=_DATE,
)


def check(recipe: Recipe, settings: Settings, nodes: Sequence[Node]) -> Iterator[Finding]:
    """The report's lane, where it is run as it was: four Sparks, each with a quarter of the tensors."""
    sparks = all(node.gpus and all(gpu.target == "12.1" for gpu in node.gpus) for node in nodes)
    as_it_was = len(nodes) == settings.number("nnodes") == settings.number("tp_size") == 4 and sparks
    if recipe.name == "dsv41-flash-1017-4x-sglang" and as_it_was:
        yield from (_MEMORY, _SANITY)
