"""A small OpenAI-compatible server that does all that clients ask for, and as it should: against it instruments
must find nothing. With faults, by name, it does one thing wrong::

    with HonestServer(faults={"required-500"}) as server:
        ...  # server.url

It has no model: it knows four facts and a few sentences, and what the format, the tools or the sampling ask for
beyond that it makes up.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import select
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import frozen

from lanes.testing.scripts import count_tokens

FAULTS = frozenset(
    {
        "required-500",  # tool_choice "required" is a 500
        "required-ignored",
        "hangs-on-cancel",  # after a client has left, nobody is answered any more
        "leaks-slots",  # the slot of a client that left is never given free
        "works-on",  # a request whose client left goes on to its end
        "usage-lies",  # three tokens too many
        "gibberish",
        "loops",  # one sentence without end
        "wrong-facts",
        "ignores-stop",
        "overflow-500",
        "overflow-cut",  # a prompt that is too long is cut in silence
        "schema-ignored",
        "n-ignored",
        "types-500",  # a value of a wrong type is a 500
        "dice",  # temperature 0 is none
        "thoughts-in-content",
        "system-dropped",
        "call-as-text",
        "tools-unread",  # accepted, and never shown to the model
        "hangs-on-images",
        "dies-on-images",  # of all connections
        "metrics-html",
    }
)

_FACTS = {"france": "Paris", "2 + 3": "5", "blood": "red", "meows": "cat"}
_SENTENCES = (
    "A river begins in the mountains and runs down to the sea.",
    "Many people have lived beside the water since the first towns were built there.",
    "In the spring it is high, and in a dry summer one can walk through it.",
    "Boats go up and down on it with grain and stone and wood.",
    "There is a bridge near the old mill, where children like to fish.",
    "The fish that live in it are not many, but some of them are large.",
)
_THOUGHTS = "The question is about what is left, so one has to look at the words with care before an answer is given. "
_NUMBERS = ("temperature", "max_tokens", "seed", "n", "top_logprobs")


class _Refused(Exception):
    def __init__(self, *, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class HonestServer:
    """Serve on a free port of the loopback within a `with` block. A token takes `gap_s`; `slots` requests are worked
    on at a time; `context` is the longest prompt and answer together, in tokens."""

    def __init__(
        self,
        faults: Collection[str] = (),
        *,
        model: str = "honest",
        context: int = 8192,
        slots: int = 4,
        gap_s: float = 0.002,
    ) -> None:
        if wrong := set(faults) - FAULTS:
            raise ValueError(f"there is no fault {', '.join(sorted(wrong))}")
        self.faults, self.model, self.context, self.gap_s = frozenset(faults), model, context, gap_s
        self.slots = threading.Semaphore(slots)
        self.running = 0
        self.lock = threading.Lock()
        self.stuck = threading.Event()
        self.stopping = threading.Event()
        self.ids = itertools.count(1)
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HonestServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def die(self) -> None:
        """Accept no connection any more."""
        self._server.shutdown()
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: HonestServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    @property
    def owner(self) -> HonestServer:
        return self.server.owner

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            entry = {"id": self.owner.model, "object": "model", "max_model_len": self.owner.context}
            self._json(200, {"object": "list", "data": [entry]})
        elif self.path == "/metrics":
            html = "metrics-html" in self.owner.faults
            text = (
                "<html>no</html>" if html else f"# TYPE running gauge\nhonest:running {self.owner.running}\n"
            )
            self._send(200, "text/plain", text.encode())
        else:
            self._json(404, {"error": {"message": f"no {self.path} here"}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            try:
                body = json.loads(raw)
            except ValueError as error:
                raise _Refused(status=400, message=f"the body is not JSON: {error}") from None
            if self.path == "/tokenize":
                self._json(200, {"tokens": [0] * count_tokens(body["content"])})
            elif self.path == "/v1/chat/completions":
                self._chat(body)
            else:
                raise _Refused(status=404, message=f"no {self.path} here")
        except _Refused as no:
            self._json(no.status, {"error": {"message": no.message, "code": no.status}})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _chat(self, body: dict[str, Any]) -> None:
        owner = self.owner
        if owner.stuck.is_set():
            owner.stopping.wait()
            return
        _validate(body, owner)
        prompt_tokens = _prompt_tokens(body, owner)
        answers = [_answer(body, owner, index) for index in range(_count(body, owner))]
        owner.slots.acquire()
        with owner.lock:
            owner.running += 1
        left = False
        try:
            left = (
                self._stream(body, prompt_tokens, answers[0])
                if body.get("stream")
                else self._whole(prompt_tokens, answers)
            )
            if left and "hangs-on-cancel" in owner.faults:
                owner.stuck.set()
            if left and "works-on" in owner.faults:
                owner.stopping.wait(owner.gap_s * int(body.get("max_tokens", 16)))
        finally:
            if not (left and "leaks-slots" in owner.faults):
                owner.slots.release()
                with owner.lock:
                    owner.running -= 1

    def _whole(self, prompt_tokens: int, answers: list[_Answer]) -> bool:
        tokens = max(len(a.reasoning) + len(a.pieces) for a in answers)
        if self.owner.stopping.wait(self.owner.gap_s * tokens):
            return False
        choices = [
            {"index": i, "message": a.message(), "finish_reason": a.finish, "logprobs": a.logprobs}
            for i, a in enumerate(answers)
        ]
        self._json(
            200,
            self._head("chat.completion")
            | {"choices": choices, "usage": self._usage(prompt_tokens, answers)},
        )
        return False

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{next(self.owner.ids)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.owner.model,
        }

    def _usage(self, prompt_tokens: int, answers: list[_Answer], upto: int | None = None) -> dict[str, int]:
        counted = sum(a.tokens for a in answers) if upto is None else upto
        counted += 3 if "usage-lies" in self.owner.faults else 0
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": counted,
            "total_tokens": prompt_tokens + counted,
        }

    def _stream(self, body: dict[str, Any], prompt_tokens: int, answer: _Answer) -> bool:
        """Stream an answer; return whether the client left."""
        options = body.get("stream_options") or {}
        head = self._head("chat.completion.chunk")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()

        def write(delta: dict[str, Any], finish: str | None, sent: int) -> None:
            value: dict[str, Any] = {
                **head,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            }
            if options.get("continuous_usage_stats"):
                value["usage"] = self._usage(prompt_tokens, [answer], sent)
            self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
            self.wfile.flush()

        try:
            write({"role": "assistant", "content": ""}, None, 0)
            for sent, delta in enumerate(answer.deltas(), 1):
                if self.owner.stopping.wait(self.owner.gap_s) or self._left():
                    return True
                write(delta, None, sent)
            write({}, answer.finish, answer.tokens)
            if options.get("include_usage"):
                usage = {**head, "choices": [], "usage": self._usage(prompt_tokens, [answer])}
                self.wfile.write(f"data: {json.dumps(usage)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            return True
        return False

    def _left(self) -> bool:
        """Whether the client has closed its end."""
        with contextlib.suppress(OSError):
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        return True


@frozen(kw_only=True)
class _Answer:
    """An answer in pieces of a token each."""

    pieces: tuple[str, ...]
    reasoning: tuple[str, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    finish: str = "stop"
    logprobs: Mapping[str, Any] | None = None

    @property
    def tokens(self) -> int:
        return len(self.reasoning) + len(self.pieces) + sum(count_tokens(json.dumps(c)) for c in self.calls)

    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = {"role": "assistant", "content": "".join(self.pieces)}
        if self.reasoning:
            found["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            found["tool_calls"] = list(self.calls)
        return found

    def deltas(self) -> Iterator[dict[str, Any]]:
        for piece in self.reasoning:
            yield {"reasoning_content": piece}
        for piece in self.pieces:
            yield {"content": piece}
        for index, call in enumerate(self.calls):
            function = call["function"]
            yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
            for part in re.findall(r".{1,8}", function["arguments"]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _validate(body: dict[str, Any], owner: HonestServer) -> None:
    status = 500 if "types-500" in owner.faults else 400
    for name in _NUMBERS:
        if name in body and (isinstance(body[name], bool) or not isinstance(body[name], int | float)):
            raise _Refused(status=status, message=f"{name} should be a number")
    if not isinstance(body.get("messages"), list):
        raise _Refused(status=status, message="messages should be a list")
    if body.get("model") != owner.model:
        raise _Refused(status=404, message=f"there is no model {body.get('model')!r}")
    if any(isinstance(m.get("content"), list) for m in body["messages"]):
        if "hangs-on-images" in owner.faults:
            owner.stopping.wait()
        if "dies-on-images" in owner.faults:
            owner.die()
            raise ConnectionAbortedError
        raise _Refused(status=400, message="this model reads no images")
    if "required-500" in owner.faults and body.get("tool_choice") == "required":
        raise _Refused(status=500, message="grammar could not be compiled")


def _prompt_tokens(body: dict[str, Any], owner: HonestServer) -> int:
    dropped = ("system",) if "system-dropped" in owner.faults else ()
    text = " ".join(str(m.get("content") or "") for m in body["messages"] if m["role"] not in dropped)
    tools = () if "tools-unread" in owner.faults else body.get("tools") or ()
    tokens = count_tokens(text) + count_tokens(json.dumps(tools)) + 10
    if tokens + int(body.get("max_tokens", 16)) <= owner.context:
        return tokens
    if "overflow-cut" in owner.faults:
        return owner.context // 2
    status = 500 if "overflow-500" in owner.faults else 400
    raise _Refused(
        status=status,
        message=f"this model's maximum context length is {owner.context} tokens, and the prompt has {tokens}",
    )


def _count(body: dict[str, Any], owner: HonestServer) -> int:
    return 1 if "n-ignored" in owner.faults else int(body.get("n", 1))


def _answer(body: dict[str, Any], owner: HonestServer, index: int) -> _Answer:
    if calls := tuple(_called(body, owner)):
        return _Answer(pieces=(), calls=calls, finish="tool_calls")
    reasoning = _pieces(_thoughts(body))
    text = _text(body, owner, index)
    pieces = _pieces(text)
    finish = "stop"
    for word in [] if "ignores-stop" in owner.faults else body.get("stop") or []:
        if word in text:
            pieces = _pieces(text := text[: text.index(word)])
    most = int(body.get("max_tokens", 16))
    if len(reasoning) + len(pieces) > most:
        reasoning, pieces, finish = reasoning[:most], pieces[: max(0, most - len(reasoning))], "length"
    if reasoning and "thoughts-in-content" in owner.faults:
        reasoning, pieces = (), ("<think>", *reasoning, "</think>", *pieces)[:most]
    logprobs = None
    if body.get("logprobs"):
        top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}][
            : body.get("top_logprobs", 0)
        ]
        logprobs = {"content": [{"token": p, "logprob": -0.1, "top_logprobs": top} for p in pieces]}
    return _Answer(pieces=tuple(pieces), reasoning=tuple(reasoning), finish=finish, logprobs=logprobs)


def _pieces(text: str) -> tuple[str, ...]:
    """Pieces that are a token each by `count_tokens`, with the space before them."""
    return tuple(re.findall(r"\s*(?:[A-Za-z]{1,7}|\d{1,3}|[^\sA-Za-z\d])", text))


def _thoughts(body: dict[str, Any]) -> str:
    asked = (body.get("chat_template_kwargs") or {}).get("enable_thinking")
    if body.get("reasoning_effort"):
        return _THOUGHTS * {"low": 1, "medium": 2, "high": 4}[body["reasoning_effort"]]
    last = str(body["messages"][-1].get("content"))
    return _THOUGHTS if asked or (asked is None and "sheep" in last) else ""


def _text(body: dict[str, Any], owner: HonestServer, index: int) -> str:
    wanted = (body.get("response_format") or {}).get("type")
    if wanted == "json_schema" and "schema-ignored" not in owner.faults:
        return json.dumps({"city": "Paris", "coastal": False})
    if wanted == "json_object":
        return json.dumps({"city": "Paris"})
    last = str(body["messages"][-1].get("content"))
    if "tools" in body and "call-as-text" in owner.faults:
        return '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    fixed = random.Random(last)
    if "gibberish" in owner.faults:
        return " ".join("".join(fixed.choices("bcdfghjklmnpqrstvwxz", k=5)) for _ in range(2000))
    fact = next((answer for key, answer in _FACTS.items() if key in last.lower()), None)
    if fact is not None:
        return "I do not know." if "wrong-facts" in owner.faults else fact
    dice = random.Random(f"{body.get('seed', random.random())}/{index}")
    order: random.Random | None = dice if body.get("temperature", 1) > 0 or "dice" in owner.faults else None
    if order is not None and "dice" in owner.faults:
        order = random.Random()
    sentences = [_SENTENCES[0]] if "loops" in owner.faults else list(_SENTENCES)
    if order is not None:
        order.shuffle(sentences)
    # As long as anybody may ask for: a story is cut, three sentences are not.
    return " ".join(sentences * (400 if "story" in last or "loops" in owner.faults else 1))


def _called(body: dict[str, Any], owner: HonestServer) -> Iterator[Mapping[str, Any]]:
    tools, choice = body.get("tools") or (), body.get("tool_choice", "auto")
    last = body["messages"][-1]
    if (
        not tools
        or choice == "none"
        or last["role"] == "tool"
        or owner.faults & {"call-as-text", "tools-unread"}
    ):
        return
    if choice == "required" and "required-ignored" in owner.faults:
        return
    name = choice["function"]["name"] if isinstance(choice, dict) else tools[0]["function"]["name"]
    cities = [c for c in ("Paris", "Rome") if c in str(last.get("content"))]
    for city in cities[: None if body.get("parallel_tool_calls") else 1]:
        arguments = json.dumps({"city": city})
        yield {
            "id": f"call_{next(owner.ids)}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
