"""Requests to one server: streamed chats, each on a connection that is open before its t0."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from lanes.bench.http import ResponseReader, Target, request_bytes
from lanes.bench.plan import Limits
from lanes.bench.recorder import Recorder
from lanes.bench.stream import Stream
from lanes.bench.transport import ConnectError, Connection, Read
from lanes.errors import LaneError
from lanes.types import Endpoint

CHAT_PATH = "/v1/chat/completions"
_LINGER_S = 0.2
"""How long to wait after `[DONE]` for the orderly end of the answer."""


class _Sink(Protocol):
    t0_ns: int
    done: bool
    answered: bool

    def feed(self, read: Read) -> None: ...
    def end(self, broken: str | None = None) -> None: ...
    def stalled(self, waited_s: float) -> None: ...


class Client:
    """Talk to `endpoint` from within a running event loop.

    Raises UsageError when the URL is no URL, or the API key's environment variable is not set.
    """

    def __init__(self, endpoint: Endpoint, limits: Limits | None = None) -> None:
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self._target = Target.of(endpoint)

    async def open(self) -> Connection:
        """Open a connection for one request. Raises ConnectError."""
        return await Connection.open(self._target, self.limits.connect_s)

    async def chat(self, body: Mapping[str, Any], connection: Connection | None = None) -> Stream:
        """Send one streamed chat and return what was seen; a failure is in the `Stream`, not raised.

        A `connection` from `open` is used and closed; without one, a connection is opened first.
        """
        payload = request_bytes(self._target, CHAT_PATH, body)
        if connection is None:
            try:
                connection = await self.open()
            except ConnectError as error:
                return Stream(t0_ns=time.time_ns(), failure="connect", error=str(error))
        recorder = Recorder(self._target.redact)
        started = time.perf_counter_ns() - time.time_ns()
        await self._exchange(connection, payload, recorder)
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
        except ValueError:
            raise LaneError(f"the server's answer to {path} is not JSON") from None

    async def accepts(self) -> str | None:
        """Return None when the server accepts connections, else a sentence."""
        try:
            (await self.open()).close()
        except ConnectError as error:
            return str(error)
        return None

    async def _exchange(self, connection: Connection, payload: bytes, sink: _Sink) -> None:
        """Write the request and feed `sink` until it is done. The connection is closed."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        timer: asyncio.TimerHandle
        last = loop.time()
        limit = self.limits.first_byte_s

        def finish() -> None:
            if not finished.done():
                finished.set_result(None)

        def guarded(call: Any, *arguments: Any) -> None:
            # A fault of ours in a callback would otherwise be logged by the loop, and we would wait.
            try:
                call(*arguments)
            except Exception as error:
                if not finished.done():
                    finished.set_exception(error)
                return
            if sink.done:
                finish()

        def on_read(read: Read) -> None:
            nonlocal last, limit
            last, limit = loop.time(), self.limits.stall_s
            answered = sink.answered
            guarded(sink.feed, read)
            if sink.answered and not answered:
                loop.call_later(_LINGER_S, guarded, sink.end)

        def watch() -> None:
            nonlocal timer
            waited = loop.time() - last
            if waited >= limit:
                guarded(sink.stalled, limit)
            else:
                # The limit shrinks with the first byte: look again at least as often as the smaller one.
                timer = loop.call_later(max(min(limit - waited, self.limits.stall_s), 0.001), watch)

        timer = loop.call_later(min(limit, self.limits.stall_s), watch)
        try:
            sink.t0_ns = connection.start(payload, on_read, lambda broken: guarded(sink.end, broken))
            await finished
        finally:
            timer.cancel()
            connection.close()


class _Answer:
    """The whole body of a plain answer."""

    answered = False

    def __init__(self) -> None:
        self.t0_ns = 0
        self.done = False
        self.error: str | None = None
        self.http = ResponseReader()
        self.body = bytearray()

    def feed(self, read: Read) -> None:
        try:
            self.body += self.http.feed(read.data)
        except ValueError as error:
            self.error = str(error)
        self.done = self.http.complete or self.error is not None

    def end(self, broken: str | None = None) -> None:
        if not self.done and not self.http.ends_with_connection:
            self.error = broken or "the server closed the connection in the middle of an answer"
        self.done = True

    def stalled(self, waited_s: float) -> None:
        self.error = f"the server did not answer within {waited_s:g} s"
        self.done = True
