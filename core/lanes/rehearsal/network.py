"""Do the nodes of a lane reach each other? Each calls on every other one, at the address that ranks would use.

A program of ours on each node (`peer.py`) listens on a free port of the node's address, and then calls on the others from that
address, with a few small messages. It ends with its connection: nothing is left.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.resources
import json
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from lanes import hosts
from lanes.errors import LaneError
from lanes.hosts import HERE, Host

START_S = 60.0
"""How long a node may take until our program listens there."""
CALL_S = 5.0
"""How long a connection, or a message, may be on its way."""
_BOOT = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), 'lanes', 'exec'))"


@frozen(kw_only=True)
class Peer:
    """A node: its name, the way to it, and its address and interface on the network between the nodes."""

    name: str
    host: Host = HERE
    address: str
    interface: str | None = None


@frozen(kw_only=True)
class Met:
    """What came of it: `round_trip_s` is the longest of the shortest round trips of each pair; `problems` are
    sentences, empty when every node reaches every other one."""

    pairs: int
    round_trip_s: float | None
    problems: tuple[str, ...]


def meet(peers: Sequence[Peer], call_s: float = CALL_S) -> Met:
    """Have each of the nodes call on every other one. Raises LaneError where our program cannot run on a node."""
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(contextlib.closing(_Member(peer, call_s))) for peer in peers]
        ports = [member.listens() for member in members]
        there = {
            member.peer.name: {
                "name": member.peer.name,
                "address": member.peer.address,
                "port": port,
                "token": member.token,
            }
            for member, port in zip(members, ports, strict=True)
            if port is not None
        }
        calling = [member for member in members if member.peer.name in there]
        for member in calling:
            member.send([other for name, other in there.items() if name != member.peer.name])
        patience = START_S + call_s * 3 * len(peers)
        results = [(member.peer, result) for member in calling for result in member.met(patience)]
        problems = [problem for member in members for problem in member.problems]
        addresses = {peer.name: peer.address for peer in peers}
        problems += [
            _sentence(peer, result, addresses) for peer, result in results if result["outcome"] != "ok"
        ]
        trips = [result["round_trip_s"] for _, result in results if result["outcome"] == "ok"]
        return Met(
            pairs=len(trips), round_trip_s=max(trips, default=None), problems=tuple(dict.fromkeys(problems))
        )


def _sentence(peer: Peer, result: Mapping[str, Any], addresses: Mapping[str, str]) -> str:
    other = f"{result['name']} ({addresses[result['name']]})"
    said = result.get("said")
    return {
        "refused": f"{other} refuses connections from {peer.name}: a firewall, or another machine at that address",
        "unreachable": f"{peer.name} has no way to {other}: {said}",
        "timed-out": f"{other} does not answer {peer.name}: a firewall, or another network",
        "large-lost": f"small messages from {peer.name} reach {other}, large ones do not: the MTU of their networks differs",
        "another": f"another machine answers {peer.name} at the address of {other}",
    }.get(result["outcome"], f"the connection from {peer.name} to {other} broke: {said}")


class _Member:
    """Our program on one node."""

    def __init__(self, peer: Peer, call_s: float) -> None:
        self.peer = peer
        self.token = secrets.token_hex(8)
        self.problems: list[str] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        python = ["python3" if peer.host.ssh else sys.executable, "-I", "-S", "-c", _BOOT]
        self._process = subprocess.Popen(
            hosts.command(peer.host, python), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        program = importlib.resources.files(__package__).joinpath("peer.py").read_bytes()
        job = {
            "address": peer.address,
            "interface": peer.interface,
            "token": self.token,
            "timeout_s": call_s,
        }
        self._write(f"{len(program)}\n".encode() + program)
        self.send(job)

    def send(self, value: Any) -> None:
        self._write(json.dumps(value).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # One that has ended says why on its other streams.
        with contextlib.suppress(OSError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A login script may print what it likes before us.
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self._events.put(event)
        self._events.put(None)

    def _next(self, patience_s: float) -> dict[str, Any]:
        try:
            event = self._events.get(timeout=patience_s)
        except queue.Empty:
            raise LaneError(
                f"{self.peer.name} did not answer within {patience_s:.0f} s", "is it up?"
            ) from None
        if event is None:
            self._process.wait()
            self._said.seek(0)
            said = " ".join(self._said.read().decode(errors="replace").split())[-300:]
            raise LaneError(
                f"the network of {self.peer.name} cannot be tried: {said or 'its python3 ended without a word'}",
                hosts.advice(self.peer.host),
            )
        return event

    def listens(self) -> int | None:
        """The port on which it listens; None where it cannot, and why is among the problems."""
        while True:
            event = self._next(START_S)
            if event["event"] == "wrong":
                self.problems.append(f"{self.peer.name}: {event['message']}")
            elif event["event"] == "deaf":
                why = event["message"]
                if event["errno"] == errno.EADDRNOTAVAIL:
                    why = "it has no such address"
                self.problems.append(f"{self.peer.name} cannot listen on {self.peer.address}: {why}")
                return None
            elif event["event"] == "listens":
                return int(event["port"])

    def met(self, patience_s: float) -> list[dict[str, Any]]:
        """How it fared with each of the others."""
        found = []
        while (event := self._next(patience_s))["event"] != "done":
            found.append(event)
        return found

    def close(self) -> None:
        """Have it end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()
