"""Results and their comparison in, the page out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lanes.comparing import saying
from lanes.comparing.comparison import Comparison
from lanes.comparing.grouping import Group
from lanes.reporting import curves, failures, found, overview, passes, surroundings
from lanes.reporting.model import Report


def build(documents: Sequence[Mapping[str, Any]], comparison: Comparison, groups: Sequence[Group]) -> Report:
    """The page of a comparison.

    `documents` are the `lanes.result/1` that it was made of, `groups` the launches of its sides, in their
    order (`comparing.compare.chosen`). A section that has nothing to say is left out.
    """
    labels = saying.labels(comparison)
    sections = (
        overview.summary(comparison),
        overview.side_by_side(comparison, labels),
        curves.section(comparison),
        passes.first_tokens(comparison, groups),
        passes.timelines(comparison, groups),
        passes.boots(comparison, groups),
        found.instruments(comparison, groups),
        found.server(comparison, groups),
        surroundings.section(comparison, groups, labels),
        found.findings(comparison, groups),
        failures.section(comparison, groups),
    )
    return Report(
        title=overview.title(comparison),
        facts=tuple(overview.facts(comparison, documents)),
        sections=tuple(section for section in sections if section.blocks),
    )
