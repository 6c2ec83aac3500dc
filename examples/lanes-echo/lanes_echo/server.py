"""The server that is launched: OpenAI's chat completions, answered with the words of the prompt.

A token is a word. An answer repeats the words of the prompt in order, at a set pace, until they end
(`finish_reason` "stop") or `max_tokens` is reached ("length"); with `ignore_eos` it starts over. A request may
set the pace of its own answer: `tokens_per_second`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from lanes_echo.wire import Connection, Server


def log(message: str) -> None:
    """Write a line to stderr, which `lanes` keeps as the lane's log."""
    sys.stderr.write(f"echo: {message}\n")
    sys.stderr.flush()


class Refused(Exception):
    """A request that cannot be answered: the HTTP status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Echo:
    """The state of the server, and its answers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._options = arguments
        self._ready = threading.Event()
        self._slots = threading.Semaphore(arguments.parallel)
        self._lock = threading.Lock()
        self._count = {"waiting": 0, "running": 0, "answers": 0, "tokens": 0}

    def load(self) -> None:
        """Pretend to load the model."""
        log(f"loading {self._options.alias}")
        for step in range(1, 11):
            time.sleep(0.0 if self._options.dummy else self._options.load_seconds / 10)
            log(f"loaded {step * 10}%")
            if step == 5 and self._options.die_while_loading:
                log("error: the pretended memory does not suffice")
                os._exit(3)
            if step == 5 and self._options.die_once and not os.path.exists(self._options.die_once):
                log("error: a neighbour is in the way")
                with contextlib.suppress(OSError):
                    open(self._options.die_once, "x").close()
                os._exit(4)
            if step == 5 and self._options.never_healthy:
                return
        self._ready.set()
        log("ready")

    def answer(self, connection: Connection, method: str, path: str, body: bytes) -> None:
        """Answer one request."""
        try:
            if path == "/health" or path.startswith("/v1/chat"):
                self._refuse_while_loading()
            if (method, path) == ("GET", "/health"):
                connection.send(200, {"status": "ok"})
            elif (method, path) == ("GET", "/v1/models"):
                connection.send(
                    200, {"object": "list", "data": [{"id": self._options.alias, "object": "model"}]}
                )
            elif (method, path) == ("GET", "/metrics"):
                lines = "".join(f"echo:{name} {count}\n" for name, count in self._count.items())
                connection.send(200, lines.encode(), "text/plain; version=0.0.4")
            elif (method, path) == ("POST", "/tokenize"):
                words = str(_parsed(body).get("content", "")).split()
                connection.send(200, {"tokens": [zlib.crc32(word.encode()) for word in words]})
            elif (method, path) == ("POST", "/v1/chat/completions"):
                self._complete(connection, _parsed(body))
            else:
                raise Refused(404, f"there is no {method} {path}")
        except Refused as refused:
            connection.send(refused.status, {"error": {"code": refused.status, "message": str(refused)}})

    def _refuse_while_loading(self) -> None:
        if not self._ready.is_set():
            raise Refused(503, "Loading model")

    def _add(self, name: str, count: int = 1) -> int:
        with self._lock:
            self._count[name] += count
            return self._count[name]

    def _complete(self, connection: Connection, request: dict[str, Any]) -> None:
        model = self._options.alias
        if request.get("model", model) != model:
            raise Refused(404, f"there is no model {request['model']!r}; this server has {model!r}")
        words = [word for message in _messages(request) for word in message.split()]
        if not words:
            raise Refused(400, "the messages have no words to echo")
        limit = request.get("max_completion_tokens", request.get("max_tokens"))
        if limit is not None and (type(limit) is not int or limit < 1):
            raise Refused(400, f"max_tokens should be a whole number above 0, not {limit!r}")
        if self._add("answers") > _or_never(self._options.status_500_after):
            log("error: asked to answer 500")
            raise Refused(500, "this server was told to fail")
        if len(words) > _or_never(self._options.die_above_tokens):
            log(f"fatal: a prompt of {len(words)} tokens: kernel timed out, as it was told to")
            os._exit(8)
        wanted = limit if limit is not None else len(words)
        pace = request.get("tokens_per_second", self._options.tokens_per_second)
        if isinstance(pace, bool) or not isinstance(pace, int | float) or pace <= 0:
            raise Refused(400, f"tokens_per_second should be a number above 0, not {pace!r}")
        count = wanted if request.get("ignore_eos") else min(wanted, len(words))
        finish = "length" if count == wanted and limit is not None else "stop"
        usage = {
            "prompt_tokens": len(words),
            "completion_tokens": count,
            "total_tokens": len(words) + count,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        self._add("waiting")
        with self._slot(leaks=len(words) > _or_never(self._options.leak_above_tokens)):
            self._add("waiting", -1)
            self._add("running")
            try:
                tokens = self._paced(words, count, pace)
                if request.get("stream"):
                    include = bool((request.get("stream_options") or {}).get("include_usage"))
                    self._stream(connection, tokens, finish, usage if include else None)
                else:
                    message = {"role": "assistant", "content": "".join(tokens)}
                    choice = {"index": 0, "message": message, "finish_reason": finish}
                    whole = self._chunk([choice]) | {"object": "chat.completion", "usage": usage}
                    connection.send(200, whole)
            finally:
                self._add("running", -1)

    @contextlib.contextmanager
    def _slot(self, leaks: bool) -> Iterator[None]:
        """Wait for a place to answer in."""
        self._slots.acquire()
        try:
            yield
        finally:
            if leaks:
                log("error: leaked a slot, as it was told to")
            else:
                self._slots.release()

    def _paced(self, words: Sequence[str], count: int, pace: float) -> Iterator[str]:
        """The tokens of an answer, each when it is due: deadlines, not pauses, so that no delay adds up."""
        first = time.monotonic() + len(words) / self._options.prefill_tokens_per_second
        for number in range(count):
            due = first + number / pace
            time.sleep(max(0.0, due - time.monotonic()))
            yield words[number % len(words)] if number == 0 else f" {words[number % len(words)]}"
            if self._add("tokens") == self._options.die_after_tokens:
                log("fatal: died, as it was told to")
                os._exit(7)

    def _stream(
        self, connection: Connection, tokens: Iterator[str], finish: str, usage: dict[str, Any] | None
    ) -> None:
        options = self._options
        connection.start_stream()
        connection.event(self._delta({"role": "assistant", "content": ""}))
        for number, token in enumerate(tokens):
            if number == options.cut_stream_after:
                log("error: cut a stream, as it was told to")
                connection.cut()
            if number == options.stall_stream_after:
                log("error: stalled a stream, as it was told to")
                threading.Event().wait()
            connection.event(self._delta({"content": token}))
        connection.event(self._delta({}, finish))
        if usage is not None:
            connection.event(self._chunk([]) | {"usage": usage})
        connection.event("[DONE]")
        connection.end_stream()

    def _delta(self, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": finish}])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": "chatcmpl-echo",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._options.alias,
            "choices": choices,
        }


def _or_never(limit: int | None) -> float:
    return float("inf") if limit is None else limit


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise Refused(400, "the body is not a JSON object")
    return request


def _messages(request: dict[str, Any]) -> Iterator[str]:
    """The text of each message; its content may be a string or a list of parts."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise Refused(400, "messages should be a list of objects")
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, str):
            yield content
        else:
            yield from (str(part.get("text", "")) for part in content if isinstance(part, dict))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lanes_echo.server", description="Echo prompts over OpenAI's API.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--alias", default="echo-1", help="the model's name in the API (default: %(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8080, help="port to listen on (default: %(default)s)")
    add("--tokens-per-second", type=float, default=500.0, metavar="X")
    add("--prefill-tokens-per-second", type=float, default=50_000.0, metavar="X")
    add("--load-seconds", type=float, default=0.1, metavar="X")
    add("--parallel", type=int, default=4, metavar="N")
    add("--dummy", action="store_true", help="pretend to load nothing")
    add("--check-flags", action="store_true", help="read the flags, and end")
    add("--check-kernels", action="store_true", help="multiply two numbers, and end")
    add("--fail-kernels", action="store_true")
    add("--die-while-loading", action="store_true")
    add("--die-once", metavar="FILE")
    add("--never-healthy", action="store_true")
    add("--die-after-tokens", type=int, metavar="N")
    add("--die-above-tokens", type=int, metavar="N")
    add("--leak-above-tokens", type=int, metavar="N")
    add("--cut-stream-after", type=int, metavar="N")
    add("--stall-stream-after", type=int, metavar="N")
    add("--status-500-after", type=int, metavar="N")
    add("--ignore-stop", action="store_true")
    return parser


def _kernels(fail: bool) -> int:
    """Pretend to run a kernel."""
    if fail:
        log("error: no kernel image is available for this device")
        return 1
    log(f"6 * 7 = {6 * 7} on the CPU")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return 1 when the port cannot be had."""
    arguments = _parser().parse_args(argv)
    if arguments.check_flags:
        log("the flags are understood")
        return 0
    if arguments.check_kernels:
        return _kernels(arguments.fail_kernels)

    def stop(number: int, frame: FrameType | None) -> None:
        if not arguments.ignore_stop:
            log("stopping")
            sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    echo = Echo(arguments)
    try:
        server = Server(arguments.host, arguments.port, echo.answer)
    except OSError as error:
        log(f"error: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}")
        return 1
    log(f"listening on http://{arguments.host}:{server.server_address[1]}")
    threading.Thread(target=echo.load, daemon=True).start()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
