"""Meet the other nodes of a lane over TCP: one program that needs nothing but Python 3.8, and no root.

It is sent to the node, and never installed. stdin: the job, one line of JSON; it listens on the node's address and tells
where; then a line with the others, whom it calls on, one after the other. What it found is told in lines of JSON on
stdout. Whoever calls is sent the listener's name, and then gets back every message that it sends. When stdin ends, so does
this program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

SIZES = (64,) * 10 + (1 << 16,) * 4
"""The messages that go to another node and back: those of a page's size show a path that loses large packets."""

_SIOCGIFCONF = 0x8912
_ENTRY = 40
"""Bytes of a struct ifreq on 64-bit machines."""


def tell(**event: Any) -> None:
    os.write(1, (json.dumps(event) + "\n").encode())


def interfaces() -> dict[str, list[str]]:
    """The IPv4 addresses of each interface that is up."""
    import array

    room = array.array("B", bytes(_ENTRY * 512))
    start, size = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        told = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", size, start))
    used = struct.unpack("iL", told)[0]
    data = room.tobytes()[:used]
    found: dict[str, list[str]] = {}
    for at in range(0, used, _ENTRY):
        # A second address of an interface may have a label, as in eth0:1.
        name = data[at : at + 16].split(b"\0", 1)[0].decode().split(":")[0]
        found.setdefault(name, []).append(socket.inet_ntoa(data[at + 20 : at + 24]))
    return found


def misplaced(address: str, interface: str | None) -> str | None:
    """That the address is not on the interface, as a sentence; None where it is, or nobody asked."""
    if interface is None or ":" in address:
        return None
    if not os.path.exists(f"/sys/class/net/{interface}"):
        return f"there is no interface {interface}; it has {', '.join(sorted(os.listdir('/sys/class/net')))}"
    found = interfaces()
    own = next((name for name, addresses in found.items() if address in addresses), None)
    if own is not None and own != interface:
        has = ", ".join(found.get(interface, ())) or "no IPv4 address"
        return f"its address {address} is on interface {own}, not on {interface}, which has {has}"
    return None


def listen(address: str) -> socket.socket:
    """Listen on a free port of the address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(64)
    return listener


def serve(listener: socket.socket, name: str) -> None:
    """Tell every caller the name, and send back what it sends."""

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(name.encode() + b"\n")
            while block := connection.recv(1 << 16):
                connection.sendall(block)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=one, args=(connection,), daemon=True).start()


def call(own: str, other: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Call on another node: `outcome` is `ok`, with the shortest round trip, or what went wrong."""
    sent = 0
    try:
        with socket.create_connection((other["address"], other["port"]), timeout_s, (own, 0)) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            named = _line(line)
            if named != other["token"]:
                return {"outcome": "another"}
            trips = []
            for size in SIZES:
                began = time.monotonic()
                line.sendall(os.urandom(size))
                _receive(line, size)
                trips.append(time.monotonic() - began)
                sent += 1
        return {"outcome": "ok", "round_trip_s": min(trips)}
    except TimeoutError:
        # Before the first message: nobody answers at all; among the large ones: only they are lost.
        large = sent >= SIZES.count(min(SIZES))
        return {"outcome": "large-lost" if large else "timed-out"}
    except ConnectionRefusedError:
        return {"outcome": "refused"}
    except OSError as error:
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return {"outcome": "unreachable", "said": error.strerror}
        return {"outcome": "broken", "said": error.strerror or str(error)}


def _line(line: socket.socket) -> str:
    said = b""
    while not said.endswith(b"\n") and len(said) < 200:
        block = line.recv(1)
        if not block:
            break
        said += block
    return said.decode(errors="replace").strip()


def _receive(line: socket.socket, size: int) -> None:
    while size:
        block = line.recv(min(size, 1 << 16))
        if not block:
            raise OSError(errno.ECONNRESET, "the connection was closed")
        size -= len(block)


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    if wrong := misplaced(job["address"], job["interface"]):
        tell(event="wrong", message=wrong)
    try:
        listener = listen(job["address"])
    except OSError as error:
        tell(event="deaf", errno=error.errno, message=error.strerror or str(error))
        return
    threading.Thread(target=serve, args=(listener, job["token"]), daemon=True).start()
    tell(event="listens", port=listener.getsockname()[1])
    others = json.loads(sys.stdin.buffer.readline() or "[]")

    def work() -> None:
        for other in others:
            tell(event="met", name=other["name"], **call(job["address"], other, job["timeout_s"]))
        tell(event="done")

    threading.Thread(target=work, daemon=True).start()
    # The others may still call: we end with the controller, or when it lets go of us.
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
