"""How a node is reached: this machine directly, another one through the user's own ssh.

One OpenSSH connection forwards the node's Docker socket to a private local one, so that the whole of
the user's ssh_config holds, and sshd's limits on sessions and start-ups are never met.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket as sockets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from attrs import frozen

from lanes.errors import LaneError

DOCKER_SOCKET = "/var/run/docker.sock"
CONNECT_S = 15.0
ASK_S = 60.0
SSH_FAILED = 255
"""What ssh exits with when it is to blame, and not the program on the host."""


@frozen(kw_only=True)
class Host:
    """A node's way in: `ssh` is what ssh takes (None: this machine), `docker` the path of the Docker
    engine's socket there (None: the usual one, or what DOCKER_HOST names)."""

    ssh: str | None = None
    docker: str | None = None


HERE = Host()
"""This machine."""


def run(host: Host, argv: Sequence[str], timeout_s: float = ASK_S) -> str:
    """Run a program on the host and return its stdout. Raises LaneError with what it, or ssh, said."""
    command = list(argv) if host.ssh is None else [*_ssh(), "--", host.ssh, shlex.join(argv)]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise LaneError(f"there is no {command[0]} on this machine", "install it") from None
    except subprocess.TimeoutExpired:
        raise LaneError(f"{name(host)} did not answer within {timeout_s:.0f} s", "is it up?") from None
    if ran.returncode:
        said = " ".join(ran.stderr.split())[-300:] or f"exit code {ran.returncode}"
        if host.ssh is not None and ran.returncode == SSH_FAILED:
            raise LaneError(f"{host.ssh} cannot be reached: {said}", advice(host))
        raise LaneError(f"{argv[0]} on {name(host)} failed: {said}", advice(host))
    return ran.stdout


def command(host: Host, argv: Sequence[str]) -> list[str]:
    """What to start here to have a program run on the host."""
    if host.ssh is None:
        return list(argv)
    return [*_ssh(), "-T", "--", host.ssh, shlex.join(argv)]


@contextlib.contextmanager
def docker_socket(host: Host) -> Iterator[str]:
    """The path of a local socket that leads to the host's Docker engine, for as long as the context lasts.

    Raises LaneError when the host cannot be reached.
    """
    if host.ssh is None:
        yield local_socket(host)
        return
    with tempfile.TemporaryDirectory(prefix="lanes-") as folder:
        socket = os.path.join(folder, "docker.sock")
        remote = host.docker or _remote_socket(host)
        tunnel = subprocess.Popen(
            # It ends with its input, which we hold: even a kill of this program leaves no connection.
            [*_ssh(), "-o", "ExitOnForwardFailure=yes", "-L", f"{socket}:{remote}", "--", host.ssh, "cat"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            _await_socket(host, tunnel, socket)
            yield socket
        finally:
            assert tunnel.stdin is not None
            tunnel.stdin.close()
            tunnel.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                tunnel.wait(2)
            tunnel.kill()
            tunnel.wait()


def leads_on(socket: str) -> bool:
    """Whether a socket of `docker_socket` still has a connection behind it, whatever is at its other end."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(socket)
        except OSError:
            return False
    return True


def local_socket(host: Host) -> str:
    """The path of this machine's Docker socket."""
    named = os.environ.get("DOCKER_HOST", "")
    return host.docker or (named.removeprefix("unix://") if named.startswith("unix://") else DOCKER_SOCKET)


def name(host: Host) -> str:
    return host.ssh or "this machine"


def _remote_socket(host: Host) -> str:
    named = run(host, ["sh", "-c", 'echo "$DOCKER_HOST"']).strip()
    return named.removeprefix("unix://") if named.startswith("unix://") else DOCKER_SOCKET


def _await_socket(host: Host, tunnel: subprocess.Popen[bytes], socket: str) -> None:
    deadline = time.monotonic() + CONNECT_S
    while not os.path.exists(socket):
        if tunnel.poll() is not None or time.monotonic() > deadline:
            tunnel.kill()
            said = " ".join((tunnel.stderr.read() if tunnel.stderr else b"").decode(errors="replace").split())
            raise LaneError(f"{name(host)} cannot be reached: {said[-300:] or 'no answer'}", advice(host))
        time.sleep(0.02)


def _ssh() -> list[str]:
    # A connection that is lost is noticed, whatever it is for.
    alive = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S:.0f}", *alive]


def advice(host: Host) -> str | None:
    """What must hold for a host to be reached."""
    return f"`ssh {host.ssh}` must work without a password" if host.ssh else None
