"""Requests to one server: streamed chats, each on a connection that is open before its t0."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from lanes.bench.http import ResponseReader, Target, request_bytes
from lanes.bench.plan import Limits
from lanes.bench.recorder import TEXT_LIMIT
from lanes.bench.shapes import QuickRecorder
from lanes.bench.stream import Stream
from lanes.bench.transport import ConnectError, Connection, Read
from lanes.errors import LaneError
from lanes.types import Endpoint

CHAT_PATH = "/v1/chat/completions"
_IDLE_S = 0.2
"""How long nothing must come before what came is looked through: after `[DONE]`, the wait for the
orderly end of the answer."""
_SLICE = 16
"""Reads that are looked through at once, before there is room for reading."""
_RUNNING = 4
"""Reads after which an answer runs: the next ones need no acknowledgement of their own."""
_ROOM_BYTES = 64 << 20
"""What may wait to be looked through, of all streams together ..."""
_LEAST_ROOM_BYTES = 64 << 10
"""... but so much of each."""


_MOST_PER_TOKEN, _MOST_MORE = 16, 1024
"""Events for each token that was asked for, and for none, after which a server will not stop by itself."""


class _Sink(Protocol):
    t0_ns: int
    done: bool
    answered: bool

    @property
    def streams(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    def feed(self, read: Read) -> None: ...
    def end(self, broken: str | None = None, kind: str = "cut") -> None: ...
    def stalled(self, waited_s: float) -> None: ...


class Client:
    """Talk to `endpoint` from within a running event loop.

    Raises UsageError when the URL is no URL, or the API key's environment variable is not set.
    """

    def __init__(self, endpoint: Endpoint, limits: Limits | None = None) -> None:
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self._target = Target.of(endpoint)
        self._active = 0
        self._feeding = asyncio.Lock()
        self.waits_for_acks = False

    async def open(self) -> Connection:
        """Open a connection for one request. Raises ConnectError."""
        return await Connection.open(self._target, self.limits.connect_s)

    async def chat(
        self, body: Mapping[str, Any], connection: Connection | None = None, keep: int = TEXT_LIMIT
    ) -> Stream:
        """Send one streamed chat and return what was seen; a failure is in the `Stream`, not raised.

        A `connection` from `open` is used and closed; without one, a connection is opened first. The
        first `keep` characters of the answer are in the `Stream`.
        """
        payload = request_bytes(self._target, CHAT_PATH, body)
        if connection is None:
            try:
                connection = await self.open()
            except ConnectError as error:
                return Stream(t0_ns=time.time_ns(), failure="connect", error=str(error))
        recorder = QuickRecorder(self._target.redact, keep)
        asked = body.get("max_tokens") or body.get("max_completion_tokens")
        most = asked * _MOST_PER_TOKEN + _MOST_MORE if isinstance(asked, int) else math.inf
        started = time.perf_counter_ns() - time.time_ns()
        await self._exchange(connection, payload, recorder, most)
        step = time.time_ns() - (time.perf_counter_ns() - started)
        return recorder.stream(connect_s=connection.connect_s, clock_step_ns=step)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST and return the JSON of its answer. Raises LaneError."""
        try:
            connection = await self.open()
        except ConnectError as error:
            raise LaneError(str(error)) from None
        answer = _Answer()
        await self._exchange(connection, request_bytes(self._target, path, body), answer)
        if answer.error or answer.http.status != 200:
            raise LaneError(answer.error or f"the server answered HTTP {answer.http.status} to {path}")
        try:
            return json.loads(bytes(answer.body))
        except (ValueError, RecursionError):
            raise LaneError(f"the server's answer to {path} is not JSON") from None

    async def accepts(self) -> str | None:
        """Return None when the server accepts connections, else a sentence."""
        try:
            (await self.open()).close()
        except ConnectError as error:
            return str(error)
        return None

    async def _exchange(
        self, connection: Connection, payload: bytes, sink: _Sink, most: float = math.inf
    ) -> None:
        """Write the request and feed `sink` until it is done, or `most` steps. The connection is closed."""
        idle_s = min(_IDLE_S, self.limits.stall_s / 4, self.limits.first_byte_s / 4)
        tape = _Tape(idle_s, self._room, _Acks(connection, self), connection.hurry)
        self._active += 1
        try:
            sink.t0_ns = connection.start(payload, tape.take, tape.end)
            await self._play(tape, sink, most)
        finally:
            self._active -= 1
            tape.close()
            connection.close()

    async def _play(self, tape: _Tape, sink: _Sink, most: float) -> None:
        """Feed `sink` what is on `tape`, when there is cause, until it is done.

        A stall is when no step comes, whatever else does: heads and role deltas come long before a
        prompt is read, and keep-alives from a server that is stuck.
        """
        clock = asyncio.get_running_loop().time
        steps, since = 0, clock()
        while not sink.done:
            lingers = sink.answered
            await tape.woken.wait()
            tape.woken.clear()
            await self._feed(tape, sink)
            if sink.steps != steps:
                steps, since = sink.steps, clock()
            limit = self.limits.stall_s if steps else self.limits.first_byte_s
            if tape.ended or lingers:
                sink.end(tape.broken)
            elif steps > most:
                sink.end(f"the server did not stop: {steps} events came", "protocol")
            elif clock() - since >= limit:
                sink.stalled(limit)

    async def _feed(self, tape: _Tape, sink: _Sink) -> None:
        """Feed the reads on `tape` to `sink`, one stream after the other, with room for reading between."""
        async with self._feeding:
            for count, read in enumerate(tape.unwind()):
                if count % _SLICE == 0 and not tape.eager:
                    await asyncio.sleep(0)
                sink.feed(read)
                if sink.done:
                    return
            tape.eager = not sink.streams

    def _room(self) -> int:
        """How many bytes one stream may leave unread on its tape."""
        return max(_ROOM_BYTES // max(self._active, 1), _LEAST_ROOM_BYTES)


class _Acks:
    """When the events of one answer are acknowledged: at once, or, where there are many, with delay.

    A server that waits for acknowledgements (`Connection.delay_acks`) then sends several events together.
    The first time that is seen, this answer's are at once again; when it was in the middle of the
    answer, so are those of all that come after.
    """

    def __init__(self, connection: Connection, client: Client) -> None:
        self._connection = connection
        self._client = client
        self._delayed = self._together = False

    def running(self) -> None:
        """The answer runs: events will come one by one."""
        if self._connection.many and not self._client.waits_for_acks:
            self._delayed = True
            self._connection.delay_acks(True)

    def came(self, data: bytes) -> None:
        """Look at a read."""
        if self._together and not self._client.waits_for_acks and b"[DONE]" not in data:
            self._client.waits_for_acks = True
        if self._delayed and data.count(b"data:") > 1:
            self._delayed, self._together = False, True
            self._connection.delay_acks(False)


class _Tape:
    """What one connection brought, kept until there is time to look through it.

    Parsing while the streams run would delay the reads of the others, and a read that comes late finds
    several deltas that share one stamp. So reads are kept as they came, and looked through when the
    answer may have ended, when nothing came for `idle_s`, or when there are too many; each at once
    while `eager`, as long as it is not known to be a stream.
    """

    def __init__(
        self, idle_s: float, room: Callable[[], int], acks: _Acks, hurry: Callable[[], None]
    ) -> None:
        self.reads = 0
        self.ended = False
        self.broken: str | None = None
        self.eager = True
        self.woken = asyncio.Event()
        self._acks = acks
        self._hurry = hurry
        self._room = room
        # Flat: tuples in it would be tracked by the garbage collector, which would run often.
        self._kept: list[Any] = []
        self._bytes, self._limit = 0, room()
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._seen = 0
        self._timer = self._loop.call_later(idle_s, self._look)

    def take(self, data: bytes, at_ns: int, read_ns: int, kernel: bool) -> None:
        """Keep a read; wake who waits when it may be the last one, or there are too many."""
        self.reads += 1
        self._kept += (data, at_ns, read_ns, kernel)
        self._bytes += len(data)
        if self.reads >= _RUNNING:
            if self.reads == _RUNNING:
                self._acks.running()
            self._acks.came(data)
        if data.endswith(b"0\r\n\r\n") or b"[DONE]" in data or self._bytes > self._limit or self.eager:
            self._wake()

    def end(self, broken: str | None) -> None:
        self.ended, self.broken = True, broken
        self._wake()

    def _wake(self) -> None:
        self.woken.set()
        self._hurry()

    def unwind(self) -> Iterator[Read]:
        """Yield what is on the tape, which is empty then."""
        kept = iter(self._kept)
        self._kept, self._bytes, self._limit = [], 0, self._room()
        yield from map(Read, kept, kept, kept, kept)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self.reads == self._seen:
            self.woken.set()
        else:
            self._seen = self.reads
        self._timer = self._loop.call_later(self._idle_s, self._look)


class _Answer:
    """The whole body of a plain answer."""

    answered = False
    streams = False

    def __init__(self) -> None:
        self.steps = 0
        self.t0_ns = 0
        self.done = False
        self.error: str | None = None
        self.http = ResponseReader()
        self.body = bytearray()

    def feed(self, read: Read) -> None:
        self.steps += 1
        try:
            self.body += self.http.feed(read.data)
        except ValueError as error:
            self.error = str(error)
        self.done = self.http.complete or self.error is not None

    def end(self, broken: str | None = None, kind: str = "cut") -> None:
        if not self.done and not self.http.ends_with_connection:
            self.error = broken or "the server closed the connection in the middle of an answer"
        self.done = True

    def stalled(self, waited_s: float) -> None:
        self.error = f"the server did not answer within {waited_s:g} s"
        self.done = True
