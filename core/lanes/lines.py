"""One ssh connection to a host for as long as this program lives, over which all else goes.

A connection costs both ends more than what is done over it, so does a login shell, and an sshd lets only so many
begin at a time. A line is an OpenSSH master in a private folder: a shell at its far end runs one program after the
other, clients of it run what comes meanwhile, and it forwards sockets. It ends with its input, which we hold, or who
we hand it over to: even a kill of this program leaves none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

from attrs import frozen

CONNECT_S = 15.0
FAILED = 255
"""What ssh exits with when it is to blame, and not the program on the host."""
OPENING = 8
"""Connections that are opened at a time. Behind one jump host all nodes have one sshd, which by default lets ten in
that have not said who they are (MaxStartups 10:30:100)."""
_GRACE_S = 2.0
_GREETING = "lanes-line "
_SERVER = f"""
echo "{_GREETING}$DOCKER_HOST"
exec 3>&1
while IFS= read -r mark; do
  program=
  while IFS= read -r line && [ "$line" != "$mark" ]; do program="$program$line
"; done
  said=$( (eval "$program") 2>&1 >&3 3>&- </dev/null)
  printf '%s %s\\n%s%s\\n' "$mark" "$?" "$said" "$mark"
done
"""
"""Runs what is between two lines that are the same; prints what that prints, the line, how it ended, what it said on
stderr, and the line again."""

_TIDY = """trap : TERM; "$@"; rm -rf "$0" """
"""Its folder goes with the master, whoever held it last."""

_opening = threading.BoundedSemaphore(OPENING)
_lines: dict[str, Line] = {}
_locks: dict[str, threading.Lock] = {}
_sockets: dict[str, Line | Handed] = {}


class NoLine(Exception):
    """A line could not be opened: what ssh said."""

    @property
    def refused(self) -> bool:
        """Whether the host answers and does not let us in: a connection of the user's own may already be."""
        return "Permission denied" in str(self)


class Broken(Exception):
    """A line broke under a program: what ssh said."""


@frozen
class Ran:
    """What became of a program: its exit code, and what it printed."""

    code: int
    out: str
    err: str


def options() -> list[str]:
    """ssh, and how it is to behave: it asks nobody, and notices a connection that is lost, whatever it is for."""
    alive = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S:.0f}", *alive]


def line(target: str) -> Line:
    """The line to what ssh calls `target`, opened where there is none, or it broke. Raises NoLine."""
    with _locks.setdefault(target, threading.Lock()):
        there = _lines.get(target)
        if there is None or not there.lives():
            if there is not None:
                there.close()
            with _opening:
                there = _lines[target] = Line(target)
        return there


def behind(socket: str) -> Line | Handed | None:
    """The line that a socket of `Line.socket` leads over."""
    return _sockets.get(socket)


class Line:
    """A connection; `docker_host` is DOCKER_HOST as programs see it there. Raises NoLine.

    Where a socket that it shall lead to is known beforehand (`remote`), that costs nothing.
    """

    def __init__(self, target: str, remote: str | None = None) -> None:
        self.target = target
        # Names of sockets are short: about a hundred characters, of which ssh wants some for itself.
        self._folder = tempfile.mkdtemp(
            prefix="lanes-", dir=None if len(tempfile.gettempdir()) < 60 else "/tmp"
        )
        self._control = os.path.join(self._folder, "c")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._forwarded: dict[str, str] = {}
        self._ended = self.handed = False
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        forward = [] if remote is None else ["-o", "ExitOnForwardFailure=yes", "-L", self._add(remote)]
        try:
            self._master = subprocess.Popen(
                ["sh", "-c", _TIDY, self._folder, *options(), "-M", "-S", self._control, "-o", "ControlPersist=no", *forward, "-T", "--", target,
                 shlex.join(["sh", "-c", _SERVER])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._tidy()
            raise
        try:
            self.docker_host = self._greeting()
        except BaseException:
            self.close()
            raise

    def _greeting(self) -> str:
        # A login script may print what it likes before us.
        greeting, deadline = _GREETING.encode(), time.monotonic() + CONNECT_S + _GRACE_S
        heard = self._hear(lambda heard: b"\n" in heard.partition(greeting)[2], deadline)
        if heard is None:
            raise NoLine(self.words() or "no answer")
        return heard.partition(greeting)[2].partition(b"\n")[0].decode(errors="replace")

    def run(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a program there. Raises Broken, and TimeoutExpired as subprocess does: the line is given up then."""
        command = shlex.join(argv)
        if not self._turn.acquire(blocking=False):
            ran = subprocess.run(
                [*self.client(), "-T", "--", self.target, command], stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
            )  # fmt: skip
            if ran.returncode == FAILED:
                raise Broken(self.words() or ran.stderr)
            return Ran(ran.returncode, ran.stdout, ran.stderr)
        try:
            return self._ask(command, timeout_s)
        except BaseException:
            self.end()  # what it still prints would be taken for another's
            raise
        finally:
            self._turn.release()

    def _ask(self, command: str, timeout_s: float) -> Ran:
        assert self._master.stdin is not None
        mark = secrets.token_hex(16)
        try:
            self._master.stdin.write(f"{mark}\nexec {command}\n{mark}\n".encode())
            self._master.stdin.flush()
        except (OSError, ValueError):  # it ended, or was ended, meanwhile
            raise Broken(self.words()) from None
        deadline = time.monotonic() + timeout_s
        heard = self._hear(
            lambda heard: heard.endswith(f"{mark}\n".encode()) and heard.count(mark.encode()) == 2, deadline
        )
        if heard is None:
            late = time.monotonic() > deadline
            if late:
                raise subprocess.TimeoutExpired(command, timeout_s)
            raise Broken(self.words() or "the shell there ended")
        out, told, _ = heard.decode(errors="replace").split(mark)
        code, _, err = told.partition("\n")
        return Ran(int(code), out, err)

    def _hear(self, enough: Callable[[bytes], bool], deadline: float) -> bytes | None:
        """What it prints until that is enough; None when it ends before, or time is up."""
        assert self._master.stdout is not None
        heard, poll = b"", select.poll()
        poll.register(self._master.stdout, select.POLLIN)
        while not enough(heard):
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1e3)
            block = os.read(self._master.stdout.fileno(), 1 << 16) if ready else b""
            if not block:
                return None
            heard += block
        return heard

    def lives(self) -> bool:
        return not self._ended and self._master.poll() is None

    def words(self) -> str:
        """What ssh said as the connection ended; its end is waited for a little, and while it lives it said nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._master.wait(_GRACE_S)
        if self._master.poll() is None or self._said.closed:
            return ""
        return _tail(self._said.fileno())

    def client(self) -> list[str]:
        """ssh, by way of this connection; where that broke, by one of its own."""
        return [*options(), "-o", "ControlMaster=no", "-S", self._control]

    def socket(self, remote: str) -> str | None:
        """The path of a socket here that leads to the one of that path there; None where that cannot be had."""
        with self._lock:
            if remote not in self._forwarded:
                asked = [*self.client(), "-O", "forward", "-L", self._add(remote), "--", self.target]
                with contextlib.suppress(subprocess.SubprocessError):
                    subprocess.run(
                        asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=CONNECT_S, check=True
                    )
            local = self._forwarded[remote]
            return local if os.path.exists(local) else None

    def _add(self, remote: str) -> str:
        """A new socket here for that one there, as ssh takes it."""
        local = os.path.join(self._folder, f"s{len(self._forwarded)}")
        self._forwarded[remote] = local
        _sockets[local] = self
        return f"{local}:{remote}"

    def hand_over(self, remote: str) -> tuple[str, int, int] | None:
        """What another program of ours needs for `Handed`, which inherits both numbers: the line then lives as long as
        either of us. None where there is no socket to be had."""
        assert self._master.stdin is not None
        local = self.socket(remote)
        if local is None or not self.lives():
            return None
        self.handed = True
        return local, self._master.stdin.fileno(), self._said.fileno()

    def end(self) -> None:
        """Have it end, without waiting for that."""
        assert self._master.stdin is not None
        self._ended = True
        with contextlib.suppress(OSError):
            self._master.stdin.close()
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        assert self._master.stdout is not None
        self.end()
        try:
            self._master.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._master.wait()
        self._master.stdout.close()
        self._tidy()

    def _signal(self, number: signal.Signals) -> None:
        if self._master.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._master.pid, number)

    def _tidy(self) -> None:
        for local in self._forwarded.values():
            _sockets.pop(local, None)
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Handed:
    """A line that another program opened and handed over: a socket that leads over it, until it is closed."""

    def __init__(self, socket: str, hold: int, said: int) -> None:
        self.socket, self._hold, self._said = socket, hold, said
        _sockets[socket] = self

    def words(self) -> str:
        """What ssh said as the connection ended."""
        return _tail(self._said)

    def close(self) -> None:
        _sockets.pop(self.socket, None)
        os.close(self._hold)
        os.close(self._said)


def _tail(file: int) -> str:
    size = os.fstat(file).st_size
    return " ".join(os.pread(file, 4096, max(0, size - 4096)).decode(errors="replace").split())[-300:]


_born = os.getpid()


@atexit.register
def hang_up() -> None:
    """End all lines of this program, but those that were handed over."""
    if os.getpid() == _born:
        ours = [one for one in _lines.values() if not one.handed]
        _lines.clear()
        for one in ours:
            one.end()
        for one in ours:
            one.close()
