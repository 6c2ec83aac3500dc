"""Fold findings into a verdict.

Within a question the strongest evidence wins (OBSERVED > PROBED > DECLARED), and among equals the
worse answer. Across the questions of one kind the worst wins; the kinds stay apart. No finding at all
is UNKNOWN, never RUNNABLE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from lanes.plugins import Engine
from lanes.types import Evidence, Finding, Kind, Lane, Node, Verdict


def examine(engine: Engine, lane: Lane, nodes: Sequence[Node]) -> tuple[Finding, ...]:
    """Ask the engine and all extensions whether a lane can run on these nodes.

    A check that raises or returns the wrong type becomes an UNKNOWN finding.
    """
    findings: list[Finding] = []
    for title, result in engine.collect("lanes_check", lane=lane, nodes=nodes):
        if isinstance(result, Exception):
            findings.append(
                Finding(
                    question="check",
                    verdict=Verdict.UNKNOWN,
                    kind=Kind.CONFIGURATION,
                    reason=f"the check of {title} failed: {result}",
                    source=title,
                    evidence=Evidence.OBSERVED,
                )
            )
        else:
            findings.extend(result)
    return tuple(findings)


def decisive(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding per question: the one that counts."""
    by_question: dict[tuple[Kind, str], Finding] = {}
    for finding in findings:
        key = finding.kind, finding.question
        if key not in by_question or _rank(finding) > _rank(by_question[key]):
            by_question[key] = finding
    return tuple(by_question.values())


def _rank(finding: Finding) -> tuple[int, int]:
    return finding.evidence.strength, finding.verdict.severity


def fold(
    findings: Iterable[Finding], kind: Kind | None = None, despite: Collection[str] = ()
) -> tuple[Verdict, Finding | None]:
    """The verdict of one kind (or over all), and the finding that decided it.

    Questions named in `despite` are left out: the person goes on against them.
    """
    counted = [f for f in decisive(findings) if kind in (None, f.kind) and f.question not in despite]
    if not counted:
        return Verdict.UNKNOWN, None
    worst = max(counted, key=lambda f: f.verdict.severity)
    return worst.verdict, worst
