"""Findings as lines: what was asked, the answer, how it is known, and what to do about a no."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lanes import verdicts
from lanes.nodes import Place
from lanes.types import Finding, Kind, Verdict


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """One block a kind, in the order in which the engine answered; within it a line a finding."""
    for kind in dict.fromkeys(finding.kind for finding in findings):
        yield f"{kind.value}: {verdicts.fold(findings, kind)[0].value}"
        for finding in dict.fromkeys(findings):  # of nodes that are alike, the same is said
            if finding.kind is kind:
                yield from _one(finding)


def _one(finding: Finding) -> Iterator[str]:
    yield f"  {finding.question}: {finding.verdict.value} ({finding.evidence.value}): {finding.reason}"
    about = [finding.source]
    if finding.engine_version:
        about.append(f"version {finding.engine_version}")
    if finding.date:
        about.append(finding.date.isoformat())
    yield f"    from {', '.join(about)}"
    if finding.next_step and finding.verdict is not Verdict.RUNNABLE:
        yield f"    next: {finding.next_step}"
    if finding.recheck_when and finding.verdict is not Verdict.RUNNABLE:
        yield f"    look again when {finding.recheck_when}"


def summary(judged: verdicts.Judgement) -> str:
    """The verdict in a word or two: `runnable`, `unrunnable`, `runnable, but unmeasurable`."""
    unmeasurable = judged.status == "unmeasurable"
    return f"{judged.verdict.value}{', but unmeasurable' if unmeasurable else ''}"


def where(place: Place) -> str:
    """`gb10: 4 x GB10, aarch64`: the place, and what is known of its hardware."""
    kinds: dict[str, int] = {}
    for node in place.nodes:
        gpus = {gpu.name for gpu in node.gpus or ()}
        held = f"{len(node.gpus or ())} x {', '.join(sorted(gpus))}" if gpus else "no GPU"
        if node.gpus is None:
            held = "GPUs not known"
        kind = ", ".join(word for word in (held, node.arch) if word)
        kinds[kind] = kinds.get(kind, 0) + 1
    said = "; ".join(f"{count} nodes of {kind}" if count > 1 else kind for kind, count in kinds.items())
    return f"{'this machine' if place.name == 'local' else place.name} ({said})"


def by_kind(findings: Sequence[Finding]) -> dict[str, str]:
    """Kind -> verdict, for programs."""
    return {
        kind.value: verdicts.fold(findings, kind)[0].value
        for kind in Kind
        if any(f.kind is kind for f in findings)
    }
