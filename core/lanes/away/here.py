"""The controller's side: start the client on a host, tell it what to measure, and journal what it finds."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import selectors
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from lanes import describe, hosts
from lanes._version import __version__
from lanes.away import wire
from lanes.bench import codec
from lanes.bench.discover import normalize
from lanes.bench.http import api_key
from lanes.errors import LaneError, LanesError, Unrunnable, UsageError
from lanes.hosts import Host
from lanes.interrupts import held_off
from lanes.journal import Events
from lanes.measuring import Session
from lanes.types import Endpoint, Finding

if TYPE_CHECKING:
    from lanes.bench.plan import Plan
    from lanes.instruments import Chosen
    from lanes.instruments.base import Subject

_START = 'PATH=$PATH:$HOME/.local/bin; exec "$@"'
"""Where pip and pipx put `lanes` for a user is not on the path of every login."""
_NOT_THERE = (126, 127)
_HELLO_S = 60.0
_DRAIN_S = 10.0
_TAIL = 4000
_ERRORS: dict[int, type[LanesError]] = {2: UsageError, 3: Unrunnable}

INSTALL = f"pip install lanes-core=={__version__}"


@attrs.frozen(kw_only=True)
class Vantage:
    """From where to measure: a host, and the path of the interpreter there that has `lanes` (None: `lanes` is on
    the path)."""

    host: Host
    python: str | None = None

    def client(self) -> Client:
        return Client(self.host, self.python)

    def check(self, addresses: Iterable[str]) -> None:
        """Find out, before anything is started, what would be in the way of measuring servers at these hosts.
        Raises `UsageError` and `LaneError`."""
        for one in addresses:
            reachable(f"http://[{one}]" if ":" in one else f"http://{one}", hosts.name(self.host))
        with self.client():
            pass

    def measure(self, *arguments: Any) -> Session:
        """As `measuring.measure`, by a client that is started for it."""
        with self.client() as client:
            return client.measure(*arguments)


class Client:
    """`lanes` on another host, as the client of a measurement. Use it as a context manager: entering starts it.

    `about` is what it says of its host. Raises `LaneError` when the host cannot be reached or has no `lanes` of this
    version, and whenever the connection is lost or what comes over it is not believed.
    """

    def __init__(self, host: Host, python: str | None = None) -> None:
        self._host, self._python = host, python
        self._name = hosts.name(host)
        self.about: dict[str, Any] = {}
        self._held = bytearray()
        self._looked = 0
        self._total = 0
        self._files = 0
        self._tail = b""

    def __enter__(self) -> Client:
        lanes = ["lanes"] if self._python is None else [self._python, "-P", "-m", "lanes"]
        argv = ["sh", "-c", _START, "lanes", *lanes, "bench", "--away"]
        try:
            self._process = subprocess.Popen(
                hosts.command(self._host, argv),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                # Ctrl-C is for us: the client is to end in order.
                start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise LaneError("there is no ssh on this machine", "install it") from None
        try:
            self._hello()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    # -- What it is asked --------------------------------------------------------------------------

    def discover(self, url: str, model: str | None, api_key_env: str | None) -> Endpoint:
        """The endpoint at a URL as that host sees it: `bench.discover` there."""
        url = reachable(url, self._name)
        self._say("discover", url=url, model=model, **_key(api_key_env))
        for kind, data in self._messages():
            if kind == "ready":
                try:
                    found = wire.endpoint(data.get("endpoint"))
                except wire.Refused as error:
                    raise self._rubbish(str(error)) from None
                # Where it is, and by which name the key is known, is ours to say.
                dialect = attrs.evolve(found.dialect, api_key_env=api_key_env)
                return Endpoint(url=url, model=wire.sentence(found.model) or "unknown", dialect=dialect)
            self._other(kind, data)
        raise self._lost()

    def reaches(self, url: str) -> None:
        """Raises `UsageError` for a URL that means another server there than here."""
        reachable(url, self._name)

    def measure(
        self,
        chosen: Sequence[Chosen],
        endpoint: Endpoint,
        plan: Plan,
        journal: Events,
        lane: int,
        subject: Subject,
        findings: Sequence[Finding] = (),
        despite: Collection[str] = (),
        overrides: Sequence[str] = (),
    ) -> Session:
        """As `measuring.measure`, once. Each event is in the journal as soon as it came; when the connection is lost,
        what came before is kept, and the lane has failed."""
        reachable(endpoint.url, self._name)
        self._say(
            "measure",
            endpoint=wire.as_json(endpoint),
            **_key(endpoint.dialect.api_key_env),
            instruments={
                one.instrument.name: describe.plain(one.options) if attrs.has(type(one.options)) else None
                for one in chosen
            },
            plan=codec.as_json(plan),
            subject={
                "name": subject.name,
                "engine": subject.engine,
                "recipe": subject.recipe,
                "environment": dict(subject.environment),
            },
            findings=[wire.as_json(one) for one in findings],
            despite=list(despite),
            overrides=list(overrides),
        )
        journal.record("environment", lane=lane, environment={**subject.environment, "client": self.about})
        record = _Record(journal, lane, tuple(one.instrument.name for one in chosen))
        try:
            return self._follow(record)
        except LaneError as error:
            record.cut(error.message)
            step = error.next_step or "what had come is kept; measure again"
            return Session(status="failed", reason=error.message, next_step=step, served=True)
        except KeyboardInterrupt:
            self._drain(record)
            raise

    # -- Parts -------------------------------------------------------------------------------------

    def _hello(self) -> None:
        began = time.monotonic()
        for kind, data in self._messages():
            if kind == "hello":
                self.about = self._introduced(data)
                return
            if kind != "beat" or time.monotonic() - began > _HELLO_S:
                raise self._rubbish(f"{kind[:40]!r} came first")
        raise self._absent()

    def _introduced(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What the client says of its host. Raises `LaneError` for another version than ours."""
        told = wire.sentence(data.get("lanes")) or "of an unknown version"
        if told != __version__:
            raise LaneError(
                f"lanes on {self._name} is {told[:40]}, and here {__version__}: both must be the same",
                f"`{INSTALL}` there, or another one here",
            )
        return {
            "from": self._name,
            "host": wire.sentence(data.get("host")),
            "lanes": told,
            **{name: wire.sentence(data.get(name)) for name in ("kernel", "python", "calibration")},
            "cpus": data["cpus"] if isinstance(data.get("cpus"), int) else None,
        }

    def _follow(self, record: _Record) -> Session:
        for kind, data in self._messages():
            try:
                if kind == "end":
                    return wire.ended(data.get("session"))
                if kind == "event":
                    record.event(data)
                elif kind == "progress":
                    record.progress(data)
                elif kind == "file" and self._files < wire.FILES:
                    self._files += 1
                    record.file(data)
                else:
                    self._other(kind, data)
            except wire.Refused as error:
                raise self._rubbish(str(error)) from None
        raise self._lost()

    def _other(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "error":
            code = data.get("exit_code")
            made = _ERRORS.get(code, LaneError) if isinstance(code, int) else LaneError
            message = wire.sentence(data.get("message")) or "it failed"
            raise made(f"{message} (seen from {self._name})", wire.sentence(data.get("next_step")))
        if kind != "beat":
            raise self._rubbish(f"{kind[:40]!r} was not to come")

    def _drain(self, record: _Record) -> None:
        """End the client in order, and keep what it had sent."""
        with held_off() as hurry, contextlib.suppress(LanesError, wire.Refused):
            self._hang_up()
            until = time.monotonic() + _DRAIN_S
            for kind, data in self._messages(poll_s=0.2):
                if kind == "event":
                    record.event(data)
                if hurry.asked or time.monotonic() > until:
                    return

    def _messages(self, poll_s: float = 1.0) -> Iterator[tuple[str, wire.Data]]:
        """Yield what it says until it has nothing more to say, with signs of life in between."""
        out, err = self._process.stdout, self._process.stderr
        assert out is not None and err is not None
        yield from self._lines()
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            heard = beaten = time.monotonic()
            while True:
                ready = {key.fileobj for key, _ in selector.select(poll_s)}
                now = time.monotonic()
                if now - beaten >= wire.BEAT_S:
                    beaten = now
                    self._write(b"\n")
                if err in ready and not self._hear(err.fileno()):
                    selector.unregister(err)
                if out in ready:
                    heard = now
                    part = os.read(out.fileno(), 1 << 20)
                    if not part:
                        return
                    self._held += part
                    self._total += len(part)
                    yield from self._lines()
                elif now - heard > wire.SILENCE_S:
                    raise LaneError(
                        f"{self._name} gave no sign of life for {wire.SILENCE_S:.0f} s", "is it up?"
                    )

    def _lines(self) -> Iterator[tuple[str, wire.Data]]:
        while (end := self._held.find(b"\n", self._looked)) >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 1]
            self._looked = 0
            try:
                yield wire.read(line)
            except wire.Refused as error:
                raise self._rubbish(str(error)) from None
        self._looked = len(self._held)
        if self._looked > wire.LINE_BYTES or self._total > wire.TOTAL_BYTES:
            raise self._rubbish("it is more than any measurement has to say")

    def _hear(self, fd: int) -> bool:
        part = os.read(fd, 1 << 16)
        self._tail = (self._tail + part)[-_TAIL:]
        return bool(part)

    def _say(self, kind: str, **data: Any) -> None:
        self._write(wire.write(kind, data))

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # That nobody listens is told by what does not come back.
        with contextlib.suppress(OSError, ValueError):
            while data:
                data = data[self._process.stdin.write(data) or 0 :]

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _close(self) -> None:
        self._hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _code(self) -> int | None:
        """How it ended, with all that it said of it."""
        self._hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        assert self._process.stderr is not None
        if self._process.poll() is not None:
            while self._hear(self._process.stderr.fileno()):
                pass
        return self._process.returncode

    def _last_words(self) -> str:
        lines = self._tail.decode("utf-8", "replace").strip().splitlines()
        return (wire.sentence(lines[-1]) or "")[:300] if lines else ""

    def _absent(self) -> LaneError:
        """Why it did not even say hello."""
        code, said = self._code(), self._last_words()
        if code == hosts.SSH_FAILED:
            return LaneError(f"{self._name} cannot be reached: {said}", hosts.advice(self._host))
        path = self._python or "lanes"
        if code in _NOT_THERE or "No module named" in said:
            elsewhere = (
                f"or name the Python that has it with --from-python PATH, if `lanes` is not on the path of "
                f"`ssh {self._name}`"
            )
            what = f"there is no lanes on {self._name}" + (f" for {path}" if self._python else "")
            return LaneError(what, f"`{INSTALL}` there, {elsewhere}")
        if "--away" in said:
            return LaneError(
                f"lanes on {self._name} is of another version, and here {__version__}: both must be the same",
                f"`{INSTALL}` there",
            )
        return LaneError(
            f"{path} on {self._name} did not start as a client: {said or f'exit code {code}'}",
            f"`{INSTALL}` there brings it",
        )

    def _lost(self) -> LaneError:
        code, said = self._code(), self._last_words()
        if code == hosts.SSH_FAILED:
            return LaneError(
                f"the connection to {self._name} was lost: {said or 'ssh does not say why'}",
                f"what had come is kept; {hosts.advice(self._host)}, then measure again",
            )
        return LaneError(
            f"the client on {self._name} ended too early: {said or f'exit code {code}'}",
            "what had come is kept; see what ended it there, and measure again",
        )

    def _rubbish(self, what: str) -> LaneError:
        return LaneError(
            f"what came from {self._name} is not believed: {what}",
            "its login shell should print nothing of its own, and the lanes there should be the one that pip brings",
        )


class _Record:
    """What comes of one lane, into the journal."""

    def __init__(self, journal: Events, lane: int, instruments: Sequence[str]) -> None:
        self._journal, self._lane, self._instruments = journal, lane, instruments
        self._open: str | None = None

    def event(self, data: Mapping[str, Any]) -> None:
        """Raises `Refused`."""
        kind, told = data.get("kind"), data.get("data")
        if not isinstance(kind, str) or not isinstance(told, dict):
            raise wire.Refused("an event has no kind")
        checked = wire.event(kind, told, self._instruments)
        self._journal.record(kind, lane=self._lane, **checked)
        if kind == "instrument":
            self._open = checked["instrument"]
        elif kind == "instrument-end":
            self._open = None

    def progress(self, data: wire.Data) -> None:
        self._journal.tell("progress", lane=self._lane, text=wire.progress(data))

    def file(self, data: wire.Data) -> None:
        """Raises `Refused`."""
        instrument, name, content = wire.file(data, self._instruments)
        folder: Path = self._journal.folder(self._lane, instrument)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    def cut(self, why: str) -> None:
        """Say of the instrument that was at work that it had no end."""
        if self._open is not None:
            self._journal.record(
                "instrument-end", lane=self._lane, instrument=self._open, status="failed", reason=why
            )


def _key(variable: str | None) -> dict[str, str | None]:
    """The API key with the name by which an endpoint refers to it. Raises `UsageError` when it is not set."""
    return {"api_key_env": variable, "api_key": api_key(variable)}


def reachable(url: str, name: str) -> str:
    """The URL, normalised. Raises `UsageError` for one that means another machine there than here."""
    found = normalize(url)
    host = urlsplit(found).hostname or ""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if not (address.is_loopback or address.is_unspecified):
            return found
        host = "localhost"
    if host == "localhost" or host.endswith(".localhost"):
        raise UsageError(
            f"{found} is {name} itself when seen from there, and this machine when seen from here",
            f"give the server's address on the network that {name} is in",
        )
    return found


def host_of(node: str, cluster: str | None) -> Host:
    """The way to a node: of that name in the cluster, else whatever ssh takes. Raises `UsageError`."""
    if cluster is None:
        return Host(ssh=node)
    from lanes import clusters

    found = clusters.find(cluster)
    for one, way in zip(found.nodes, clusters.hosts_of(found), strict=True):
        if one.name == node:
            return way
    names = ", ".join(one.name for one in found.nodes)
    raise UsageError(f"cluster {found.name!r} has no node {node!r}", f"it has {names}")
