"""Our own program at work on several nodes at once: `worker.py`, sent over ssh, or run beside us.

A node's program lives no longer than its connection: it hears that we are gone, and ends.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from lanes import hosts
from lanes.errors import StagingError
from lanes.hosts import Host

PING_S = 5.0
TICK_S = 0.5
GRACE_S = 3.0
_BOOT = (
    "import sys\n"
    "if sys.version_info < (3, 8): sys.exit('its python3 is %d.%d, and 3.8 is needed' % sys.version_info[:2])\n"
    "exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), 'lanes', 'exec'))"
)


@frozen(kw_only=True)
class Station:
    """A node that has something to do: its name, and the way to it."""

    name: str
    host: Host


class Listener(Protocol):
    """Hears what the nodes tell, and now and then that time passes."""

    def heard(self, node: str, event: Mapping[str, Any]) -> None: ...

    def tick(self) -> None: ...


def work(
    stations: Sequence[Station], job: Callable[[Station], Mapping[str, Any]], listener: Listener
) -> None:
    """Do each node's job on all of them at once; none begins before all have said that they can.

    Raises StagingError that names the node, and leaves nothing running on any.
    """
    crew = [_Worker(station, job(station)) for station in stations]
    try:
        _together(crew, listener)
    finally:
        for worker in crew:
            worker.release()
        for worker in crew:
            worker.close()


def _together(crew: Sequence[_Worker], listener: Listener) -> None:
    gone = False
    pinged = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for worker in crew:
            selector.register(worker.out, selectors.EVENT_READ, worker)
        while not all(worker.finished for worker in crew):
            for key, _ in selector.select(TICK_S):
                worker = key.data
                events = worker.read()
                if events is None:
                    selector.unregister(worker.out)
                    worker.lost()
                for event in events or ():
                    if event["event"] in ("progress", "line", "waiting", "copied", "exit"):
                        listener.heard(worker.station.name, event)
            # Before the start all nodes are heard: who mends one thing wants to know of the others.
            if not gone and all(worker.ready or worker.problem for worker in crew):
                _complain(crew)
                gone = True
                for worker in crew:
                    worker.send(b"go\n")
            elif gone:
                _complain(crew)
            listener.tick()
            if time.monotonic() - pinged > PING_S:
                pinged = time.monotonic()
                for worker in crew:
                    worker.send(b"\n")


def _complain(crew: Sequence[_Worker]) -> None:
    problems = [worker for worker in crew if worker.problem]
    if not problems:
        return
    told: dict[tuple[str, str | None], list[str]] = {}
    for worker in problems:
        assert worker.problem is not None
        told.setdefault(worker.problem, []).append(
            hosts.name(worker.station.host) if len(crew) == 1 else worker.station.name
        )
    sentences = [f"on {', '.join(names)}: {message}" for (message, _), names in told.items()]
    step = next((step for _, step in told if step), None)
    raise StagingError("; ".join(sentences), step)


class _Worker:
    """Our program on one node."""

    def __init__(self, station: Station, job: Mapping[str, Any]) -> None:
        self.station = station
        self.ready = self.finished = False
        self.problem: tuple[str, str | None] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._rest = b""
        self._lock = threading.Lock()
        python = ["python3" if station.host.ssh else sys.executable, "-I", "-S", "-c", _BOOT]
        self._process = subprocess.Popen(
            hosts.command(station.host, python), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.out = self._process.stdout
        program = importlib.resources.files(__package__).joinpath("worker.py").read_bytes()
        first = f"{len(program)}\n".encode() + program + json.dumps(dict(job)).encode() + b"\n"
        self._lock.acquire()
        threading.Thread(target=self._feed, args=(first,), daemon=True).start()

    def _feed(self, first: bytes) -> None:
        try:
            self._write(first)
        finally:
            self._lock.release()

    def send(self, data: bytes) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._write(data)
            finally:
                self._lock.release()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while data:
                data = data[self._process.stdin.write(data) or 0 :]

    def read(self) -> list[dict[str, Any]] | None:
        """What it told since; None when it will tell no more."""
        data = os.read(self.out.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            # A login script may print what it likes before us.
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    events.append(event)
        for event in events:
            if event["event"] == "ready":
                self.ready = True
            elif event["event"] == "done":
                self.finished = True
            elif event["event"] == "problem":
                self.problem = event["message"], event["step"]
        return events

    def lost(self) -> None:
        """Say why it ended before it was done."""
        if self.finished or self.problem:
            return
        code = self._process.wait()
        self._said.seek(0)
        said = " ".join(self._said.read().decode(errors="replace").split())[-300:]
        ssh = self.station.host.ssh
        if code == 127 and not self.ready:
            self.problem = "there is no python3", "install python3 there (apt-get install python3)"
        elif ssh is not None and code == hosts.SSH_FAILED:
            what = "the connection broke" if self.ready else "it cannot be reached"
            self.problem = f"{what}: {said or 'no answer'}", f"`ssh {ssh}` must work without a password"
            if self.ready:
                self.problem = self.problem[0], "run again when it is back: what was copied is kept"
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.problem = f"the program that stages {how}{': ' + said if said else ''}", "run again"

    def release(self) -> None:
        """Let it hear that we are gone: it ends, and what it started with it."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """Have it end, whatever it does."""
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.out.close()
        self._said.close()
