"""Do these files hold code for that GPU, and which library decides?"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from typing import Any

from attrs import evolve, frozen

from lanes.hardware.library import Library, Problem, Scan
from lanes.hardware.rules import Answer, Code, CodeKind, runs_on
from lanes.hardware.targets import Target
from lanes.types import Evidence, Finding, Verdict

QUESTION = "sm"
HOST_QUESTION = "host_arch"
MAX_SOURCES = 3
"""Files that a finding's source names."""


@frozen(kw_only=True)
class LibraryAnswer:
    """What one library means for the target; `decides` says whether the verdict hangs on it."""

    library: Library
    answer: Answer
    decides: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: `library`, `verdict`, `reason`, `condition`, `decides`."""
        return {
            "library": self.library.name,
            "verdict": self.answer.verdict.value,
            "reason": self.answer.reason,
            "condition": self.answer.condition,
            "decides": self.decides,
        }


@frozen(kw_only=True)
class Judgement:
    """The verdict as findings (one on the GPU code, one on the host where it is known), and its grounds."""

    target: Target
    findings: tuple[Finding, ...]
    libraries: tuple[LibraryAnswer, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return max((finding.verdict for finding in self.findings), key=lambda verdict: verdict.severity)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: `target`, `verdict`, `findings` (as Finding's fields), `judged` (per library)."""
        return {
            "target": self.target.arch,
            "gpu": self.target.model.name if self.target.model else None,
            "verdict": self.verdict.value,
            "findings": [
                {
                    "question": finding.question,
                    "verdict": finding.verdict.value,
                    "reason": finding.reason,
                    "source": finding.source,
                    "evidence": finding.evidence.value,
                    "next_step": finding.next_step,
                }
                for finding in self.findings
            ],
            "judged": [one.as_dict() for one in self.libraries],
        }


def verdict(scan: Scan, target: Target, deciding: Sequence[str] | None = None) -> Judgement:
    """Judge what was scanned for one target.

    `deciding` are patterns (`*common_ops*`) of the libraries that will be loaded: the worst of them
    decides, all others only inform. Without it every library with code for GPUs of the target's make
    counts, and where they disagree nobody knows which are loaded: UNKNOWN. A deciding library without
    machine code is UNKNOWN too, since it compiles at first use, and so are files that could not be read.
    Every finding is PROBED.
    """
    unfinished = {(problem.file, problem.member): problem.reason for problem in scan.problems}
    answers = []
    for library in scan.libraries:
        named = deciding is not None and _matches(library, deciding)
        decides = named if deciding is not None else _counts(library, target)
        answer = answer_for(library, target)
        if why := unfinished.get((library.file, library.member)):
            # What was not read may be the code that matters.
            answer = Answer(verdict=Verdict.UNKNOWN, reason=f"it cannot be read whole: {why}")
        answers.append(LibraryAnswer(library=library, answer=answer, decides=decides))
    chosen = [answer for answer in answers if answer.decides]
    source = _source(scan)
    code = _code_finding(chosen, target, source, named=deciding is not None)
    unread = [problem for problem in scan.problems if deciding is None or _named(problem, deciding)]
    if unread and code.verdict is not Verdict.UNRUNNABLE:
        code = evolve(unread[0].finding(), source=source)
    if deciding is not None and not chosen and not unread:
        code = _finding(Verdict.UNKNOWN, f"no library matches {', '.join(deciding)}", source,
                        "Name libraries as `lanes scan` lists them.")  # fmt: skip
    host = _host_finding(chosen or answers, target, source)
    return Judgement(target=target, findings=(code, host) if host else (code,), libraries=tuple(answers))


def _source(scan: Scan) -> str:
    files = sorted({library.file for library in scan.libraries})
    more = f" and {len(files) - MAX_SOURCES} more" if len(files) > MAX_SOURCES else ""
    return ", ".join(files[:MAX_SOURCES]) + more or "nothing was scanned"


def answer_for(library: Library, target: Target) -> Answer:
    """The best that one library offers the target; UNKNOWN, never no, where it holds no machine code."""
    loadable = [code for code, _ in library.codes if _fits(code, target) and not code.relocatable]
    answers = [runs_on(code, target) for code in sorted(loadable, key=_preference)]
    if not any(code.kind in (CodeKind.SASS, CodeKind.PTX, CodeKind.AMD) for code in loadable):
        return _no_code(library, target)
    # A driver takes machine code that it believes compatible; PTX helps only where there is none.
    ready = [one for one in answers if one.condition is None and one.verdict is not Verdict.UNRUNNABLE]
    best = min(ready or answers, key=lambda answer: answer.verdict.severity)
    if best.verdict is Verdict.RUNNABLE:
        # A library has many pieces, and each has the code that its author chose for it.
        doubts = [one.reason for one in ready if one.verdict is Verdict.UNKNOWN]
        return evolve(best, reason="; where a piece holds nothing better, ".join([best.reason, *doubts[:1]]))
    if best.verdict is Verdict.UNRUNNABLE:
        if all(code.kind is CodeKind.PTX for code in loadable):
            return Answer(
                verdict=Verdict.UNKNOWN,
                reason=f"it holds no machine code, and its PTX does not help: {answers[-1].reason}",
            )
        held = ", ".join(code.name for code in loadable)
        return evolve(
            best, reason=f"none of its code ({held}) runs on {target.label}: {_nearest(loadable, target)}"
        )
    return best


def _no_code(library: Library, target: Target) -> Answer:
    make = "AMD" if target.vendor == "amd" else "NVIDIA"
    if library.codes and not any(_fits(code, target) for code, _ in library.codes):
        reason = f"it holds no code for {make} GPUs"
    elif library.codes:
        reason = "it holds only code that has to be linked before it can be loaded"
    else:
        reason = (
            "it holds no GPU code: kernels are compiled at first use, loaded from elsewhere, or not there"
        )
    return Answer(verdict=Verdict.UNKNOWN, reason=reason)


def _nearest(codes: list[Code], target: Target) -> str:
    same = [code for code in codes if code.kind is CodeKind.SASS and int(code.arch[:-1]) == target.major]
    return runs_on((same or codes)[-1], target).reason


def _code_finding(chosen: list[LibraryAnswer], target: Target, source: str, *, named: bool) -> Finding:
    if not chosen:
        return _finding(Verdict.UNKNOWN, f"no library holds code for GPUs of {target.label}'s make: "
                        "kernels may be compiled at first use", source)  # fmt: skip
    severities = [one.answer.verdict.severity for one in chosen]
    worst = max(chosen, key=lambda one: one.answer.verdict.severity)
    if not named and min(severities) != max(severities):
        by_verdict = Counter(one.answer.verdict for one in chosen)
        best = min(chosen, key=lambda one: one.answer.verdict.severity)
        counts = ", ".join(f"{by_verdict[v]} {v.value}" for v in Verdict if by_verdict[v])
        return _finding(
            Verdict.UNKNOWN,
            f"the libraries disagree ({counts}), and which of them are loaded is not known: in {best.library.name} "
            f"{best.answer.reason}; in {worst.library.name} {worst.answer.reason}",
            source,
            "Name the libraries that the chosen backends load (--decides).",
        )
    return _finding(
        worst.answer.verdict, f"{worst.library.name}: {worst.answer.reason}", source, worst.answer.condition
    )


def _host_finding(answers: list[LibraryAnswer], target: Target, source: str) -> Finding | None:
    machines = {one.library.machine for one in answers if one.library.machine}
    if target.host_arch is None or not machines:
        return None
    foreign = sorted(machines - {target.host_arch})
    reason = (
        f"built for {', '.join(foreign)}, and {target.label} sits in {target.host_arch} hosts"
        if foreign
        else f"built for {target.host_arch}, as the hosts of {target.label} are"
    )
    return Finding(
        question=HOST_QUESTION,
        verdict=Verdict.UNRUNNABLE if foreign else Verdict.RUNNABLE,
        reason=reason,
        source=source,
        evidence=Evidence.PROBED,
        next_step=f"Take the build for {target.host_arch}." if foreign else None,
    )


def _finding(verdict: Verdict, reason: str, source: str, next_step: str | None = None) -> Finding:
    return Finding(
        question=QUESTION,
        verdict=verdict,
        reason=reason,
        source=source,
        evidence=Evidence.PROBED,
        next_step=next_step[:1].upper() + next_step[1:] if next_step else None,
    )


def _fits(code: Code, target: Target) -> bool:
    return (code.kind is CodeKind.AMD) == (target.vendor == "amd")


def _counts(library: Library, target: Target) -> bool:
    # Code shipped as data files (Triton's, FlashInfer's cubins) is picked by a program: never a no.
    return not library.data and any(_fits(code, target) for code, _ in library.codes)


def _preference(code: Code) -> tuple[int, str, int]:
    """Which of several codes that all run is named: the most specific one."""
    return ["a", "f", ""].index(code.suffix), code.kind.value, -int(code.arch) if code.arch.isdigit() else 0


def _matches(library: Library, patterns: Sequence[str]) -> bool:
    return any(_match(library.name, pattern) for pattern in patterns)


def _named(problem: Problem, patterns: Sequence[str]) -> bool:
    # An archive that cannot be opened at all may have held the deciding library.
    name = problem.member or problem.file
    return any(_match(name, pattern) for pattern in patterns) or (
        problem.member is None and ".so" not in name.rpartition("/")[2]
    )


def _match(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)
