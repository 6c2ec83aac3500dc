"""Reads from all sockets of an event loop together, so that hundreds of streams cost little."""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

from lanes.bench.tape import LAST

ANCILLARY_BYTES = 64
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


class _Reader(Protocol):
    """What is asked of a connection."""

    def readable(self) -> None: ...
    def took(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None: ...
    def full(self) -> None: ...


class Poll:
    """Reads from sockets that can be read, for all connections of one event loop.

    Where there is epoll, the loop watches one epoll, which watches all sockets: a wake of the loop
    costs several times what a read does, and so it is paid once for all that came meanwhile. The
    streams' times are the kernel's and do not suffer.

    `hurried` ends the gathering: there is something to do.
    """

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Poll:
        return _POLLS.setdefault(loop, cls(weakref.proxy(loop)))

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connections: dict[int, _Reader] = {}
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

    def add(self, fd: int, connection: _Reader) -> None:
        if not hasattr(select, "epoll"):
            self._loop.add_reader(fd, connection.readable)
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._drain)
        self._epoll.register(fd, select.EPOLLIN)
        self._connections[fd] = connection

    def keep(self, fd: int, recvmsg: Callable[..., _Message], kept: list[bytes | int]) -> None:
        """Put what comes from `fd` into `kept`, and tell nobody of each read."""
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
            time.sleep(min(self._gather_s, left_s))
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
                data, ancillary, _, _ = recvmsg(_EVENT_BYTES, ANCILLARY_BYTES)
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


@contextlib.contextmanager
def hurry() -> Iterator[None]:
    """Let the running event loop have its turn each millisecond meanwhile: there are requests that are
    due at times of their own."""
    poll = Poll.of(asyncio.get_running_loop())
    poll.hold_s = _HURRY_S
    try:
        yield
    finally:
        poll.hold_s = _HOLD_S


_POLLS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Poll] = weakref.WeakKeyDictionary()
