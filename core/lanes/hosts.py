"""How a node is reached: this machine directly, another one through the user's own ssh.

Programs run over one OpenSSH connection a node (see `lines`), which forwards the node's Docker socket to a private
local one too: the whole of the user's ssh_config holds, and sshd's limits on sessions and start-ups are never met.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket as sockets
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from attrs import evolve, frozen

from lanes import lines
from lanes.errors import LaneError

DOCKER_SOCKET = "/var/run/docker.sock"
ASK_S = 60.0
AT_ONCE_S = 1.0
"""A connection that breaks within that time of a program's start was broken before."""
SSH_FAILED = lines.FAILED


@frozen(kw_only=True)
class Host:
    """A node's way in: `ssh` is what ssh takes (None: this machine), `docker` the path of the Docker
    engine's socket there (None: the usual one, or what DOCKER_HOST names)."""

    ssh: str | None = None
    docker: str | None = None


HERE = Host()
"""This machine."""

_by_themselves: set[str] = set()
"""What ssh reaches, if at all, but not over a connection of ours."""


def run(host: Host, argv: Sequence[str], timeout_s: float = ASK_S) -> str:
    """Run a program on the host and return its stdout. Raises LaneError with what it, or ssh, said."""
    program = argv[0] if host.ssh is None else "ssh"
    try:
        ran = _run(host, argv, timeout_s)
    except FileNotFoundError:
        raise LaneError(f"there is no {program} on this machine", "install it") from None
    except subprocess.TimeoutExpired:
        raise LaneError(f"{name(host)} did not answer within {timeout_s:.0f} s", "is it up?") from None
    except lines.Broken as error:
        raise LaneError(f"{host.ssh} cannot be reached: {_end(str(error))}", advice(host)) from None
    if ran.code:
        said = _end(ran.err) or f"exit code {ran.code}"
        raise LaneError(f"{argv[0]} on {name(host)} failed: {said}", advice(host))
    return ran.out


def _run(host: Host, argv: Sequence[str], timeout_s: float) -> lines.Ran:
    line = _line(host)
    if line is None:
        return _alone(host, argv, timeout_s)
    began = time.monotonic()
    try:
        return line.run(argv, timeout_s)
    except lines.Broken:
        # It broke while nothing went over it: nobody heard of that, nor of the program.
        if time.monotonic() - began > AT_ONCE_S or (again := _line(host)) in (None, line):
            raise
        return again.run(argv, timeout_s)


def _alone(host: Host, argv: Sequence[str], timeout_s: float) -> lines.Ran:
    """Run a program on this machine, or over a connection of its own."""
    ran = subprocess.run(
        command(host, argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        timeout=timeout_s, check=False,
    )  # fmt: skip
    if host.ssh is not None and ran.returncode == SSH_FAILED:
        raise lines.Broken(ran.stderr)
    return lines.Ran(ran.returncode, ran.stdout, ran.stderr)


def _end(said: str) -> str:
    return " ".join(said.split())[-300:]


def command(host: Host, argv: Sequence[str]) -> list[str]:
    """What to start here to have a program run on the host, over a connection of its own: one that lasts, or has
    much to carry."""
    if host.ssh is None:
        return list(argv)
    return [*lines.options(), "-T", "--", host.ssh, shlex.join(argv)]


def reach(hosts: Iterable[Host]) -> None:
    """Open the connections to all of them side by side: what is then done on one after the other takes milliseconds
    each. Raises LaneError for the first that cannot be reached."""
    with ThreadPoolExecutor(max_workers=lines.OPENING) as pool:
        list(pool.map(_line, hosts))


def located(host: Host) -> Host:
    """The host with the path of its Docker engine's socket, as it tells. Raises LaneError when it cannot be reached."""
    if host.ssh is None or host.docker is not None:
        return host
    line = _line(host)
    named = line.docker_host if line else run(host, ["sh", "-c", 'echo "$DOCKER_HOST"']).strip()
    return evolve(host, docker=_socket_in(named))


def _line(host: Host) -> lines.Line | None:
    """The connection to the host; None where there is none to have, and each program has its own. Raises LaneError
    when it cannot be reached."""
    if host.ssh is None or host.ssh in _by_themselves:
        return None
    try:
        return lines.line(host.ssh)
    except lines.NoLine as error:
        if error.refused:
            # The user's own ssh may have a connection that a person opened, with a second factor.
            _by_themselves.add(host.ssh)
            return None
        raise LaneError(f"{host.ssh} cannot be reached: {error}", advice(host)) from None
    except FileNotFoundError:
        raise LaneError("there is no ssh on this machine", "install it") from None


@contextlib.contextmanager
def docker_socket(host: Host) -> Iterator[str]:
    """The path of a local socket that leads to the host's Docker engine, for as long as the context lasts.

    Raises LaneError when the host cannot be reached.
    """
    if host.ssh is None:
        yield local_socket(host)
        return
    line, where = _line(host), located(host)
    assert where.docker is not None
    shared = line.socket(where.docker) if line is not None else None
    if shared is not None:
        yield shared
        return
    with tunnel(where) as socket:
        yield socket


@contextlib.contextmanager
def tunnel(host: Host) -> Iterator[str]:
    """As `docker_socket`, over a connection that is for nothing else, and ends with the context."""
    if host.ssh is None:
        yield local_socket(host)
        return
    try:
        line = lines.Line(host.ssh, host.docker)
    except lines.NoLine as error:
        raise LaneError(f"{host.ssh} cannot be reached: {error}", advice(host)) from None
    with contextlib.closing(line):
        socket = line.socket(host.docker or _socket_in(line.docker_host))
        if socket is None:
            raise LaneError(f"{host.ssh} does not let its Docker engine's socket be forwarded", advice(host))
        yield socket


def hand_over(host: Host) -> tuple[str, int, int] | None:
    """A socket that leads to the host's Docker engine for another program of ours, which inherits the two numbers that
    come with it and gives all to `lines.Handed`; None where it has to see for itself. Raises as `docker_socket`."""
    line = _line(host)
    if line is None:
        return None
    return line.hand_over(located(host).docker or DOCKER_SOCKET)


def leads_on(socket: str) -> bool:
    """Whether a socket of `docker_socket` still has a connection behind it, whatever is at its other end."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(socket)
        except OSError:
            return False
    return True


def last_words(socket: str) -> str:
    """What ssh said of the connection behind a socket of `docker_socket` that leads nowhere any more."""
    line = lines.behind(socket)
    return (line.words() if line else "") or "ssh said nothing"


def local_socket(host: Host) -> str:
    """The path of this machine's Docker socket."""
    return host.docker or _socket_in(os.environ.get("DOCKER_HOST", ""))


def name(host: Host) -> str:
    return host.ssh or "this machine"


def _socket_in(docker_host: str) -> str:
    return docker_host.removeprefix("unix://") if docker_host.startswith("unix://") else DOCKER_SOCKET


def advice(host: Host) -> str | None:
    """What must hold for a host to be reached."""
    return f"`ssh {host.ssh}` must work without a password" if host.ssh else None
