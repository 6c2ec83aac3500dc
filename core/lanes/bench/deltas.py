"""What one event of a chat stream holds: which kind of delta, which usage, which error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from lanes.bench.sse import Event

TOKEN_KINDS = frozenset({"content", "reasoning", "tool"})
"""Kinds of delta that carry tokens. A role-only, empty, finish or usage delta carries none."""


@frozen(kw_only=True)
class Usage:
    """The server's count of a request's tokens. None means that the server does not tell."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@frozen(kw_only=True)
class Delta:
    """One event, understood.

    `kind` is `role` (role only), `empty`, `content`, `reasoning`, `tool`, `finish`, `usage`, `done`
    or `error`; an event that is several of them has the kind that comes first in: error, tokens,
    finish, usage. `cumulative` is the completion tokens so far, from usage or timings on this
    event; `tokens` those in this delta, from `token_source` (`token_ids` or `logprobs`).
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


def read_delta(event: Event) -> Delta:
    """Return what `event` holds. Raises ValueError when its data is not a JSON object."""
    if event.data.strip() == "[DONE]":
        return Delta(kind="done")
    try:
        chunk = json.loads(event.data)
    except (ValueError, RecursionError):
        chunk = None
        if event.type != "error":
            raise ValueError("the stream held data that is not JSON") from None
    if event.type == "error" or (isinstance(chunk, dict) and chunk.get("error")):
        return Delta(kind="error", error=error_message(chunk) or event.data)
    if not isinstance(chunk, dict):
        raise ValueError("the stream held JSON that is not an object")
    choice = _first(chunk.get("choices"))
    usage = read_usage(chunk.get("usage"))
    timings = _numbers(chunk.get("timings"))
    kind, text = _content(choice.get("delta"))
    finish = choice.get("finish_reason")
    tokens, source = _delta_tokens(choice, chunk)
    if kind not in TOKEN_KINDS:
        if finish:
            kind = "finish"
        elif not choice and usage is not None:
            kind = "usage"
    cumulative = usage.completion_tokens if usage else None
    if cumulative is None and timings and "predicted_n" in timings:
        cumulative = int(timings["predicted_n"])
    return Delta(
        kind=kind,
        text=text,
        cumulative=cumulative,
        tokens=tokens,
        token_source=source,
        usage=usage,
        finish_reason=finish if isinstance(finish, str) else None,
        timings=timings,
    )


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
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, reasoning_tokens=reasoning
    )


def _content(delta: Any) -> tuple[str, str]:
    if not isinstance(delta, dict):
        return "empty", ""
    content = _text(delta.get("content"))
    # Some servers send the same thoughts under both names: counted once.
    reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    if content:
        return "content", reasoning + content
    if reasoning:
        return "reasoning", reasoning
    calls = delta.get("tool_calls")
    if isinstance(calls, list) and calls:
        return "tool", "".join(map(_call_text, calls))
    if isinstance(delta.get("function_call"), dict):
        return "tool", _call_text({"function": delta["function_call"]})
    return ("role", "") if delta.get("role") else ("empty", "")


def _text(value: Any) -> str:
    """Text as a string, or as a list of parts that hold it under `text` or `thinking`."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return _text(value.get("text")) or _text(value.get("thinking"))
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
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _numbers(value: Any) -> dict[str, float] | None:
    if not isinstance(value, dict):
        return None
    return {k: v for k, v in value.items() if isinstance(v, int | float) and not isinstance(v, bool)}
