"""A TCP or TLS connection whose reads are stamped by the kernel.

Linux stamps a packet when it reaches this machine (`SO_TIMESTAMPNS`, socket(7)); the stamp comes
with the bytes through `recvmsg`, however late this program reads them. Elsewhere, or when a stamp
is missing or makes no sense, the time of the read stands in for it, taken before any parsing.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from lanes.bench.http import Target

_SO_TIMESTAMPNS = 35  # SO_TIMESTAMPNS_OLD of asm-generic/socket.h; Python does not name it
_TIMESPEC = struct.Struct("@ll")
_READ_BYTES = 65536
_SLACK_NS = 1_000_000


class ConnectError(Exception):
    """No connection could be opened; the message is one sentence."""


class Read(NamedTuple):
    """Bytes, when they reached this machine, when this program read them (CLOCK_REALTIME, ns), and
    whether the first time is the kernel's."""

    data: bytes
    at_ns: int
    read_ns: int
    kernel: bool


class Connection:
    """One open connection, for one request. Close it, whatever happened."""

    def __init__(self, sock: socket.socket, stamped: bool, connect_s: float) -> None:
        self.connect_s = connect_s
        self._sock = sock
        self._stamped = stamped
        self._loop = asyncio.get_running_loop()
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent = b""
        self._t0_ns = 0
        self._on_read: Callable[[Read], None]
        self._on_end: Callable[[str | None], None]

    @classmethod
    async def open(cls, target: Target, timeout_s: float) -> Connection:
        """Connect, with TLS where the target wants it. Raises ConnectError."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = await cls._connect(target)
                if target.tls:
                    try:
                        await connection._handshake(target.host)
                    except BaseException:
                        connection.close()
                        raise
                return connection
        except TimeoutError:
            raise ConnectError(f"{target.name} did not answer within {timeout_s:g} s") from None
        except socket.gaierror:
            raise ConnectError(f"the host name {target.host} is not known") from None
        except ConnectionRefusedError:
            raise ConnectError(f"nothing listens at {target.name} (connection refused)") from None
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason or str(error)
            raise ConnectError(f"no TLS connection with {target.name}: {why}") from None
        except OSError as error:
            raise ConnectError(f"no connection to {target.name}: {error.strerror or error}") from None

    @classmethod
    async def _connect(cls, target: Target) -> Connection:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stamped = ask_for_stamps(sock)
                started = time.perf_counter()
                await loop.sock_connect(sock, address)
                return cls(sock, stamped, time.perf_counter() - started)
            except OSError as error:
                sock.close()
                failure = failure or error
            except BaseException:
                sock.close()
                raise
        raise failure or OSError("the name has no address")

    async def _handshake(self, host: str) -> None:
        context = ssl.create_default_context()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            if self._outgoing.pending:
                await self._loop.sock_sendall(self._sock, self._outgoing.read())
            if done:
                return
            data = await self._loop.sock_recv(self._sock, _READ_BYTES)
            if not data:
                raise OSError("closed during the TLS handshake")
            self._incoming.write(data)

    def start(
        self, payload: bytes, on_read: Callable[[Read], None], on_end: Callable[[str | None], None]
    ) -> int:
        """Write `payload` and return t0, the CLOCK_REALTIME in ns just before its first byte.

        `on_read` then gets each read, and `on_end` the end: None for an orderly one, else a sentence.
        """
        self._on_read, self._on_end = on_read, on_end
        if self._tls is not None:
            self._t0_ns = time.time_ns()
            self._tls.write(payload)
            payload = self._outgoing.read()
        else:
            self._t0_ns = time.time_ns()
        self._send(payload)
        self._loop.add_reader(self._sock.fileno(), self._readable)
        return self._t0_ns

    def close(self) -> None:
        """Close the socket and forget it. May be called twice."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()

    def _send(self, payload: bytes) -> None:
        try:
            sent = self._sock.send(payload)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader finds the reason, and perhaps an answer that came before it
        if sent < len(payload):
            self._unsent = payload[sent:]
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        unsent, self._unsent = self._unsent, b""
        self._send(unsent)

    def _readable(self) -> None:
        try:
            if self._stamped:
                data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, 64)
            else:
                data, ancillary = self._sock.recv(_READ_BYTES), []
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"the connection broke: {error.strerror or error}")
            return
        read_ns = time.time_ns()
        at_ns = stamp(ancillary)
        kernel = at_ns is not None and self._t0_ns - _SLACK_NS <= at_ns <= read_ns + _SLACK_NS
        plain, ended = self._decrypt(data) if self._tls is not None else (data, not data)
        if plain:
            self._on_read(Read(plain, at_ns if kernel and at_ns is not None else read_ns, read_ns, kernel))
        if ended:
            self._end(None)

    def _decrypt(self, data: bytes) -> tuple[bytes, bool]:
        assert self._tls is not None
        self._incoming.write(data) if data else self._incoming.write_eof()
        parts: list[bytes] = []
        ended = False
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # among them the end of the connection without a goodbye
            ended = True
        if self._outgoing.pending:
            self._send(self._unsent + self._outgoing.read())
        return b"".join(parts), ended

    def _end(self, reason: str | None) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._on_end(reason)


def ask_for_stamps(sock: socket.socket) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamp(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None
