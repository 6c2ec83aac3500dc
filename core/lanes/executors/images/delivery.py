"""Bring an image from the engine that has it to those that lack it: once over each link, and only what is missing.

Where the nodes reach one another, each hands on to the next what comes in, so that a slow link to the controller
is crossed once; where one cannot be reached from the node before it, the controller feeds it itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.resources
import json
import os
import secrets
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from attrs import field, frozen

from lanes import hosts
from lanes.errors import StagingError
from lanes.executors.images.held import Held
from lanes.hosts import Host

TICK_S = 0.5
GRACE_S = 3.0
PIPE = 1 << 20
"""Bytes that a pipe may hold, where the system allows as much."""
NEWS_OF_CAUSE_S = 20.0
"""So long after a broken connection the node that broke it may be heard of: ssh notices in 15 s."""
_BOOT = (
    "import sys\n"
    "if sys.version_info < (3, 8): sys.exit('its python3 is %d.%d, and 3.8 is needed' % sys.version_info[:2])\n"
    "exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), 'lanes', 'exec'))"
)


@frozen(kw_only=True)
class Stop:
    """A node on the way: its name, the way to it, its address between the nodes (None: not known), how many
    of the image's layers its engine has, the engine's folder, and whether it keeps images in containerd."""

    name: str
    host: Host
    address: str | None = None
    have: int = 0
    root: str = "/var/lib/docker"
    containerd: bool = False


@frozen(kw_only=True)
class Order:
    """What is brought: the image, its tags there, and the bytes that each number of layers already there leaves
    to bring (None: not known)."""

    image: Held
    tags: tuple[str, ...]
    left: Mapping[int, int] = field(factory=dict)


@frozen(kw_only=True)
class Moved:
    """What it took to bring an image to a node."""

    bytes: int
    seconds: float
    fed_by: str
    """The node, or this machine, that it came from."""


Tell = Callable[[Mapping[str, int]], None]
"""Hears how many bytes each node has got."""


def deliver(order: Order, source: Stop, targets: Sequence[Stop], tell: Tell) -> dict[str, Moved]:
    """Bring the image to all targets at once; return what it took, by the names of the nodes.

    Raises StagingError that names the node, and leaves no program running on any. Layers that got there stay.
    """
    # A node further down needs no more than those before it.
    chain = sorted(targets, key=lambda one: one.have)
    token = secrets.token_urlsafe(24)
    crew = [
        _Courier(order, source, token, export=True, have=chain[0].have, oci=any(t.containerd for t in chain))
    ]
    began = time.monotonic()
    try:
        crew += [_Courier(order, one, token) for one in chain]
        _Transfer(crew, tell, began).carry_out()
        return {one.stop.name: one.moved(began) for one in crew[1:]}
    finally:
        for one in crew:
            one.release()
        for one in crew:
            one.close()


class _Transfer:
    def __init__(self, crew: Sequence[_Courier], tell: Tell, began: float) -> None:
        self.crew, self.tell = crew, tell
        self.source, self.sinks = crew[0], crew[1:]
        self._broken_since: float | None = None

    def carry_out(self) -> None:
        with selectors.DefaultSelector() as selector:
            for one in self.crew:
                selector.register(one.events, selectors.EVENT_READ, one)
            self._until(selector, lambda one: one.ready)
            self._link()
            self._until(selector, lambda one: one.linked is not None)
            self._go()
            self._until(selector, lambda one: one.finished)

    def _until(self, selector: selectors.BaseSelector, done: Callable[[_Courier], bool]) -> None:
        """Hear them until that is so of all. Raises StagingError for what goes wrong."""
        while not all(map(done, self.crew)):
            for key, _ in selector.select(TICK_S):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.lost()
            self._complain()
            self.tell({one.stop.name: one.received for one in self.sinks})

    def _complain(self) -> None:
        broken = [one for one in self.crew if one.problem]
        if not broken:
            return
        # One that ends pulls down its neighbours, and may be heard after them: they wait for the cause.
        first = next((one for one in broken if one.cause), None)
        self._broken_since = self._broken_since or time.monotonic()
        if first is None and time.monotonic() - self._broken_since < NEWS_OF_CAUSE_S:
            return
        first = first or broken[0]
        assert first.problem is not None
        message, step = first.problem
        raise StagingError(f"on {first.stop.name}: {message}", step)

    def _link(self) -> None:
        """Have each node try to reach the next one."""
        for one, after in zip(self.crew, [*self.sinks, None], strict=True):
            if one.stop.host.ssh is not None and after is not None and after.port is not None:
                one.say({"address": after.stop.address, "port": after.port, "have": after.stop.have})
            else:
                one.linked = False
                one.say(None)

    def _go(self) -> None:
        """Say who is fed by whom: a node that the one before it does not reach is fed from here."""
        fed = [after for one, after in zip(self.crew, self.sinks, strict=False) if not one.linked]
        for one, before in zip(self.sinks, self.crew, strict=False):
            one.fed_by = before.stop.name if before.linked else hosts.name(hosts.HERE)
            one.say({"stdout": None, "upstream": bool(before.linked)})
        least = min((one.stop.have for one in fed), default=None)
        self.source.say({"stdout": least, "upstream": False})
        if fed:
            stream, self.source.stream = self.source.stream, None
            threading.Thread(target=_pump, args=(stream, [one.stdin for one in fed]), daemon=True).start()


def _pump(stream: IO[bytes], outputs: Sequence[IO[bytes]]) -> None:
    """Give to each what comes from the stream."""
    with stream, contextlib.suppress(OSError, ValueError):
        if len(outputs) == 1 and hasattr(os, "splice"):
            # From pipe to pipe within the kernel.
            while os.splice(stream.fileno(), outputs[0].fileno(), PIPE):
                pass
            return
        while block := stream.read(PIPE):
            for output in outputs:
                view = memoryview(block)
                while view:
                    view = view[output.write(view) or 0 :]


def _quick(ssh: str, target: str) -> list[str]:
    """The ciphers that the user's ssh may use, those first that processors have instructions for: of what ssh prefers
    an image takes twice the time."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            [ssh, "-G", "--", target], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True
        ).stdout  # fmt: skip
        allowed = next(line.split()[1] for line in told.splitlines() if line.startswith("ciphers ")).split(
            ","
        )
        if quick := [one for one in allowed if "-gcm" in one]:
            return ["-c", ",".join([*quick, *(one for one in allowed if one not in quick)])]
    return []


class _Courier:
    """Our program on a node, or beside us."""

    def __init__(
        self,
        order: Order,
        stop: Stop,
        token: str,
        export: bool = False,
        have: int | None = None,
        oci: bool = False,
    ) -> None:
        self.stop = stop
        self.ready = self.finished = self.cause = False
        self.linked: bool | None = None
        self.port: int | None = None
        self.received = 0
        self.fed_by = ""
        self.problem: tuple[str, str | None] | None = None
        self._took: float | None = None
        self._said: list[str] = []
        self._rest = b""
        have = stop.have if have is None else have
        needed = order.left.get(have) or 0
        job = {
            "socket": stop.host.docker or (None if stop.host.ssh else hosts.local_socket(stop.host)),
            "layers": order.image.layers,
            "have": have,
            "export": order.image.id if export else None,
            "listen": None if export or stop.host.ssh is None else stop.address,
            "token": token,
            "root": stop.root,
            "needed": needed,
            "tags": order.tags,
            "architecture": order.image.architecture,
            "os": order.image.os,
            "oci": oci,
        }
        python = ["python3" if stop.host.ssh else sys.executable, "-I", "-S", "-c", _BOOT]
        command = hosts.command(stop.host, python)
        if stop.host.ssh is not None:
            command[1:1] = _quick(command[0], stop.host.ssh)
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True,
            stdout=subprocess.PIPE if export else subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stderr is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.events: IO[bytes] = self.process.stderr
        self.stream = self.process.stdout
        """What it sends on, until somebody reads it."""
        for pipe in (self.stdin, self.stream):
            with contextlib.suppress(OSError):
                if pipe is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
                    fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE)
        program = importlib.resources.files(__package__).joinpath("courier.py").read_bytes()
        self._write(f"{len(program)}\n".encode() + program)
        self.say(job)

    def say(self, value: Any) -> None:
        self._write(json.dumps(value).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data:
                data = data[self.stdin.write(data) or 0 :]

    def read(self) -> bool:
        """Take in what it told since; False when it will tell no more."""
        data = os.read(self.events.fileno(), 1 << 16)
        if not data:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = None
            with contextlib.suppress(ValueError):
                event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                self._heard(event)
            else:
                self._said.append(line.decode(errors="replace"))  # ssh's own words, or a login script's
        return True

    def _heard(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "ready":
            self.ready, self.port = True, event["port"]
        elif kind == "linked":
            self.linked = event["linked"]
        elif kind in ("progress", "done"):
            self.received = event["received"]
            if kind == "done":
                self.finished, self._took = True, time.monotonic()
        elif kind == "problem":
            self.problem = event["message"], event["step"]
            self.cause = not event.get("neighbour", False)

    def lost(self) -> None:
        """Say why it ended before it was done."""
        if self.finished or self.problem:
            return
        code = self.process.wait()
        said = " ".join(" ".join(self._said).split())[-300:]
        ssh = self.stop.host.ssh
        self.cause = True
        if code == 127 and not self.ready:
            self.problem = "there is no python3", "install python3 there (apt-get install python3)"
        elif ssh is not None and code == 255:
            what = "the connection broke" if self.ready else "it cannot be reached"
            step = "run again when it is back: the layers that are there are not sent again"
            self.problem = (
                f"{what}: {said or 'no answer'}",
                step if self.ready else f"`ssh {ssh}` must work without a password",
            )
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.problem = f"the program that brings images {how}{': ' + said if said else ''}", "run again"

    def moved(self, began: float) -> Moved:
        assert self._took is not None
        return Moved(bytes=self.received, seconds=round(self._took - began, 3), fed_by=self.fed_by)

    def release(self) -> None:
        """Let it hear that we are gone: it ends."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def close(self) -> None:
        """Have it end, whatever it does."""
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.events.close()
        if self.stream is not None:
            self.stream.close()
