"""The keeper: a small process that is the parent of one engine process.

It outlives `lanes`, so it can write down how the engine ended when nobody else could have seen it,
and it stops the engine when a `lanes` that owned it is gone, however that ended.

Started as `python -I keeper.py FOLDER OWNER_FD` in a session of its own, it uses the standard library
alone and is not imported through `lanes`, so that it starts in milliseconds. The engine inherits the
keeper's environment (nothing of it is written to disk). In FOLDER it reads and writes:

    process.json   in:  argv, cwd, signal, patience_s
    log            out: what the engine prints
    pid.json       out: pid, born, keeper, keeper_born, started_ns (born: ticks from the boot to the start)
    exit.json      out: code | signal, oom_killed, reason, error, at_ns

OWNER_FD is the read end of a pipe that the owner holds. The byte `d` detaches; its end without that
means that the owner died. SIGTERM asks the keeper to stop the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

TICK_S = 0.05


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def stat(pid: int) -> tuple[str, int, int, int] | None:
    """State, parent, session and birth (ticks since the machine booted, which no clock that is set can
    move) of a process. None when it is gone. A pid with another birth is another process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The command may hold spaces and brackets; the fields follow its last bracket.
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[3]), int(fields[19])
    return None


def kin(keeper: int) -> list[int]:
    """The living processes that a keeper is answerable for: its descendants (as a subreaper it is the
    parent of every orphan among them) and the members of its session. Empty where there is no /proc."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and int(name) != keeper and (found_out := stat(int(name))) is not None:
            state, parent, session, _ = found_out
            if state not in "ZX":
                parents[int(name)] = parent
                if session == keeper:
                    found.add(int(name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent == keeper or parent in found} - found
        grown = bool(more)
        found |= more
    return sorted(found)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since it booted."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class Keeper:
    def __init__(self, folder: str, owner: int) -> None:
        self.folder = folder
        self.owner: int | None = owner
        self.reason = "exited"
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        os.set_blocking(self.wake_read, False)
        with open(os.path.join(folder, "process.json"), encoding="utf-8") as file:
            self.spec = json.load(file)

    def run(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.asked_to_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        oom_before = oom_kills()
        try:
            engine = self.start()
        except OSError as error:
            self.reason = "not-started"
            # A working directory that is not there is named by the error too.
            which = error.filename or self.spec["argv"][0]
            self.record(error=f"{which}: {error.strerror or error}")
            return
        write_json(
            os.path.join(self.folder, "pid.json"),
            {
                "pid": engine.pid,
                "born": (stat(engine.pid) or (0,))[-1],
                "keeper": os.getpid(),
                "keeper_born": (stat(os.getpid()) or (0,))[-1],
                "started_ns": time.time_ns(),
            },
        )
        code = self.watch(engine)
        self.clear(engine.pid)
        killed = code < 0
        self.record(
            code=None if killed else code,
            signal=signal_name(-code) if killed else None,
            oom_killed=killed and self.reason == "exited" and oom_kills() > oom_before,
        )

    def start(self) -> subprocess.Popen[bytes]:
        with open(os.path.join(self.folder, "log"), "ab", buffering=0) as log:
            return subprocess.Popen(
                self.spec["argv"],
                cwd=self.spec.get("cwd"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                # Ignored signals are inherited over exec: the engine gets the usual ones.
                restore_signals=True,
                preexec_fn=_default_signals,
            )

    def asked_to_stop(self, *_: object) -> None:
        if self.reason == "exited":
            self.reason = "stopped"

    def watch(self, engine: subprocess.Popen[bytes]) -> int:
        """Wait until the engine has ended, or end it when asked; return its exit status."""
        while engine.poll() is None and self.reason == "exited":
            watched = [self.wake_read] + ([self.owner] if self.owner is not None else [])
            ready, _, _ = select.select(watched, [], [], 5.0)
            if self.wake_read in ready:
                os.read(self.wake_read, 512)
            if self.owner is not None and self.owner in ready:
                said = os.read(self.owner, 16)
                if not said and self.reason == "exited":
                    self.reason = "owner-died"
                if not said or b"d" in said:
                    os.close(self.owner)
                    self.owner = None
        if engine.returncode is None:
            self.stop(engine)
        return engine.wait()

    def stop(self, engine: subprocess.Popen[bytes]) -> None:
        """Ask the engine's process group to end, and kill it when it does not in time."""
        wanted = getattr(signal, self.spec.get("signal", "SIGTERM"))
        deadline = time.monotonic() + self.spec.get("patience_s", 10.0)
        self.signal_group(engine.pid, wanted)
        while engine.poll() is None and time.monotonic() < deadline:
            time.sleep(TICK_S)
        self.signal_group(engine.pid, signal.SIGKILL)

    def signal_group(self, group: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def clear(self, group: int) -> None:
        """End what the engine left behind."""
        self.signal_group(group, signal.SIGKILL)
        for _ in range(100):
            left = kin(os.getpid())
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            if not left:
                break
            time.sleep(TICK_S)

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def record(self, **how: Any) -> None:
        write_json(
            os.path.join(self.folder, "exit.json"),
            {"code": None, "signal": None, "oom_killed": False, "error": None}
            | how
            | {"reason": self.reason, "at_ns": time.time_ns()},
        )


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def become_subreaper() -> None:
    """Have orphans of the engine come to us instead of to pid 1, which in a container may never reap."""
    with contextlib.suppress(Exception):
        import ctypes

        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


if __name__ == "__main__":
    become_subreaper()
    Keeper(sys.argv[1], int(sys.argv[2])).run()
