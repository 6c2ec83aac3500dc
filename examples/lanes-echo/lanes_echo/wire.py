"""As much of HTTP/1.1 as the server needs.

The standard library's http.server would do, but takes longer to import than all the rest.
"""

from __future__ import annotations

import json
import socket
import socketserver
from collections.abc import Callable
from typing import Any

MAX_BODY_BYTES = 64 * 2**20

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Disconnected(Exception):
    """The client went away, or does not speak HTTP."""


class Connection(socketserver.StreamRequestHandler):
    """One connection of a client: requests are read one after the other and passed to the server's
    `answer(connection, method, path, body)`."""

    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        try:
            while self._request():
                pass
        except (Disconnected, OSError, ValueError):
            return

    def _request(self) -> bool:
        """Read one request and have it answered; False when the client has no more."""
        line = self.rfile.readline(65537)
        if not line.strip():
            return False
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := self.rfile.readline(65537)) not in (b"\r\n", b"\n"):
            if not line or len(headers) > 100:
                raise Disconnected
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if not 0 <= length <= MAX_BODY_BYTES:
            raise Disconnected
        self.server.answer(self, method, path.partition("?")[0], self.rfile.read(length))
        return headers.get("connection", "").lower() != "close"

    def send(self, status: int, body: Any, kind: str = "application/json") -> None:
        """Send a whole answer: `body` as it is when it is bytes, else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.wfile.write(_head(status, kind, f"Content-Length: {len(data)}") + data)

    def start_stream(self) -> None:
        """Begin an answer of server-sent events."""
        self.wfile.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))

    def event(self, data: Any) -> None:
        """Send one event: a string as it is, anything else as JSON."""
        text = data if isinstance(data, str) else json.dumps(data)
        self._chunk(f"data: {text}\n\n".encode())

    def end_stream(self) -> None:
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def cut(self) -> None:
        """Close the connection in the middle of an answer."""
        self.connection.shutdown(socket.SHUT_RDWR)
        raise Disconnected


def _head(status: int, kind: str, length: str) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode()


class Server(socketserver.ThreadingTCPServer):
    """Listens, and hands every request to `answer`, each connection in a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int, answer: Callable[[Connection, str, str, bytes], None]) -> None:
        super().__init__((host, port), Connection)
        self.answer = answer
