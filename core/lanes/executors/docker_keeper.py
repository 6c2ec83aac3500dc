"""The keeper of a container: what `keeper.py` is to a process.

It makes the container, copies its log, waits for its end and writes that down, stops it when it is
asked to, or when a `lanes` that owned it is gone, and removes it. It runs on the machine of `lanes`,
wherever the container does, and speaks to that node's Docker engine through one connection: that of the `lanes` that
started it, and when that breaks one of its own.

Started as `python -P -m lanes.executors.docker_keeper FOLDER OWNER_FD [SOCKET FD FD]`, the last three as
`lines.Handed` takes them. In FOLDER it reads and writes
what `keeper.py` does; `process.json` holds `container` (see `docker.arguments`) and `host` besides, and `after`,
the rank that is to have started before this one: containers of all ranks are made at once, and start in order. The
container's environment comes in LANES_CONTAINER_ENV, so that it is never on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanes import hosts, lines
from lanes.errors import LanesError
from lanes.executors import docker, keeper

LOST_S = 30.0
"""How long a node's Docker engine may be unreachable before its rank counts as lost."""
POLL_S = 0.5
TURN_S = 0.05
"""How often a rank looks whether it is its turn to start."""


class ContainerKeeper:
    def __init__(self, folder: str, owner: int, handed: lines.Handed | None = None) -> None:
        self.folder = Path(folder)
        self.owner: int | None = owner
        self.reason = "exited"
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        self.spec = json.loads((self.folder / "process.json").read_text(encoding="utf-8"))
        self.host = hosts.Host(**self.spec["host"])
        self.environment: dict[str, str] = json.loads(os.environ.pop(docker.ENVIRONMENT, "{}"))
        self.line = contextlib.ExitStack()
        """The connection to the node, opened anew when it breaks."""
        self.handed = handed
        self.socket = ""
        self.made: Any = None
        """The container, over the present connection."""
        self.how: Mapping[str, Any] = {}
        """How it ended, once it has."""
        self.over = False
        self.news = threading.Condition()
        """That `made` is another, or `over` true."""

    def run(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.asked_to_stop)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        try:
            engine = self.connect()
            with docker.told(self.host, self.socket):
                self.made = docker.create(engine, self.spec["container"], self.environment)
                if not self.turn():
                    # Nothing is written down: what became of the other rank is the reason.
                    self.made.remove(force=True, v=True)
                    return
                docker.started(self.made, self.host)
        except LanesError as error:
            self.record(reason="not-started", error=error.message, step=error.next_step)
            return
        self.keep()
        # Written down first: whoever waits for the end need not wait for the removal.
        self.record(**{**self.how, **({} if self.reason == "exited" else {"reason": self.reason})})
        with contextlib.suppress(Exception):
            self.made.remove(force=True, v=True)
            (self.folder / docker.REMOVED).touch()
        self.line.close()

    def turn(self) -> bool:
        """Wait until the rank that comes before has started; False when it never will, or this one is not to."""
        before = self.spec.get("after")
        if before is None:
            return True
        started = self.folder.with_name(f"rank{before}") / "pid.json"
        while self.reason == "exited" and not started.exists():
            ended = self.folder.parent.glob("rank*/exit.json")
            if any(not file.with_name("pid.json").exists() for file in ended):
                return False
            self.listen(TURN_S)
        return self.reason == "exited"

    def connect(self) -> Any:
        """Open the connection to the node's Docker engine (anew). Raises LaneError."""
        self.line.close()
        handed, self.handed = self.handed, None
        if handed is not None and hosts.leads_on(handed.socket):
            self.socket = self.line.enter_context(contextlib.closing(handed)).socket
            return self.line.enter_context(docker.connected(self.host, self.socket))
        if handed is not None:
            handed.close()
        self.socket = self.line.enter_context(hosts.tunnel(self.host))
        return self.line.enter_context(docker.connected(self.host, self.socket))

    def keep(self) -> None:
        """Hold the container until it has ended."""
        own = os.getpid()
        born = (keeper.stat(own) or (0,))[-1]
        pids = {"pid": own, "born": born, "keeper": own, "keeper_born": born, "started_ns": time.time_ns()}
        copier = threading.Thread(target=self.copy_log, daemon=True)
        copier.start()
        waiter = threading.Thread(target=self.wait, daemon=True)
        waiter.start()
        image = _image(self.made)
        keeper.write_json(str(self.folder / "pid.json"), pids | {"container": self.made.id, "image": image})
        self.watch(waiter)
        if waiter.is_alive():
            self.stop(waiter)
        copier.join(5)

    def watch(self, waiter: threading.Thread) -> None:
        """Wait until the container has ended or is to end."""
        while waiter.is_alive() and self.reason == "exited":
            self.listen(POLL_S)

    def listen(self, seconds: float) -> None:
        """Wait for what the owner says, or a signal."""
        watched = [self.wake_read] + ([self.owner] if self.owner is not None else [])
        ready, _, _ = select.select(watched, [], [], seconds)
        if self.wake_read in ready:
            os.read(self.wake_read, 512)
        if self.owner is not None and self.owner in ready:
            said = os.read(self.owner, 16)
            if not said and self.reason == "exited":
                self.reason = "owner-died"
            if not said or b"d" in said:
                os.close(self.owner)
                self.owner = None

    def wait(self) -> None:
        """Return when the container has ended, or counts as lost. A connection that breaks is opened anew."""
        cut_off = False
        while not self.over:
            how: Mapping[str, Any] | None
            try:
                self.made.wait(timeout=None)
                how = self.ended(cut_off)
            except Exception as error:
                how = self.removed(error)
                if how is None:
                    time.sleep(POLL_S)
                    # An engine that ends breaks the connection too, and may take the container with it.
                    cut_off = cut_off or self.host.ssh is None or hosts.leads_on(self.socket)
                    how = self.reconnect()
                    cut_off = cut_off and self.made.status != "running"
            if how is not None:
                with self.news:
                    self.how, self.over = how, True
                    self.news.notify_all()

    def ended(self, cut_off: bool) -> Mapping[str, Any]:
        """How the container did, by the engine's account; `cut_off`: the engine was away meanwhile."""
        self.made.reload()
        how = docker.ended(self.made.attrs["State"])
        if self.reason == "exited" and not cut_off:
            # One that is being shut down takes no more connections, and then ends its containers.
            with docker.connected(self.host, self.socket):
                pass
        if not cut_off:
            return how
        where = hosts.name(self.host)
        return how | {
            "reason": "cut-off",
            "error": f"the Docker engine on {where} stopped, and the container with it",
            "step": f"`journalctl -u docker` on {where} tells why it did; run again when it is up",
        }

    def removed(self, error: Exception) -> Mapping[str, Any] | None:
        """That the container is gone, if the error says so."""
        import docker.errors

        if not isinstance(error, docker.errors.NotFound):
            return None
        where = hosts.name(self.host)
        return {
            "reason": "removed",
            "error": f"somebody removed its container on {where}",
            "step": f"ask who else uses {where}, and run again",
        }

    def reconnect(self) -> Mapping[str, Any] | None:
        """Find the container again; when that takes too long, return how it ended, as far as one can tell."""
        deadline = time.monotonic() + LOST_S
        while True:
            try:
                engine = self.connect()
                with docker.told(self.host, self.socket):
                    try:
                        made = engine.containers.get(self.made.id)
                    except Exception as error:
                        if how := self.removed(error):
                            return how
                        raise
                with self.news:
                    self.made = made
                    self.news.notify_all()
                return None
            except LanesError as error:
                if time.monotonic() > deadline or self.reason != "exited":
                    where = hosts.name(self.host)
                    return {
                        "reason": "lost",
                        "error": error.message,
                        "step": f"when {where} is back, `lanes stop` removes what it still runs",
                    }
            time.sleep(POLL_S)

    def copy_log(self) -> None:
        """Copy what the container prints; over a new connection, what is not there yet."""
        written = 0
        with open(self.folder / "log", "ab", buffering=0) as log:
            while True:
                made, skip = self.made, written
                with contextlib.suppress(Exception):
                    for block in made.logs(stream=True, follow=True):
                        new = block[skip:]
                        skip = max(0, skip - len(block))
                        written += log.write(new) or 0
                with self.news:
                    self.news.wait_for(lambda: self.over or self.made is not made)  # noqa: B023
                    if self.made is made:
                        return

    def asked_to_stop(self, *_: object) -> None:
        if self.reason == "exited":
            self.reason = "stopped"
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"s")

    def stop(self, waiter: threading.Thread) -> None:
        """Ask the container to end, and kill it when it does not in time."""
        with contextlib.suppress(Exception):
            self.made.kill(signal=self.spec.get("signal", "SIGTERM"))
        waiter.join(self.spec.get("patience_s", 10.0))
        if waiter.is_alive():
            with contextlib.suppress(Exception):
                self.made.kill()
            waiter.join(10)

    def record(self, **how: Any) -> None:
        keeper.write_json(
            str(self.folder / "exit.json"),
            {"reason": self.reason, "code": None, "signal": None, "oom_killed": False, "error": None}
            | how
            | {"at_ns": time.time_ns()},
        )


def _image(made: Any) -> Mapping[str, Any]:
    """What its image really is: a tag may mean another one tomorrow."""
    with contextlib.suppress(Exception):
        held = made.image
        return {"id": held.id, "digests": list(held.attrs.get("RepoDigests") or ())}
    return {}


if __name__ == "__main__":
    own, owner, *line = sys.argv[1:]
    given = lines.Handed(line[0], int(line[1]), int(line[2])) if line else None
    ContainerKeeper(own, int(owner), given).run()
