"""Fold findings into a verdict.

Within a question the strongest evidence wins (OBSERVED > PROBED > DECLARED), and among equals the
worse answer. Across the questions of one kind the worst wins; the kinds stay apart: whether there is a
server to measure says nothing about the hardware. No finding at all is UNKNOWN, never RUNNABLE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from attrs import frozen

from lanes.types import Finding, Kind, Verdict


@frozen(kw_only=True)
class Judgement:
    """What findings come to: `verdict` on running the lane at all, `serving` on measuring it, and the
    `blockers` of both, in the order in which they were found."""

    verdict: Verdict
    serving: Verdict
    blockers: tuple[Finding, ...] = ()

    @property
    def status(self) -> str | None:
        """`unrunnable`, `unmeasurable` (it may run, and there is no server), or None: go on."""
        if self.verdict is Verdict.UNRUNNABLE:
            return "unrunnable"
        return "unmeasurable" if self.serving is Verdict.UNRUNNABLE else None

    @property
    def reason(self) -> str:
        """All blockers in one sentence."""
        return "; ".join(finding.reason for finding in self.blockers)

    @property
    def next_step(self) -> str | None:
        """What to do about the first blocker for which there is something to do."""
        return next((finding.next_step for finding in self.blockers if finding.next_step), None)


def judge(findings: Iterable[Finding], despite: Collection[str] = ()) -> Judgement:
    """Judge a lane; questions named in `despite` are left out: the person goes on against them."""
    counted = [f for f in decisive(findings) if f.question not in despite]
    serving = [f for f in counted if f.kind is Kind.SERVING]
    running = [f for f in counted if f.kind is not Kind.SERVING]
    return Judgement(
        verdict=_worst(running),
        serving=_worst(serving),
        blockers=tuple(f for f in counted if f.verdict is Verdict.UNRUNNABLE),
    )


def fold(
    findings: Iterable[Finding], kind: Kind | None = None, despite: Collection[str] = ()
) -> tuple[Verdict, Finding | None]:
    """The verdict of one kind (or over all), and the finding that decided it."""
    counted = [f for f in decisive(findings) if kind in (None, f.kind) and f.question not in despite]
    if not counted:
        return Verdict.UNKNOWN, None
    worst = max(counted, key=lambda f: f.verdict.severity)
    return worst.verdict, worst


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


def _worst(findings: Collection[Finding]) -> Verdict:
    return max((f.verdict for f in findings), key=lambda v: v.severity, default=Verdict.UNKNOWN)
