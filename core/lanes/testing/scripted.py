"""A small OpenAI-compatible server that answers by a script and keeps what it really sent.

It has the habits of real servers, good and bad: role chunks early or late, several tokens a delta,
reasoning first, tool calls, usage once or on every chunk or never, CRLF, comments, split and merged
packets, errors in mid-stream, stalls, cuts, refusals. In a test::

    with ScriptedServer(Script(ttft_s=0.05, gap_s=0.01, cut_after=12)) as server:
        ...  # server.url; afterwards server.answers[0].sent is the truth

As a process, for tests of what happens when an engine dies::

    python -m lanes.testing.scripted --port 8000 --script '{"gap_s": 0.01}' --die-after 3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lanes.testing.scripts import Answer, Script, count_tokens, events

__all__ = ["Answer", "Script", "ScriptedServer", "count_tokens"]


_PLAIN = Script()


class ScriptedServer:
    """Serve on a free port of the loopback, or where told, from `start` to `stop` or within a `with` block.

    `script` is a `Script`, or a function of the request's number (from 0) and body that gives one.
    Prompts that do not fit into `context` tokens with their answers are refused; the list of models
    tells it where `tells_context`. `metrics` gives the text of `/metrics`.
    `slots` requests are worked on at a time, the others wait in line; nobody is answered before
    `together` requests for more than one token have come.
    """

    def __init__(
        self,
        script: Script | Callable[[int, Mapping[str, Any]], Script] = _PLAIN,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        models: tuple[str, ...] = ("scripted",),
        owned_by: str = "lanes",
        tokenizer: bool = True,
        key: str | None = None,
        load_s: float = 0.0,
        die_after: int | None = None,
        tls: ssl.SSLContext | None = None,
        slots: int | None = None,
        together: int = 1,
        context: int | None = None,
        tells_context: bool = True,
        metrics: Callable[[ScriptedServer], str] | None = None,
    ) -> None:
        self.script = script
        self.models, self.owned_by = models, owned_by
        self.tokenizer, self.key, self.die_after = tokenizer, key, die_after
        self.context, self.tells_context, self.metrics = context, tells_context, metrics
        self.ready_at = time.monotonic() + load_s
        self.answers: list[Answer] = []
        self.prompts: list[str] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.slots = threading.Semaphore(slots) if slots else contextlib.nullcontext()
        self.together = threading.Barrier(together)
        self.queues = slots is not None or together > 1
        self._server = _Server(self, host, port, tls)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{'localhost' if tls else host}:{self._server.server_port}"

    def start(self) -> ScriptedServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening and cut all connections, as a process does that dies."""
        self.stopping.set()
        self.together.abort()
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_all()

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cached(self, prompt: str, script: Script) -> int | None:
        """Return the cached tokens to report for `prompt`, and remember it."""
        with self.lock:
            common = max((_common(prompt, earlier) for earlier in self.prompts), default=0)
            self.prompts.append(prompt)
        return count_tokens(prompt[:common]) if script.prefix_cache else script.cached


def _holds(body: Mapping[str, Any], name: str) -> bool:
    first, _, rest = name.partition(".")
    return first in body and (not rest or (isinstance(body[first], dict) and _holds(body[first], rest)))


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, owner: ScriptedServer, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.owner = owner
        self._tls = tls
        self._open: set[socket.socket] = set()
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        sock, address = super().get_request()
        self._open.add(sock)
        return sock, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls:
            request = self._tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)
        if self._tls:
            with contextlib.suppress(OSError):
                request.close()

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        owner = self.server.owner
        if self.path == "/health":
            loading = time.monotonic() < owner.ready_at
            self._json(503 if loading else 200, {"status": "loading" if loading else "ok"})
        elif self.path == "/v1/models" and self._allowed():
            data: list[dict[str, Any]] = [
                {"id": m, "object": "model", "owned_by": owner.owned_by} for m in owner.models
            ]
            if owner.context and owner.tells_context:
                data = [entry | {"max_model_len": owner.context} for entry in data]
            self._json(200, {"object": "list", "data": data})
        elif self.path == "/metrics" and owner.metrics:
            self._send(200, "text/plain; version=0.0.4", owner.metrics(owner).encode())
        elif self.path != "/v1/models":
            self._json(404, {"error": {"message": f"no {self.path} here"}})

    def do_POST(self) -> None:
        got_ns = time.time_ns()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owner = self.server.owner
        if not self._allowed():
            return
        if self.path == "/tokenize" and owner.tokenizer:
            self._json(200, {"tokens": [1] * count_tokens(body.get("content") or body.get("prompt", ""))})
        elif self.path == "/v1/chat/completions":
            self._chat(body, got_ns)
        else:
            self._json(404, {"error": {"message": f"no {self.path} here"}})

    def _allowed(self) -> bool:
        key = self.server.owner.key
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if key is None or given == key:
            return True
        self._json(401, {"error": {"message": f"incorrect API key {given}"}})
        return False

    def _json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _chat(self, body: dict[str, Any], got_ns: int) -> None:
        owner = self.server.owner
        prompt = "".join(m["content"] for m in body["messages"])
        answer = Answer(body, count_tokens(prompt), got_ns)
        with owner.lock:
            number = len(owner.answers)
            owner.answers.append(answer)
        if owner.die_after is not None and number >= owner.die_after:
            os._exit(9)
        script = owner.script if isinstance(owner.script, Script) else owner.script(number, body)
        answer.prompt_tokens += script.template
        refused = [name for name in script.refuses if _holds(body, name)]
        needed = answer.prompt_tokens + int(body.get("max_tokens", 16))
        if owner.context and needed > owner.context:
            message = (
                f"This model's maximum context length is {owner.context} tokens, but {needed} were asked for"
            )
            self._json(400, {"error": {"message": message}})
        elif refused:
            self._json(400, {"error": {"message": f"Unrecognized request argument: {refused[0]}"}})
        elif script.status != 200:
            self._json(script.status, {"error": {"message": script.message}})
        else:
            if body.get("max_tokens", 16) > 1:
                with contextlib.suppress(threading.BrokenBarrierError):
                    owner.together.wait()
            with owner.slots:
                # What waited for others is worked on from now; else the request's arrival counts.
                start_s = time.time() if owner.queues else got_ns / 1e9
                cached = owner.cached(prompt, script)
                if body.get("stream"):
                    self._stream(script, answer, cached, start_s)
                else:
                    self._whole(script, answer, start_s)

    def _whole(self, script: Script, answer: Answer, start_s: float) -> None:
        """Answer at once, when the last delta of a stream would be due."""
        tokens = script.tokens if script.tokens is not None else int(answer.body.get("max_tokens", 16))
        due_s = script.ttft_s + max(tokens - 1, 0) // script.tokens_per_delta * script.gap_s
        if self.server.owner.stopping.wait(max(start_s + due_s - time.time(), 0.0)):
            return
        answer.sent.append((time.time_ns(), tokens))
        message = {"role": "assistant", "content": script.word * tokens}
        value: dict[str, Any] = {
            "object": "chat.completion",
            "model": answer.body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": script.finish}],
        }
        if script.usage != "none":
            value["usage"] = {
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": answer.prompt_tokens + tokens,
            }
        self._json(200, value)

    def _stream(self, script: Script, answer: Answer, cached: int | None, start_s: float) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if script.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
        self.close_connection = not script.chunked
        self.end_headers()
        for due_s, tokens, data in events(script, answer, cached):
            wait_s = start_s + due_s - time.time()
            if wait_s > 0 and self.server.owner.stopping.wait(wait_s):
                return
            if data is None:
                self.close_connection = True
                return
            if tokens:
                answer.sent.append((time.time_ns(), tokens))
            self._write(data.encode(), script)
        if script.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _write(self, data: bytes, script: Script) -> None:
        framed = b"%x\r\n%b\r\n" % (len(data), data) if script.chunked else data
        size = script.packet or len(framed)
        for start in range(0, len(framed), size):
            self.wfile.write(framed[start : start + size])


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="A server that answers by a script.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--script", type=json.loads, default={}, help="fields of Script, as JSON")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--load-s", type=float, default=0.0, help="answer 503 on /health for so long")
    parser.add_argument("--die-after", type=int, help="exit with code 9 on the chat after so many")
    given = parser.parse_args()
    server = ScriptedServer(
        Script(**given.script),
        port=given.port,
        models=(given.model,),
        load_s=given.load_s,
        die_after=given.die_after,
    )
    sys.stdout.write(f"listening on {server.url}\n")
    sys.stdout.flush()
    server.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
