"""Known failures: tables of what an engine logs when it fails, and the search in them.

An engine's plugin keeps a table of `Known` failures and answers `lanes_diagnose` with `find`. One
failure echoes through the layers above it, so what was said first is the cause, and lines that only
repeat that something failed (`echo=True`) count when nothing better is found on any rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from lanes.types import Cause, Postmortem


@frozen(kw_only=True)
class Known:
    """A failure that is known by a line of the log. `echo`: the line says only that something failed."""

    pattern: re.Pattern[str]
    cause: Cause
    echo: bool = False


def known(
    name: str, pattern: str, meaning: str, advice: str, *, transient: bool = False, echo: bool = False
) -> Known:
    """An entry of a table. `pattern` is searched in each line, case ignored; `transient` says that the
    same launch is worth one retry."""
    cause = Cause(name=name, meaning=meaning, advice=advice, transient=transient)
    return Known(pattern=re.compile(pattern, re.IGNORECASE), cause=cause, echo=echo)


_OOM_KILLED = Cause(
    name="out-of-memory",
    meaning="the system killed the process because memory ran out",
    advice="lower what the lane asks for, or give the node more memory",
)
_SIGNALS = {
    "SIGKILL": Cause(
        name="killed",
        meaning="the process was killed from outside, by a person or by the system for want of memory",
        advice="look at the system's log (dmesg); if memory ran out, lower what the lane asks for",
    ),
    "SIGILL": Cause(
        name="cpu-too-old",
        meaning="the program uses instructions that this CPU does not have",
        advice="use a build for this CPU",
    ),
    "SIGSEGV": Cause(
        name="crashed",
        meaning="the program crashed (SIGSEGV)",
        advice="try another version, and report the log's last lines to its authors",
    ),
    "SIGABRT": Cause(
        name="aborted",
        meaning="the program gave up (SIGABRT), as it does when an assertion fails",
        advice="the log's last lines name the assertion; try another version",
    ),
}


def find(postmortem: Postmortem, table: Sequence[Known], *, got_over: str | None = None) -> tuple[Cause, ...]:
    """The causes of a failure that the table knows, in the order in which they were said.

    Lines before the last match of `got_over` are passed over: what the engine got past is no cause.
    What the HTTP side said is searched too. Without a better cause, the way a process ended is one.
    """
    over = re.compile(got_over) if got_over else None
    told = [c for rank, lines in sorted(postmortem.logs.items()) for c in _in_log(rank, lines, table, over)]
    causes = [cause for cause, echo in told if not echo]
    if postmortem.http:
        named = {cause.name for cause in causes}
        causes += [
            k.cause
            for k in table
            if k.pattern.search(postmortem.http) and not k.echo and k.cause.name not in named
        ]
    ends = sorted(postmortem.exits.items())
    causes += [evolve(_OOM_KILLED, rank=rank) for rank, end in ends if end.oom_killed]
    if not causes:
        # After a cause in the log, an abort is only its echo.
        causes = [evolve(_SIGNALS[end.signal], rank=rank) for rank, end in ends if end.signal in _SIGNALS]
    return tuple(causes or [cause for cause, _ in told])


def _in_log(
    rank: int, lines: Sequence[str], table: Sequence[Known], over: re.Pattern[str] | None
) -> Iterator[tuple[Cause, bool]]:
    passed = [number for number, line in enumerate(lines) if over and over.search(line)]
    seen: dict[str, tuple[Known, list[str]]] = {}
    for line in lines[passed[-1] :] if passed else lines:
        for one in table:
            if one.pattern.search(line):
                seen.setdefault(one.cause.name, (one, []))[1].append(line)
                break
    for one, told in seen.values():
        yield evolve(one.cause, rank=rank, lines=tuple(told[:3])), one.echo
