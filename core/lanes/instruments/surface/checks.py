"""What a check of the surface is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from attrs import define, field, frozen

from lanes.instruments.asking import Asker, Exchange, Message

Status = Literal["supported", "refused", "ignored", "broken", "unknown"]
"""`refused`: with a 4xx, as one should. `ignored`: accepted, and nothing changed. `broken`: a 5xx, a hang, or an answer
that is wrong. `unknown`: the server, or the model, did not tell."""

ABSENT = (404, 405, 501)
"""How a server says that there is no such address."""
BUSY = (429, 503)


@frozen(kw_only=True)
class Found:
    """What a check found, with the reason in one sentence."""

    status: Status
    reason: str | None = None


class Ended(Exception):
    """A check has its result already."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.reason)
        self.found = found


def supported(reason: str | None = None) -> Found:
    return Found(status="supported", reason=reason)


def refused(reason: str) -> Found:
    return Found(status="refused", reason=reason)


def ignored(reason: str) -> Found:
    return Found(status="ignored", reason=reason)


def broken(reason: str) -> Found:
    return Found(status="broken", reason=reason)


def unknown(reason: str) -> Found:
    return Found(status="unknown", reason=reason)


@define(kw_only=True)
class Server:
    """The server under test: asks, and keeps what checks tell each other.

    `context` is how many tokens its context has, where it tells.
    """

    ask: Asker
    context: int | None = None
    exchanges: list[Exchange] = field(factory=list)
    plain: Exchange | None = None
    """The answer to `PLAIN`, not streamed."""
    text_tokens: Callable[[str], int | None] = lambda _: None
    """The tokens of a text by the server's own tokenizer, where it has one."""

    def chat(self, content: Any = "", **fields: Any) -> Exchange:
        return self.ask.chat(content, **fields)

    def answered(self, content: Any = "", **fields: Any) -> Message:
        """The message of an answer that came; ends the check where none did."""
        return self.good(self.chat(content, **fields)).message

    def good(self, one: Exchange) -> Exchange:
        """The exchange, if it was answered as it should; ends the check where it was not."""
        if (found := no(one)) is not None:
            raise Ended(found)
        return one


def no(one: Exchange) -> Found | None:
    """What an answer that is not the one asked for means; None where it is one."""
    if one.status in BUSY:
        return unknown(f"the server is busy: {one.error}")
    if one.trouble is not None or one.status >= 500:
        return broken(str(one.error))
    if one.status >= 400:
        return refused(str(one.error))
    if one.error is not None:
        return broken(one.error)
    if one.status != 200:
        return broken(f"HTTP {one.status}")
    if not one.stream and not isinstance(one.body, dict):
        return broken(f"the answer is not JSON: {one.text[:60]!r}")
    return None


def turns(*texts: str) -> list[Mapping[str, Any]]:
    """Messages of user and assistant in turn: two questions with their answers, then the one that is asked."""
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


def quoted(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= most else text[: most - 3] + "...")
