"""What one event of a chat stream holds: which kind of delta, which usage, which error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from lanes.bench.arrivals import TOKEN_KINDS
from lanes.bench.sse import Event, Stray

_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_CONTENT = ("content", "refusal")
_NO_TOKENS = {
    "role",
    "name",
    "id",
    "type",
    "object",
    "model",
    "status",
    "channel",
    "recipient",
    "obfuscation",
}
"""Text in a delta that is no part of the answer."""
_MOST = 2**53
"""Larger numbers are no counts, and floats do not hold them."""
_QUOTED = 60


@frozen(kw_only=True)
class Usage:
    """The server's count of a request's tokens. None means that the server does not tell."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None


@frozen(kw_only=True)
class Delta:
    """One event, understood.

    `kind` is `role` (role only), `empty`, `content`, `reasoning`, `tool`, `finish`, `usage`, `done`,
    `error` or `unknown`; an event that is several of them has the kind that comes first in: error,
    tokens, finish, usage. `cumulative` is the completion tokens so far, from usage or timings on this
    event; `tokens` those in this delta, from `token_source` (`token_ids` or `logprobs`). An `unknown`
    one may have carried tokens, in a form that nobody here knows: `odd` says which.
    """

    kind: str
    text: str = ""
    cumulative: int | None = None
    tokens: int | None = None
    token_source: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    timings: Mapping[str, float] | None = None
    odd: str | None = None


def read_delta(event: Event | Stray) -> Delta:
    """Return what `event` holds. Raises ValueError when it is no event of a chat stream."""
    try:
        return _stray(event.line) if isinstance(event, Stray) else _read(event)
    except RecursionError:
        raise ValueError("the stream held JSON that is nested too deeply") from None


def _read(event: Event) -> Delta:
    data = event.data
    if data.strip() == "[DONE]":
        return Delta(kind="done")
    if event.type == "ping" or (not data and event.type != "error"):
        return Delta(kind="empty")
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
        if event.type != "error":
            raise ValueError("the stream held data that is not JSON") from None
    if event.type == "error":
        return Delta(kind="error", error=error_message(chunk) or data)
    if not isinstance(chunk, dict):
        raise ValueError("the stream held JSON that is not an object")
    if (error := _error(chunk)) is not None:
        return Delta(kind="error", error=error or data)
    choices = chunk.get("choices")
    choice = _first(choices)
    usage = read_usage(chunk.get("usage"))
    timings = _numbers(chunk.get("timings"))
    kind, text, odd = _content(choice.get("delta"))
    finish = _finish(choice.get("finish_reason"))
    tokens, source = _delta_tokens(choice, chunk)
    if kind not in TOKEN_KINDS:
        if finish:
            kind = "finish"
        else:
            odd = odd or _unknown(chunk, choice)
            if odd:
                kind = "unknown"
            elif not choice and usage is not None:
                kind = "usage"
    cumulative = usage.completion_tokens if usage else None
    if cumulative is None and timings and timings.get("predicted_n", -1) >= 0:
        cumulative = int(timings["predicted_n"])
    return Delta(
        kind=kind,
        text=text,
        cumulative=cumulative,
        tokens=tokens,
        token_source=source,
        usage=usage,
        finish_reason=finish,
        timings=timings,
        odd=odd,
    )


def _stray(line: str) -> Delta:
    """An error that was written without its `data:`. Raises ValueError for any other line."""
    try:
        chunk = json.loads(line)
    except ValueError:
        chunk = None
    error = _error(chunk) if isinstance(chunk, dict) else None
    if error is None:
        raise ValueError(f"the stream held a line that is no event ({_quoted(line)})")
    return Delta(kind="error", error=error or line)


def _error(chunk: Mapping[str, Any]) -> str | None:
    """The error that `chunk` is, "" when it is one without words, or None. Some servers write
    `{"error": ...}`, others the bare `{"object": "error", "message": ...}` or `{"detail": ...}`."""
    if chunk.get("error") not in (None, False, ""):
        return error_message(chunk) or ""
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return error_message(chunk) or ""
    return error_message(chunk) if "choices" not in chunk and "usage" not in chunk else None


def _finish(value: Any) -> str | None:
    """The finish reason; some servers write it as `{"type": reason}`."""
    if isinstance(value, dict):
        value = value.get("type", "unknown")
    return (value if isinstance(value, str) else str(value))[:_QUOTED] if value else None


def _unknown(chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
    """What in an event without tokens, finish or usage is of a form that nobody here knows."""
    choices = chunk.get("choices")
    if choice:
        known = choice.get("delta") is None or isinstance(choice["delta"], dict)
        return None if known and "delta" in choice else "a choice without a delta"
    if "choices" in chunk:
        return None if choices is None or choices == [] else "choices that are none"
    alone = any(chunk.get(name) for name in ("usage", "timings")) or chunk.get("type") == "ping"
    listed = any(isinstance(v, list) and v and isinstance(v[0], dict) for v in chunk.values())
    return None if alone and not listed else "an event without choices"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED else text[: _QUOTED - 3] + "...")


def error_message(value: Any) -> str | None:
    """Return the message of an error as servers write it, or None: `{"error": {"message": m}}`,
    `{"error": m}`, `{"message": m}`, `{"detail": m}` or a bare string."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        for key in ("error", "message", "detail", "msg"):
            if found := error_message(value.get(key)):
                return found
    if isinstance(value, list) and value:
        return error_message(value[0])
    return None


def read_usage(value: Any) -> Usage | None:
    """Return the usage block, or None when it is absent or counts nothing."""
    if not isinstance(value, dict):
        return None
    prompt, completion = _count(value, "prompt_tokens"), _count(value, "completion_tokens")
    if prompt is None and completion is None:
        return None
    cached = _count(value.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _count(value, "prompt_cache_hit_tokens")
    reasoning = _count(value.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(value, "reasoning_tokens")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
        total_tokens=_count(value, "total_tokens"),
    )


def _content(delta: Any) -> tuple[str, str, str | None]:
    """The kind of delta, its text, and what in it is odd."""
    if not isinstance(delta, dict):
        return "empty", "", None
    content = _named(delta, _CONTENT)
    # Some servers send the same thoughts under several names: counted once.
    reasoning = _named(delta, _REASONING)
    if content:
        return "content", reasoning + content, None
    if reasoning:
        return "reasoning", reasoning, None
    calls = delta.get("tool_calls")
    call = "".join(map(_call_text, calls)) if isinstance(calls, list) else ""
    call = call or _call_text({"function": delta.get("function_call")})
    if call:
        return "tool", call, None
    return ("role" if delta.get("role") else "empty"), "", _odd(delta)


def _named(delta: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if name in delta and (text := _text(delta[name])):
            return text
    return ""


def _odd(delta: Mapping[str, Any]) -> str | None:
    """What in a delta without tokens looks like tokens all the same."""
    for name, value in delta.items():
        if isinstance(value, str):
            if value and name not in _NO_TOKENS:
                return f"text under the name {_quoted(name)}"
        elif name in (*_CONTENT, *_REASONING) and value is not None and not isinstance(value, list | dict):
            return f"{name} that is no text"
    return None


def _text(value: Any) -> str:
    """Text as a string, or as a list of parts that hold it under `text` or `thinking`."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return _text(value.get("text")) or _text(value.get("thinking")) or _text(value.get("summary"))
    return ""


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ""
    return _text(function.get("name")) + _text(function.get("arguments"))


def _delta_tokens(choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> tuple[int | None, str | None]:
    for holder in (choice, chunk):
        ids = holder.get("token_ids")
        if isinstance(ids, list):
            return len(ids), "token_ids"
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return (len(content), "logprobs") if isinstance(content, list) else (None, None)


def _first(choices: Any) -> Mapping[str, Any]:
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _count(value: Any, key: str) -> int | None:
    found: Any = value.get(key) if isinstance(value, dict) else None
    whole = _is_number(found) and found >= 0 and found == int(found)
    return int(found) if whole else None


def _numbers(value: Any) -> dict[str, float] | None:
    return {k: v for k, v in value.items() if _is_number(v)} if isinstance(value, dict) else None


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -_MOST <= value <= _MOST  # neither NaN nor infinite
    )
