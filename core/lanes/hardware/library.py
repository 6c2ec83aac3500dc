"""What a scan found, as values that JSON can hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import frozen

from lanes.hardware.rules import Code, CodeKind
from lanes.types import Evidence, Finding, Verdict

_ORDER = list(CodeKind)


@frozen(kw_only=True)
class Library:
    """One binary and the GPU code in it.

    `file` is the path that was scanned, `member` the path inside it where it is an archive.
    `machine` is the host it is built for (`x86_64`), None for GPU code that is a file of its own. `codes` pairs each
    kind of code with the number of pieces; empty for a binary without GPU code.
    """

    file: str
    member: str | None = None
    machine: str | None = None
    codes: tuple[tuple[Code, int], ...] = ()

    @property
    def name(self) -> str:
        """The path that patterns are matched against: the member's, or the file's."""
        return self.member or self.file

    @property
    def data(self) -> bool:
        """Is it GPU code that is a file of its own, which a program loads when it wants to?"""
        return self.machine is None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: `file`, `member`, `machine`, `codes` (a list as in `codes_as_list`)."""
        return {
            "file": self.file,
            "member": self.member,
            "machine": self.machine,
            "codes": codes_as_list(self.codes),
        }


@frozen(kw_only=True)
class Problem:
    """A file, or a member of one, that cannot be read (whole); `reason` completes "cannot be read: "."""

    file: str
    reason: str
    member: str | None = None

    def finding(self) -> Finding:
        """The same as a finding: what is not read is UNKNOWN."""
        return Finding(
            question="sm",
            verdict=Verdict.UNKNOWN,
            reason=f"{self.member or self.file} cannot be read: {self.reason}",
            source=self.file,
            evidence=Evidence.PROBED,
            next_step="Mend what the reason names, or scan another copy of the file.",
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: `file`, `member`, `reason`."""
        return {"file": self.file, "member": self.member, "reason": self.reason}


@frozen(kw_only=True)
class Scan:
    """Every binary that was seen, and what could not be read."""

    libraries: tuple[Library, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def codes(self) -> tuple[tuple[Code, int], ...]:
        """The code of all libraries together, sorted, with counts."""
        return sorted_codes(sum((Counter(dict(library.codes)) for library in self.libraries), Counter()))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: `libraries`, `codes` folded over all of them, `problems`."""
        return {
            "libraries": [library.as_dict() for library in self.libraries],
            "codes": codes_as_list(self.codes),
            "problems": [problem.as_dict() for problem in self.problems],
        }


def sorted_codes(counts: Counter[Code]) -> tuple[tuple[Code, int], ...]:
    """Codes with counts: SASS before PTX, small architectures before large ones."""
    return tuple(sorted(counts.items(), key=lambda item: _rank(item[0])))


def codes_as_list(codes: tuple[tuple[Code, int], ...]) -> list[dict[str, Any]]:
    """JSON-able: for each code its `name` (`sm_90a`), `kind`, `count`, `relocatable`."""
    return [
        {"name": code.name, "kind": code.kind.value, "count": count, "relocatable": code.relocatable}
        for code, count in codes
    ]


def _rank(code: Code) -> tuple[bool, int, int, str, str]:
    return code.relocatable, _ORDER.index(code.kind), len(code.arch), code.arch, code.suffix
