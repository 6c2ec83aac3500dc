"""Who owns a run or a lane: a process, told from a later one with the same number by when it started."""

from __future__ import annotations

import os

import attrs


@attrs.frozen(kw_only=True)
class Owner:
    """A process: its pid, and when it started, in seconds since the machine booted (setting the clock
    does not move that)."""

    pid: int
    created: float

    @classmethod
    def me(cls) -> Owner:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Owner:
        return cls(pid=pid, created=_created(pid) or 0.0)

    def alive(self) -> bool:
        return _created(self.pid) == self.created


def _created(pid: int) -> float | None:
    """When a living process started; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The command may hold spaces and brackets; the fields follow its last bracket.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
