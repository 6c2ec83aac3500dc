"""How long a context the server has: asked where it tells, learned where it refuses a prompt."""

from __future__ import annotations

import re
from typing import Any

from lanes.bench.http import api_key
from lanes.bench.plan import Cell
from lanes.bench.stream import Stream
from lanes.types import Endpoint

_TIMEOUT_S = 5.0
_OVERFLOW = re.compile(
    r"context (?:length|size|window)|(?:maximum|available|exceeds?)[^.]{0,40} context|n_ctx"
    r"|(?:prompt|input|request)[^.]{0,60} (?:too long|longer than|exceeds?)|max(?:imum)?[_ ]model[_ ]len",
    re.IGNORECASE,
)


class Context:
    """What is known of the server's context, and so which cells cannot be measured."""

    def __init__(self, tokens: int | None = None) -> None:
        self.tokens = tokens
        self._refused: tuple[int, str] | None = None

    def refused(self, cell: Cell, stream: Stream) -> str | None:
        """Return why `cell` does not fit, where the server has just said so in its answer; else None."""
        if stream.status is None or not 400 <= stream.status < 500 or not overflows(stream.error or ""):
            return None
        if self._refused is None or need(cell) < self._refused[0]:
            self._refused = (need(cell), str(stream.error))
        return self.lacks(cell)

    def lacks(self, cell: Cell) -> str | None:
        """Return why `cell` does not fit into the context, in one sentence, or None when it may."""
        tokens = need(cell)
        if self.tokens is not None and tokens > self.tokens:
            return f"it needs {tokens:,} tokens, and the server's context has {self.tokens:,}"
        if self._refused is not None and tokens >= self._refused[0]:
            return f"it needs {tokens:,} tokens, and of {self._refused[0]:,} {self._refused[1]}"
        return None


def overflows(message: str) -> bool:
    """Whether an error says that a prompt is longer than the context."""
    return _OVERFLOW.search(message) is not None


def need(cell: Cell) -> int:
    """Return the tokens of one stream's context."""
    return cell.prompt_tokens + cell.tg


def ask(endpoint: Endpoint) -> Context:
    """Ask the server for its context: `max_model_len` of its model list, or `n_ctx` of its `/props`.

    A server that does not tell, or does not answer, leaves it open.
    """
    import httpx2

    key = api_key(endpoint.dialect.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(trust_env=False, timeout=_TIMEOUT_S, headers=headers) as client:
        for path, find in (("/v1/models", _of_models), ("/props", _of_props)):
            try:
                answer = client.get(f"{endpoint.url}{path}")
                told = find(answer.json(), endpoint.model) if answer.status_code == 200 else None
            except (httpx2.HTTPError, ValueError):
                continue
            if told:
                return Context(told)
    return Context()


def _of_models(told: Any, model: str) -> int | None:
    entries = told.get("data") if isinstance(told, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and model in (entry.get("id"), *(entry.get("aliases") or ())):
            return _count(entry.get("max_model_len"))
    return None


def _of_props(told: Any, model: str) -> int | None:
    settings = told.get("default_generation_settings") if isinstance(told, dict) else None
    return _count(settings.get("n_ctx")) if isinstance(settings, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
