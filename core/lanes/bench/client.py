"""Requests to one server: streamed chats, each on a connection that is open before its t0."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

from lanes.bench.http import ResponseReader, Target, request_bytes
from lanes.bench.plan import Limits
from lanes.bench.poll import ROOM_BYTES
from lanes.bench.recorder import TEXT_LIMIT
from lanes.bench.shapes import QuickRecorder
from lanes.bench.stream import Stream
from lanes.bench.tape import Nagle, Reads, Tape
from lanes.bench.transport import ConnectError, Connection
from lanes.errors import LaneError
from lanes.types import Endpoint

CHAT_PATH = "/v1/chat/completions"
_IDLE_S = 0.2
"""How long nothing must come before what came is looked through: after `[DONE]`, the wait for the
orderly end of the answer."""
_SLICE = 128
"""Reads that are looked through at once ..."""
_TURN_S = 0.0005
"""... and how long the event loop may be kept from reading meanwhile, but for the last of them."""
_LEAST_ROOM_BYTES = 64 << 10
"""What may wait to be looked through of each stream in any case."""


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
    def feed(self, reads: Reads) -> None: ...
    def end(self, broken: str | None = None, kind: str = "cut") -> None: ...
    def stalled(self, waited_s: float) -> None: ...
    def close(self) -> None: ...


class Client:
    """Talk to `endpoint` from within a running event loop.

    Raises UsageError when the URL is no URL, or the API key's environment variable is not set.
    """

    def __init__(self, endpoint: Endpoint, limits: Limits | None = None) -> None:
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self._target = Target.of(endpoint)
        self._tapes: set[Tape] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._feeding = asyncio.Lock()
        self._turn_over = 0.0
        self._nagle = Nagle()

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
        tape = Tape(connection, self._room, self._nagle)
        self._tapes.add(tape)
        if self._looking is None:
            self._look()
        try:
            sink.t0_ns = connection.start(payload, tape)
            await self._play(tape, sink, most)
        finally:
            self._tapes.discard(tape)
            connection.close()
            sink.close()

    async def _play(self, tape: Tape, sink: _Sink, most: float) -> None:
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

    async def _feed(self, tape: Tape, sink: _Sink) -> None:
        """Feed the reads on `tape` to `sink`, one stream after the other, with room for reading between."""
        async with self._feeding:
            reads = tape.unwind(sink.t0_ns)
            for start in range(0, len(reads), _SLICE):
                if not tape.eager and time.monotonic() > self._turn_over:
                    await asyncio.sleep(0)
                    self._turn_over = time.monotonic() + _TURN_S
                sink.feed(reads[start : start + _SLICE])
                if sink.done:
                    return
            if sink.streams:
                tape.running()

    def _look(self) -> None:
        """Look at all tapes, again and again while there are some."""
        for tape in self._tapes:
            tape.look()
        idle_s = min(_IDLE_S, self.limits.stall_s / 4, self.limits.first_byte_s / 4)
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(idle_s, self._look) if self._tapes else None

    def _room(self) -> int:
        """How many bytes one stream may leave unread on its tape."""
        return max(ROOM_BYTES // max(len(self._tapes), 1), _LEAST_ROOM_BYTES)


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

    def feed(self, reads: Reads) -> None:
        for data in reads.data:
            self.steps += 1
            try:
                self.body += self.http.feed(data)
            except ValueError as error:
                self.error = str(error)
            self.done = self.http.complete or self.error is not None
            if self.done:
                return

    def end(self, broken: str | None = None, kind: str = "cut") -> None:
        if not self.done and not self.http.ends_with_connection:
            self.error = broken or "the server closed the connection in the middle of an answer"
        self.done = True

    def stalled(self, waited_s: float) -> None:
        self.error = f"the server did not answer within {waited_s:g} s"
        self.done = True

    def close(self) -> None:
        self.http.close()
