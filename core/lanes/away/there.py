"""The client on the node: measures, and sends each event as it happens to the controller that started it.

It ends when its input does, or when no sign of life has come for a while: a connection that is lost ends it, and
it leaves nothing behind.
"""

from __future__ import annotations

import base64
import contextlib
import os
import platform
import queue
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from lanes import interrupts, measuring
from lanes._version import __version__
from lanes.away import wire
from lanes.bench import codec
from lanes.bench.calibration.envelope import envelope
from lanes.bench.discover import discover
from lanes.bench.plan import Plan
from lanes.errors import LaneError, LanesError
from lanes.instruments import Chosen, choose
from lanes.instruments.base import Subject
from lanes.results.document import REQUESTS, Event, fold
from lanes.structure import structure

_QUEUED = 1000
"""How many messages may wait for a slow connection before the measurement waits too."""
_END_S = 20.0
_FLUSH_S = 5.0


def serve() -> int:
    """Talk to the controller at stdin and stdout, and return the exit code."""
    interrupts.install()
    controller = _Controller()
    try:
        controller.send("hello", **_about())
        with contextlib.ExitStack() as held:
            _serve(controller, held)
        return 0
    except LanesError as error:
        controller.send("error", message=error.message, next_step=error.next_step, exit_code=error.exit_code)
        return error.exit_code
    finally:
        controller.flush()


def _serve(controller: _Controller, held: contextlib.ExitStack) -> None:
    kind, asked = controller.ask()
    if kind == "discover":
        _take_key(asked)
        found = discover(asked["url"], asked["model"], asked["api_key_env"])
        controller.send("ready", endpoint=wire.as_json(found))
        kind, asked = controller.ask()
    _take_key(asked)
    session = measuring.measure(
        _chosen(asked["instruments"]),
        wire.endpoint(asked["endpoint"]),
        codec.from_json(Plan, asked["plan"]),
        _Relay(controller.send, held),
        0,
        Subject(**asked["subject"]),
        wire.findings(asked["findings"]),
        asked["despite"],
        asked["overrides"],
    )
    controller.send("end", session=wire.as_json(session))


def _take_key(asked: Mapping[str, Any]) -> None:
    """Have the API key in this process's own environment, where an endpoint's `api_key_env` points to."""
    if asked["api_key_env"] is not None:
        os.environ[asked["api_key_env"]] = asked["api_key"]


def _about() -> dict[str, Any]:
    held = envelope()
    return {
        "lanes": __version__,
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "calibration": held.name if held else None,
    }


def _chosen(asked: Mapping[str, Mapping[str, Any] | None]) -> tuple[Chosen, ...]:
    chosen: list[Chosen] = []
    for one in choose(asked):
        options, given = one.instrument.options, asked[one.instrument.name]
        if options is not None and given is not None:
            one = attrs.evolve(one, options=structure(given, options, one.instrument.name))
        chosen.append(one)
    return tuple(chosen)


class _Relay:
    """A journal whose events go to the controller. What has ended is remembered, for instruments that ask."""

    def __init__(self, send: Callable[..., None], held: contextlib.ExitStack) -> None:
        self._send, self._held = send, held
        self._made: Path | None = None
        self._events: list[Event] = []

    def record(self, kind: str, **data: Any) -> None:
        if kind != REQUESTS:
            self._events.append(Event(at=time.time(), kind=kind, data=data))
        sent = {name: value for name, value in data.items() if name != "lane"}
        if kind == "instrument-end":
            self._files(data["instrument"])
        self._send("event", kind=kind, data=sent)

    def tell(self, kind: str, **data: Any) -> None:
        if kind == "progress":
            self._send("progress", text=data["text"])

    def document(self) -> dict[str, Any]:
        return fold("", self._events, True)

    def folder(self, lane: int, instrument: str) -> Path:
        if self._made is None:
            # Only for an instrument that leaves files: a client that is killed has no time to clean up.
            made = tempfile.TemporaryDirectory(prefix="lanes-away-", ignore_cleanup_errors=True)
            self._made = Path(self._held.enter_context(made))
        return self._made / instrument

    def _files(self, instrument: str) -> None:
        folder = self._made / instrument if self._made else None
        for path in sorted(folder.iterdir())[: wire.FILES] if folder and folder.is_dir() else ():
            if path.is_file() and path.stat().st_size <= wire.FILE_BYTES:
                content = base64.b64encode(path.read_bytes()).decode()
                self._send("file", instrument=instrument, name=path.name, content=content)


class _Controller:
    """The other end, over stdin and stdout. A thread of its own writes, so that a slow connection does not delay
    what is measured; another one listens."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        # What anything prints must not get between the messages.
        os.dup2(2, 1)
        self._main = threading.main_thread().ident
        self._said: queue.Queue[bytes | None] = queue.Queue(_QUEUED)
        self._heard: queue.Queue[bytes | None] = queue.Queue()
        self._over = False
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, kind: str, /, **data: Any) -> None:
        self._said.put(wire.write(kind, data))

    def ask(self) -> tuple[str, dict[str, Any]]:
        """Wait for the next thing that the controller says. Raises `LaneError` for what is no message."""
        line = self._heard.get()
        if line is None:
            raise KeyboardInterrupt
        try:
            return wire.read(line)
        except wire.Refused as error:
            raise LaneError(f"this is for `lanes bench --from` on another host to start: {error}") from None

    def flush(self) -> None:
        """Send all that was said, in a short time."""
        self._over = True
        if not self._said.full():
            self._said.put(None)
            self._writer.join(_FLUSH_S)

    def _write(self) -> None:
        while (line := self._said.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._out, line) :]
            except OSError:
                self._leave()
                return

    def _listen(self) -> None:
        held = b""
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < wire.SILENCE_S:
            ready, _, _ = select.select([0], [], [], wire.BEAT_S)
            if not ready:
                self._beat()
                continue
            part = os.read(0, 1 << 20)
            if not part:
                break
            heard_at = time.monotonic()
            *lines, held = (held + part).split(b"\n")
            for line in filter(None, lines):
                self._heard.put(line)
            self._beat()
        self._leave()

    def _beat(self) -> None:
        if self._said.empty():
            self._said.put(wire.write("beat", {}))

    def _leave(self) -> None:
        """End this program as Ctrl-C does; soon, whatever it does."""
        if self._over:
            return
        self._over = True
        self._heard.put(None)
        # To the main thread, which may be waiting for something.
        signal.pthread_kill(self._main or 0, signal.SIGTERM)
        time.sleep(_END_S)
        sys.stderr.write("lanes: the connection is gone\n")
        os._exit(1)
