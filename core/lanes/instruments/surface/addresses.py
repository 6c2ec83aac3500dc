"""What lies beside the chat: the list of models, the tokenizer, the metrics."""

from __future__ import annotations

import re
from typing import Any

from lanes.instruments.asking import Asker
from lanes.instruments.surface.checks import ABSENT, Found, Server, broken, no, refused, supported, unknown

_LINE = re.compile(r"^[a-zA-Z_:][\w:]*(\{.*\})?\s+[-+.\dA-Za-z]+(\s+\d+)?$")
_FIELDS = ("content", "prompt", "text")
_MOST_NAMES = 3


def models(server: Server) -> Found:
    one = server.ask.get("/v1/models")
    if one.status in ABSENT:
        return refused("there is none")
    server.good(one)
    names = _names(one.body)
    if not names:
        return broken("the list is empty")
    if server.ask.endpoint.model not in names:
        return broken(f"it lists {', '.join(names[:3])}, and serves {server.ask.endpoint.model}")
    return supported(", ".join(names[:3]))


def _names(body: Any) -> list[str]:
    data = body.get("data") if isinstance(body, dict) else None
    found: list[str] = []
    for entry in data if isinstance(data, list) else ():
        if isinstance(entry, dict):
            found += [n for n in (entry.get("id"), *(entry.get("aliases") or ())) if isinstance(n, str)]
    return list(dict.fromkeys(found))


def every_name(server: Server) -> Found:
    """Each name that is listed must answer."""
    names = _names(server.good(server.ask.get("/v1/models")).body)[:_MOST_NAMES]
    if not names:
        return unknown("no name is listed")
    for name in names:
        found = no(server.chat("Hello", max_tokens=4, model=name))
        if found is not None:
            return broken(f"{name!r} is listed, and does not answer: {found.reason}")
    return supported(f"{len(names)} answer" if len(names) > 1 else None)


def tokenizer(server: Server) -> Found:
    found = find_tokenizer(server.ask)
    if isinstance(found, Found):
        return found
    one, longer = found("river"), found("river, mountain, forest and sea, one after the other")
    if one is None or longer is None or not 0 < one < longer:
        return broken(f"a word has {one} tokens by it, and a sentence {longer}")
    return supported()


def find_tokenizer(ask: Asker) -> Any:
    """A function from a text to its number of tokens (None: no answer), or what was found instead."""
    dialect = ask.endpoint.dialect
    path = dialect.tokenize_path or "/tokenize"
    last = None
    for field in dict.fromkeys((dialect.tokenize_field, *_FIELDS)):
        body = {"model": ask.endpoint.model, field: "river"}
        one = ask.post(path, body)
        if one.status in ABSENT:
            return refused("there is none")
        if one.ok and _tokens(one.body) is not None:

            def count(text: str, name: str = field) -> int | None:
                return _tokens(ask.post(path, {"model": ask.endpoint.model, name: text}).body)

            return count
        last = last or no(one) or broken(f"its answer counts no tokens: {one.text[:60]!r}")
    return last


def _tokens(body: Any) -> int | None:
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("tokens"), list):
        return len(body["tokens"])
    return body["count"] if isinstance(body.get("count"), int) else None


def metrics(server: Server) -> Found:
    one = server.ask.get(server.ask.endpoint.dialect.metrics_path or "/metrics")
    if one.status in ABSENT:
        return refused("there is none")
    if one.status != 200 or one.error:
        return no(one) or broken(f"HTTP {one.status}")
    lines = [line for line in one.text.splitlines() if line.strip() and not line.startswith("#")]
    wrong = next((line for line in lines if not _LINE.match(line)), None)
    if wrong is not None or not lines:
        return broken(f"this is no Prometheus text: {(wrong or one.text)[:60]!r}")
    return supported(f"{len({re.split(r'[{ ]', line)[0] for line in lines})} names")
