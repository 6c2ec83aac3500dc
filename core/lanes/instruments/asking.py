"""Ask a server one thing, and keep what was sent and what came: for instruments that look at answers.

Nothing here is timed well enough for a figure: `lanes.bench` does that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from attrs import define, field, frozen

from lanes.bench.deltas import Usage as Usage
from lanes.bench.deltas import error_message, read_usage
from lanes.bench.http import Target
from lanes.bench.sse import Event, SseParser
from lanes.types import Endpoint

CHAT = "/v1/chat/completions"
REASONING = ("reasoning_content", "reasoning")
"""The names under which servers give a model's thoughts."""

_LONGEST_KEPT = 2000
_CONNECT_S = 10.0
_CHARS_PER_WRITTEN = 16
"""Characters of a prompt that take no longer than a token of the answer: four tokens."""
_SLACK = 4.0
"""By how much an answer may be slower than the slowest before."""


@frozen(kw_only=True)
class Message:
    """What a chat's answer says, of one choice: streamed or not."""

    content: str = ""
    reasoning: str = ""
    reasoning_field: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None


@define(kw_only=True)
class Exchange:
    """One request and its answer.

    `status` is 0 where no answer came; `trouble` says then why: `hang` (nothing for longer than the
    patience), `cut`, `refused` (no connection), with `error` in one sentence. `body` is the answer's JSON,
    None where it is none; `chunks` the JSON of a stream's events, `done` whether `[DONE]` ended it.
    """

    method: str
    path: str
    sent: Any
    status: int = 0
    text: str = ""
    body: Any = None
    stream: bool = False
    chunks: list[Any] = field(factory=list)
    done: bool = False
    left: bool = False
    """We closed the connection in the middle of the stream."""
    seconds: float = 0.0
    trouble: Literal["hang", "cut", "refused"] | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.trouble is None and self.error is None

    @property
    def message(self) -> Message:
        """The first choice, put together from the deltas where it was streamed."""
        return self.choice(0)

    @property
    def choices(self) -> list[Any]:
        return _list(self.body, "choices")

    @property
    def usage(self) -> Usage | None:
        """The last usage that came."""
        told = (
            [c.get("usage") for c in self.chunks if isinstance(c, dict)]
            if self.stream
            else [_get(self.body, "usage")]
        )
        return next((u for one in reversed(told) if (u := read_usage(one))), None)

    def choice(self, index: int) -> Message:
        if not self.stream:
            one = self.choices[index] if index < len(self.choices) else {}
            return _message(_get(one, "message"), _get(one, "finish_reason"))
        return _joined(self.chunks, index)

    def as_json(self) -> dict[str, Any]:
        """Request and answer for a result: long texts cut."""
        answer: Any = self.text if self.body is None else self.body
        if self.stream:
            head = self.chunks[:3]
            answer = {
                "events": len(self.chunks),
                "first": head,
                "last": self.chunks[max(len(head), len(self.chunks) - 3) :],
                "done": self.done,
                "content": self.message.content,
            }
        return {
            "request": f"{self.method} {self.path}",
            "sent": _short(self.sent),
            "status": self.status,
            "answer": _short(answer),
            "seconds": round(self.seconds, 3),
            "error": self.error,
        }


class Asker:
    """Talks to `endpoint`; waits `patience_s` for the next byte of an answer, and longer by what its tokens may take
    by the slowest answer so far: one that is not streamed comes at once, and so may a tool call. Every
    exchange is handed to `keep`. Raises `UsageError` when the URL or the key is wrong.
    """

    def __init__(
        self, endpoint: Endpoint, patience_s: float, keep: Callable[[Exchange], None] = lambda _: None
    ) -> None:
        import httpx2

        self.endpoint, self.patience_s, self._keep = endpoint, patience_s, keep
        self._target = Target.of(endpoint)
        self._token_s = 0.0
        headers = {"User-Agent": "lanes"}
        if self._target.key:
            headers["Authorization"] = f"Bearer {self._target.key}"
        self._http = httpx2.Client(
            trust_env=False,
            headers=headers,
            # A server that a request has spoiled must not spoil the next one through its connection.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    def close(self) -> None:
        self._http.close()

    def allowance_s(self, tokens: int) -> float:
        """How long so many tokens may take, by the slowest answer so far."""
        return _SLACK * self._token_s * tokens

    def get(self, path: str) -> Exchange:
        return self._ask(Exchange(method="GET", path=path, sent=None), None)

    def post(
        self,
        path: str,
        body: Any,
        leave: Callable[[Exchange], bool] | None = None,
        patience_s: float | None = None,
    ) -> Exchange:
        """Send JSON, or bytes as they are. Of a stream, `leave` may end the reading: the connection is closed."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        shown = body.decode(errors="replace") if isinstance(body, bytes) else body
        return self._ask(Exchange(method="POST", path=path, sent=shown), content, leave, patience_s)

    def chat(
        self,
        content: Any = "",
        *,
        leave: Callable[[Exchange], bool] | None = None,
        patience_s: float | None = None,
        **fields: Any,
    ) -> Exchange:
        """Send a chat in the endpoint's dialect: one user message, or `messages`; a field of None is left out."""
        dialect = self.endpoint.dialect
        limit = "max_completion_tokens" if "max_tokens" in dialect.forbidden else "max_tokens"
        most = fields.pop("max_tokens", 64)
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            limit: most,
            "temperature": 0,
            **dialect.extra,
            **fields,
        }
        body = {k: v for k, v in body.items() if v is not None and k not in dialect.forbidden}
        # A prompt is read several times as fast as an answer is written, or faster.
        read = len(json.dumps(body["messages"])) // _CHARS_PER_WRITTEN
        told = read + (most if isinstance(most, int) else 0)
        waits_s = patience_s or self.patience_s + self.allowance_s(told)
        one = self.post(CHAT, body, leave, waits_s)
        if one.ok and one.usage and (tokens := one.usage.completion_tokens):
            self._token_s = max(self._token_s, one.seconds / tokens)
        return one

    def _ask(
        self,
        one: Exchange,
        content: bytes | None,
        leave: Callable[[Exchange], bool] | None = None,
        patience_s: float | None = None,
    ) -> Exchange:
        import httpx2

        began = time.monotonic()
        waits_s = patience_s or self.patience_s
        timeout = httpx2.Timeout(waits_s, connect=min(_CONNECT_S, waits_s))
        headers = {"Content-Type": "application/json"} if content is not None else {}
        try:
            url = self.endpoint.url + one.path
            with self._http.stream(
                one.method, url, content=content, headers=headers, timeout=timeout
            ) as answer:
                one.status = answer.status_code
                one.stream = answer.headers.get("content-type", "").startswith("text/event-stream")
                if one.stream:
                    _read_events(one, answer.iter_bytes(), leave)
                else:
                    one.text = self._target.redact(answer.read().decode(errors="replace"))
                    one.body = _json(one.text)
        except httpx2.ConnectError as error:
            one.trouble, one.error = "refused", f"the server accepts no connection: {error}"
        except httpx2.TimeoutException:
            one.trouble, one.error = "hang", f"nothing came for {waits_s:.0f} s"
        except httpx2.HTTPError as error:
            one.trouble, one.error = "cut", f"the connection broke: {error or type(error).__name__}"
        one.seconds = time.monotonic() - began
        if one.error is None and one.status >= 400:
            said = error_message(one.body) or one.text.strip()
            one.error = f"HTTP {one.status}" + (f": {said[:300]}" if said else "")
        self._keep(one)
        return one


def _read_events(one: Exchange, parts: Any, leave: Callable[[Exchange], bool] | None) -> None:
    parser = SseParser()
    for part in parts:
        for event in parser.feed(part):
            data = event.data if isinstance(event, Event) else event.line
            if data.strip() == "[DONE]":
                one.done = True
                continue
            chunk = _json(data)
            if chunk is None:
                one.error = one.error or f"the stream held {data[:60]!r}, which is not JSON"
                continue
            one.chunks.append(chunk)
            if isinstance(chunk, dict) and chunk.get("error"):
                one.error = one.error or f"an error in the stream: {error_message(chunk) or data[:200]}"
        if leave is not None and leave(one):
            one.left = True
            return


def _message(value: Any, finish: Any) -> Message:
    value = value if isinstance(value, dict) else {}
    named = next((n for n in REASONING if isinstance(value.get(n), str) and value[n]), None)
    content = value.get("content")
    return Message(
        content=content if isinstance(content, str) else "",
        reasoning=value[named] if named else "",
        reasoning_field=named,
        tool_calls=tuple(c for c in _list(value, "tool_calls") if isinstance(c, dict)),
        finish_reason=finish if isinstance(finish, str) else None,
    )


def _joined(chunks: list[Any], index: int) -> Message:
    """Put the deltas of one choice together."""
    content, reasoning, named, finish = "", "", None, None
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in _list(chunk, "choices"):
            if not isinstance(choice, dict) or choice.get("index", 0) != index:
                continue
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            content += delta.get("content") or ""
            found = next((n for n in REASONING if delta.get(n)), None)
            if found:
                named, reasoning = found, reasoning + delta[found]
            for call in _list(delta, "tool_calls"):
                _join_call(calls, call)
            finish = choice.get("finish_reason") or finish
    return Message(
        content=content,
        reasoning=reasoning,
        reasoning_field=named,
        tool_calls=tuple(calls[i] for i in sorted(calls)),
        finish_reason=finish,
    )


def _join_call(calls: dict[int, dict[str, Any]], call: Any) -> None:
    if not isinstance(call, dict):
        return
    index = call.get("index", len(calls))
    one = calls.setdefault(
        index if isinstance(index, int) else 0,
        {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
    )
    one["id"] = call.get("id") or one["id"]
    function = call.get("function")
    if isinstance(function, dict):
        one["function"]["name"] += function.get("name") or ""
        one["function"]["arguments"] += function.get("arguments") or ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any, key: str) -> list[Any]:
    found = _get(value, key)
    return found if isinstance(found, list) else []


def _short(value: Any) -> Any:
    """The same with long texts cut, and long lists."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_KEPT else f"{value[:500]} ... ({len(value):,} characters)"
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        kept = [_short(v) for v in value[:20]]
        return kept if len(value) <= 20 else [*kept, f"... ({len(value):,} items)"]
    return value
