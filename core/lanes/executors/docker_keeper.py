"""The keeper of a container: what `keeper.py` is to a process.

It makes the container, copies its log, waits for its end and writes that down, stops it when it is
asked to, or when a `lanes` that owned it is gone, and removes it. It runs on the machine of `lanes`,
wherever the container does, and speaks to that node's Docker engine through one connection.

Started as `python -P -m lanes.executors.docker_keeper FOLDER OWNER_FD`. In FOLDER it reads and writes
what `keeper.py` does; `process.json` holds `container` (see `docker.arguments`) and `host` besides. The
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

from lanes import hosts
from lanes.errors import LanesError
from lanes.executors import docker, keeper

LOST_S = 30.0
"""How long a node's Docker engine may be unreachable before its rank counts as lost."""
POLL_S = 0.5


class ContainerKeeper:
    def __init__(self, folder: str, owner: int) -> None:
        self.folder = Path(folder)
        self.owner: int | None = owner
        self.reason = "exited"
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        self.spec = json.loads((self.folder / "process.json").read_text(encoding="utf-8"))
        self.host = hosts.Host(**self.spec["host"])
        self.environment: dict[str, str] = json.loads(os.environ.pop(docker.ENVIRONMENT, "{}"))

    def run(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.asked_to_stop)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        try:
            with docker.client(self.host) as engine:
                made = docker.create(engine, self.spec["container"], self.environment)
                try:
                    made.start()
                except Exception as error:
                    made.remove(force=True, v=True)
                    self.record(reason="not-started", error=_said(error))
                    return
                how = self.keep(made)
                # Written down first: whoever waits for the end need not wait for the removal.
                self.record(reason=self.reason, **how)
                with contextlib.suppress(Exception):
                    made.remove(force=True, v=True)
        except LanesError as error:
            self.record(reason="not-started", error=error.message)
            return

    def keep(self, made: Any) -> Mapping[str, Any]:
        """Hold the container until it has ended; return how it did."""
        own = os.getpid()
        born = (keeper.stat(own) or (0,))[-1]
        pids = {"pid": own, "born": born, "keeper": own, "keeper_born": born, "started_ns": time.time_ns()}
        copier = threading.Thread(target=self.copy_log, args=(made,), daemon=True)
        copier.start()
        waiter = threading.Thread(target=self.wait, args=(made,), daemon=True)
        waiter.start()
        keeper.write_json(str(self.folder / "pid.json"), pids | {"container": made.id, "image": _image(made)})
        self.watch(waiter)
        if waiter.is_alive():
            self.stop(made, waiter)
        copier.join(5)
        try:
            made.reload()
            return docker.ended(made.attrs["State"])
        except Exception as error:
            self.reason = "lost" if self.reason == "exited" else self.reason
            return {"error": f"{hosts.name(self.host)} does not answer any more ({_said(error)})"}

    def watch(self, waiter: threading.Thread) -> None:
        """Wait until the container has ended or is to end."""
        while waiter.is_alive() and self.reason == "exited":
            watched = [self.wake_read] + ([self.owner] if self.owner is not None else [])
            ready, _, _ = select.select(watched, [], [], POLL_S)
            if self.wake_read in ready:
                os.read(self.wake_read, 512)
            if self.owner is not None and self.owner in ready:
                said = os.read(self.owner, 16)
                if not said and self.reason == "exited":
                    self.reason = "owner-died"
                if not said or b"d" in said:
                    os.close(self.owner)
                    self.owner = None

    def wait(self, made: Any) -> None:
        """Return when the container has ended. Engines that restart break the wait: it is taken up again."""
        down_since: float | None = None
        while True:
            try:
                made.wait(timeout=None)
                return
            except Exception:
                down_since = down_since or time.monotonic()
                if time.monotonic() - down_since > LOST_S:
                    return
                time.sleep(POLL_S)

    def copy_log(self, made: Any) -> None:
        with open(self.folder / "log", "ab", buffering=0) as log, contextlib.suppress(Exception):
            for block in made.logs(stream=True, follow=True):
                log.write(block)

    def asked_to_stop(self, *_: object) -> None:
        if self.reason == "exited":
            self.reason = "stopped"
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"s")

    def stop(self, made: Any, waiter: threading.Thread) -> None:
        """Ask the container to end, and kill it when it does not in time."""
        with contextlib.suppress(Exception):
            made.kill(signal=self.spec.get("signal", "SIGTERM"))
        waiter.join(self.spec.get("patience_s", 10.0))
        if waiter.is_alive():
            with contextlib.suppress(Exception):
                made.kill()
            waiter.join(10)

    def record(self, **how: Any) -> None:
        keeper.write_json(
            str(self.folder / "exit.json"),
            {"code": None, "signal": None, "oom_killed": False, "error": None}
            | how
            | {"at_ns": time.time_ns()},
        )


def _image(made: Any) -> Mapping[str, Any]:
    """What its image really is: a tag may mean another one tomorrow."""
    with contextlib.suppress(Exception):
        held = made.image
        return {"id": held.id, "digests": list(held.attrs.get("RepoDigests") or ())}
    return {}


def _said(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    return " ".join(str(explanation or error).split())[:500]


if __name__ == "__main__":
    ContainerKeeper(sys.argv[1], int(sys.argv[2])).run()
