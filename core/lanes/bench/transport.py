"""A TCP or TLS connection whose reads are stamped by the kernel.

Linux stamps a packet when it reaches this machine (`SO_TIMESTAMPNS`, socket(7)); the stamp comes
with the bytes through `recvmsg`, however late this program reads them. Elsewhere, or when a stamp
is missing or makes no sense, the time of the read stands in for it, taken before any parsing.

All sockets of an event loop are read together (`Poll`), so that hundreds of streams cost little.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
import time
from typing import Any

from lanes.bench.http import Target
from lanes.bench.poll import ANCILLARY_BYTES, Poll
from lanes.bench.tape import Tape

_SO_TIMESTAMPNS = 35  # SO_TIMESTAMPNS_OLD of asm-generic/socket.h; Python does not name it
_TIMESPEC = struct.Struct("@ll")
_DATA_SEGS_IN = 152
"""Where `struct tcp_info` of linux/tcp.h has `tcpi_data_segs_in`."""
_READ_BYTES = 65536


class ConnectError(Exception):
    """No connection could be opened; the message is one sentence."""


class Connection:
    """One open connection, for one request. Close it, whatever happened."""

    def __init__(self, sock: socket.socket, connect_s: float) -> None:
        self.connect_s = connect_s
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._poll = Poll.of(self._loop)
        self._tls: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._unsent = b""
        self._recvmsg = sock.recvmsg
        self._tape: Tape | None = None

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
        for family, kind, protocol, _, address in await _addresses(target.host, target.port):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ask_for_stamps(sock)
                started = time.perf_counter()
                await loop.sock_connect(sock, address)
                return cls(sock, time.perf_counter() - started)
            except OSError as error:
                sock.close()
                failure = failure or error
            except BaseException:
                sock.close()
                raise
        raise failure or OSError("the name has no address")

    async def _handshake(self, host: str) -> None:
        context = ssl.create_default_context()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
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

    def start(self, payload: bytes, tape: Tape) -> int:
        """Write `payload` and return t0, the CLOCK_REALTIME in ns just before its first byte.

        `tape` then gets each read with the kernel's stamp of it, as the kernel gave it, and the end: None
        for an orderly one, else a sentence.
        """
        self._tape = tape
        t0_ns = time.time_ns()
        if self._tls is not None:
            self._tls.write(payload)
            payload = self._outgoing.read()
        self._send(payload)
        self._poll.add(self._sock.fileno(), self)
        return t0_ns

    def delay_acks(self, delay: bool) -> None:
        """Acknowledge what comes together with later reads, or at once again.

        An acknowledgement for each event costs as much as all else that is done for it. But a server
        that leaves Nagle's algorithm on (RFC 9293, 3.7.4) holds its next event back until the last one
        is acknowledged: for such a one it must be at once. The delay is 40 ms (tcp(7), TCP_QUICKACK).
        """
        if hasattr(socket, "TCP_QUICKACK") and self._sock.fileno() >= 0:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, int(not delay))

    def segments(self) -> int:
        """Return how many segments with data came so far, as the kernel counts (tcp(7), TCP_INFO); 0 where it
        does not tell."""
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGS_IN + 4)
            return int(struct.unpack_from("@I", info, _DATA_SEGS_IN)[0])
        except (AttributeError, OSError, struct.error):
            return 0

    @property
    def many(self) -> bool:
        """Whether there are so many connections that each event's cost matters."""
        return self._poll.many

    def steady(self, kept: list[bytes | int]) -> None:
        """Put what comes from now on into `kept` as the tape would, but do not ask it about each read."""
        if self._tls is None:
            self._poll.keep(self._sock.fileno(), self._recvmsg, kept)

    def hurry(self) -> None:
        """Let the event loop go on with its other work: what was read may be the end of an answer."""
        self._poll.hurried = True

    def close(self) -> None:
        """Close the socket and forget it. May be called twice."""
        if self._sock.fileno() >= 0:
            self._poll.remove(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
        self._tape = None  # it refers to this connection (see `ResponseReader.close`)

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

    def readable(self) -> None:
        """Read, and tell the tape."""
        try:
            data, ancillary, _, _ = self._recvmsg(_READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"the connection broke: {error.strerror or error}")
            return
        self.took(data, ancillary)

    def took(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        """Take what was read; no bytes are the end."""
        read_ns = time.time_ns()
        ended = not data
        if self._tls is not None:
            data, ended = self._decrypt(data)
        if data and self._tape is not None:
            # Nothing else was asked for but stamps.
            self._tape.take(data, ancillary[0][2] if ancillary else b"", read_ns)
        if ended:
            self._end(None)

    def full(self) -> None:
        """There is no room left for what was kept."""
        if self._tape is not None:
            self._tape.wake()

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
            self._poll.remove(self._sock.fileno())
            if self._tape is not None:
                self._tape.end(reason)


async def _addresses(host: str, port: int) -> list[Any]:
    """Where a host may be reached; a number needs no thread that asks."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives on `sock`; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the kernel's stamp (CLOCK_REALTIME, ns) among what `recvmsg` gave, or 0."""
    for level, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS and level == socket.SOL_SOCKET and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0
