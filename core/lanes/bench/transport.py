"""A TCP or TLS connection whose reads are stamped by the kernel.

Linux stamps a packet when it reaches this machine (`SO_TIMESTAMPNS`, socket(7)); the stamp comes
with the bytes through `recvmsg`, however late this program reads them. Elsewhere, or when a stamp
is missing or makes no sense, the time of the read stands in for it, taken before any parsing.

All sockets of an event loop are read together (`_Poll`), so that hundreds of streams cost little.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from lanes.bench.http import Target
from lanes.bench.tape import LAST, Tape

_SO_TIMESTAMPNS = 35  # SO_TIMESTAMPNS_OLD of asm-generic/socket.h; Python does not name it
_ANCILLARY_BYTES = 64
_TIMESPEC = struct.Struct("@ll")
_DATA_SEGS_IN = 152
"""Where `struct tcp_info` of linux/tcp.h has `tcpi_data_segs_in`."""
_READ_BYTES = 65536
_EVENT_BYTES = 4096
"""What an event of a steady stream is shorter than, as a rule."""
_MANY = 24
"""From so many sockets on, their reads are gathered, and acknowledged with delay."""
_GATHER_S = (0.00025, 0.004)
"""How long to gather, at least and at most: what is late by that much is stamped by the kernel all the same."""
_GAPS = 3
"""What is gathered in a third of the time between two reads of one socket seldom holds two of them."""
_HOLD_S = 0.020
"""How long the gathering may keep the event loop from its other work ..."""
_HURRY_S = 0.001
"""... and how long when requests are due at times of their own."""


ROOM_BYTES = 64 << 20
"""What may wait to be looked through, of all streams together."""
_Message = tuple[bytes, list[tuple[int, int, bytes]], int, object]


class ConnectError(Exception):
    """No connection could be opened; the message is one sentence."""


class Connection:
    """One open connection, for one request. Close it, whatever happened."""

    def __init__(self, sock: socket.socket, connect_s: float) -> None:
        self.connect_s = connect_s
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._poll = _Poll.of(self._loop)
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
            data, ancillary, _, _ = self._recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
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


class _Poll:
    """Reads from sockets that can be read, for all connections of one event loop.

    Where there is epoll, the loop watches one epoll, which watches all sockets: a wake of the loop
    costs several times what a read does, and so it is paid once for all that came meanwhile. The
    streams' times are the kernel's and do not suffer.

    `hurried` ends the gathering: there is something to do.
    """

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Poll:
        return _POLLS.setdefault(loop, cls(weakref.proxy(loop)))

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: dict[int, Connection] = {}
        # Of steady streams: how to read, and where to keep what came.
        self._steady: dict[int, tuple[Callable[..., _Message], list[bytes | int]]] = {}
        self._room = ROOM_BYTES
        self._epoll: select.epoll | None = None
        self._gather_s = _GATHER_S[0]
        self.hold_s = _HOLD_S
        self.hurried = False

    @property
    def many(self) -> bool:
        return len(self._connections) >= _MANY

    def add(self, fd: int, connection: Connection) -> None:
        if not hasattr(select, "epoll"):
            self._loop.add_reader(fd, connection.readable)
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._drain)
        self._epoll.register(fd, select.EPOLLIN)
        self._connections[fd] = connection

    def keep(self, fd: int, recvmsg: Callable[..., _Message], kept: list[bytes | int]) -> None:
        if fd in self._connections:
            self._steady[fd] = recvmsg, kept

    def remove(self, fd: int) -> None:
        """Forget `fd`, before it is closed. What was never added may be removed."""
        self._steady.pop(fd, None)
        if not hasattr(select, "epoll"):
            self._loop.remove_reader(fd)
        elif self._connections.pop(fd, None) and self._epoll is not None:
            self._epoll.unregister(fd)
            if not self._connections:
                self._loop.remove_reader(self._epoll.fileno())
                self._epoll.close()
                self._epoll = None

    def _drain(self) -> None:
        """Read what can be read. With many sockets, go on as long as more comes, with short pauses."""
        began = now = time.monotonic()
        reads, connections = 0, self._connections
        self.hurried = False
        while self._epoll is not None:
            ready = self._epoll.poll(0)
            self._read(ready)
            reads += len(ready)
            now = time.monotonic()
            left_s = self.hold_s - (now - began)
            if not self.many or self.hurried or left_s <= 0:
                break
            # One that is ready is enough to gather, and none costs nothing.
            if not (self._epoll and self._epoll.poll(left_s, 1)):
                break
            time.sleep(self._gather_s)
        if reads and now - began > _GATHER_S[1]:
            gap_s = (now - began) * len(connections) / reads
            self._gather_s = min(max(gap_s / _GAPS, _GATHER_S[0]), _GATHER_S[1])

    def _read(self, ready: list[tuple[int, int]]) -> None:
        """Read once from each that is ready. Where there are hundreds of streams, this loop is what most of
        the time is spent in."""
        connections, steady, time_ns, room = self._connections, self._steady, time.time_ns, self._room
        for fd, _ in ready:
            if fd not in steady:
                if (connection := connections.get(fd)) is not None:  # else closed by one before it
                    connection.readable()
                continue
            recvmsg, kept = steady[fd]
            try:
                data, ancillary, _, _ = recvmsg(_EVENT_BYTES, _ANCILLARY_BYTES)
            except OSError:
                connections[fd].readable()  # which finds the reason
                continue
            size = len(data)
            if 0 < size < _EVENT_BYTES and not data.endswith(LAST):
                kept += (data, ancillary[0][2] if ancillary else b"", time_ns())
                room -= size
            else:
                if size == _EVENT_BYTES:  # its events are longer
                    del steady[fd]
                connections[fd].took(data, ancillary)
        self._room = room
        if room < 0:
            self._room = ROOM_BYTES
            for connection in connections.values():
                connection.full()


async def _addresses(host: str, port: int) -> list[Any]:
    """Where a host may be reached; a number needs no thread that asks."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


@contextlib.contextmanager
def hurry() -> Iterator[None]:
    """Let the running event loop have its turn each millisecond meanwhile: there are requests that are
    due at times of their own."""
    poll = _Poll.of(asyncio.get_running_loop())
    poll.hold_s = _HURRY_S
    try:
        yield
    finally:
        poll.hold_s = _HOLD_S


_POLLS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Poll] = weakref.WeakKeyDictionary()


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
