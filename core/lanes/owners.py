"""Who owns a run or a lane: a process, told from a later one with the same number by when it started."""

from __future__ import annotations

import os

import attrs


@attrs.frozen(kw_only=True)
class Owner:
    """A process: its pid, and the Unix time of its start in seconds."""

    pid: int
    created: float

    @classmethod
    def me(cls) -> Owner:
        import psutil

        return cls(pid=os.getpid(), created=psutil.Process().create_time())

    def alive(self) -> bool:
        import psutil

        try:
            found = psutil.Process(self.pid)
            return abs(found.create_time() - self.created) < 1.0 and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True
