"""Plain chats: streaming, usage, stop, sampling, formats, long and odd messages."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from lanes.instruments.asking import Exchange, Usage
from lanes.instruments.surface.checks import (
    Found,
    Server,
    broken,
    ignored,
    quoted,
    supported,
    turns,
    unknown,
)

PLAIN = "Write three sentences about rivers."
_MOST = 32
_FEW = 16


def plain(server: Server) -> Found:
    """A chat that is not streamed."""
    one = server.good(server.chat(PLAIN, max_tokens=_MOST))
    if not one.choices:
        return broken("the answer has no choices")
    if one.stream:
        return broken("it streams although nobody asked for that")
    said = one.message
    if not (said.content or said.reasoning):
        return broken("the message is empty")
    server.plain = one
    return supported()


def streaming(server: Server) -> Found:
    one = server.good(server.chat(PLAIN, max_tokens=_FEW, stream=True))
    if not one.stream:
        return broken("the answer to a streamed chat is no event stream")
    said = one.message
    if not (said.content or said.reasoning):
        return broken("no text came in the stream")
    if said.finish_reason is None:
        return broken("the stream ends without a finish reason")
    return supported(None if one.done else "the stream ends without [DONE]")


def usage(server: Server) -> Found:
    """The counts of a plain answer, held against the limit and against a longer prompt's."""
    one = server.good(server.chat(PLAIN, max_tokens=_FEW))
    if one.usage is None:
        return broken("the answer has no usage")
    if lie := _lie(server, one, one.usage):
        return broken(lie)
    longer = PLAIN + _NAMES
    other = server.good(server.chat(longer, max_tokens=_FEW))
    before, after = one.usage.prompt_tokens, other.usage.prompt_tokens if other.usage else None
    if before is None or after is None:
        return broken("the usage does not count the prompt")
    told = server.text_tokens(longer), server.text_tokens(PLAIN)
    grown = after - before
    if told[0] is not None and told[1] is not None:
        real = told[0] - told[1]
        if abs(grown - real) > 3:
            return broken(f"a prompt that is {real} tokens longer is counted {grown} longer")
    elif not len(_NAMES.split()) / 2 <= grown <= len(_NAMES):
        return broken(f"a prompt that is {len(_NAMES.split())} words longer is counted {grown} tokens longer")
    return supported()


_NAMES = (
    " Name the Rhine, the Danube, the Elbe, the Loire, the Tagus, the Thames, the Po, the Ebro and the Volga."
)


def usage_in_stream(server: Server) -> Found:
    one = server.good(
        server.chat(PLAIN, max_tokens=_FEW, stream=True, stream_options={"include_usage": True})
    )
    if one.usage is None:
        return ignored("the stream has no usage although it was asked for")
    if lie := _lie(server, one, one.usage):
        return broken(lie)
    pieces = _pieces(one)
    if one.usage.completion_tokens is not None and pieces > one.usage.completion_tokens:
        return broken(
            f"{pieces} pieces of text came, and the usage counts {one.usage.completion_tokens} tokens"
        )
    return supported()


def usage_per_chunk(server: Server) -> Found:
    options = {"include_usage": True, "continuous_usage_stats": True}
    one = server.good(server.chat(PLAIN, max_tokens=_FEW, stream=True, stream_options=options))
    counts = [
        c["usage"].get("completion_tokens")
        for c in one.chunks
        if isinstance(c, dict) and c.get("choices") and isinstance(c.get("usage"), dict)
    ]
    if len(counts) < 2:
        return ignored("usage comes at the end alone")
    known = [c for c in counts if isinstance(c, int)]
    if known != sorted(known) or not known:
        return broken(f"the running count goes back: {known[:8]}")
    if one.usage and one.usage.completion_tokens not in (None, known[-1]):
        return broken(f"the running count ends at {known[-1]}, the usage says {one.usage.completion_tokens}")
    return supported()


def _lie(server: Server, one: Exchange, told: Usage) -> str | None:
    """What in a usage cannot be true of an answer that was limited to `_FEW` tokens."""
    said, counted = one.message, told.completion_tokens
    if counted is None:
        return "the usage does not count the answer"
    if counted > _FEW:
        return f"the usage counts {counted} tokens of an answer that was limited to {_FEW}"
    if said.finish_reason == "length" and counted != _FEW:
        return f"the answer was cut at {_FEW} tokens, and the usage counts {counted}"
    if counted == 0 and (said.content or said.reasoning):
        return "the usage counts no token, and there is an answer"
    if told.total_tokens is not None and told.prompt_tokens is not None:
        total = told.prompt_tokens + counted
        if told.total_tokens != total:
            return f"the usage's total is {told.total_tokens}, its parts make {total}"
    real = server.text_tokens(said.content) if said.finish_reason == "stop" and not said.reasoning else None
    # The end itself may be a token.
    if real is not None and abs(counted - real) > 2:
        return f"the answer has {real} tokens by the server's tokenizer, and the usage counts {counted}"
    return None


def _pieces(one: Exchange) -> int:
    found = 0
    for chunk in one.chunks:
        for choice in chunk.get("choices") or () if isinstance(chunk, dict) else ():
            delta = choice.get("delta") or {}
            found += any(delta.get(name) for name in ("content", "reasoning_content", "reasoning"))
    return found


def stop(server: Server) -> Found:
    """Ask again for a known answer, with a word from its middle as the stop string."""
    whole = _plain(server).message.content
    word = _middle_word(whole)
    if word is None:
        return unknown("the plain answer has no word to stop at")
    said = server.answered(PLAIN, max_tokens=_MOST, stop=[word])
    due = whole[: whole.index(word)]
    if said.content.rstrip() == due.rstrip():
        return supported()
    if word in said.content:
        return broken(f"asked to stop at {word!r}, it goes on: {quoted(said.content)}")
    if said.finish_reason == "stop":
        return supported("another answer than before, ended before the stop string")
    return unknown("another answer than before, in which the stop string does not come")


def _middle_word(text: str) -> str | None:
    for found in re.finditer(r"[A-Za-z]{4,}", text[: len(text) * 4 // 5]):
        if found.start() >= max(8, len(text) // 4) and text.index(found.group()) == found.start():
            return found.group()
    return None


def determinism(server: Server) -> Found:
    """The same request three times at temperature 0."""
    texts = [_text(_plain(server))]
    texts += [_text(server.good(server.chat(PLAIN, max_tokens=_MOST))) for _ in range(2)]
    if len(set(texts)) == 1:
        return supported()
    other = next(t for t in texts if t != texts[0])
    same = _common(texts[0], other)
    late = (
        " (the first one alone differs: the others read their prompt from a cache)"
        if texts[1] == texts[2]
        else ""
    )
    return broken(
        f"the same request at temperature 0 gave answers that agree for {same} characters alone{late}"
    )


def seed(server: Server) -> Found:
    """At temperature 1: the same seed twice, then others."""
    first, again, other, third = (
        _text(server.good(server.chat(PLAIN, max_tokens=_FEW, temperature=1.0, seed=number)))
        for number in (7, 7, 8, 9)
    )
    if first != again:
        return ignored("two answers with one seed differ")
    if first == other == third:
        return unknown("answers are the same whatever the seed")
    return supported()


def logprobs(server: Server) -> Found:
    one = server.good(server.chat(PLAIN, max_tokens=4, logprobs=True, top_logprobs=2))
    told = one.choices[0].get("logprobs") if one.choices else None
    entries = told.get("content") if isinstance(told, dict) else None
    if not entries:
        return ignored("no logprobs came")
    for entry in entries:
        value = entry.get("logprob") if isinstance(entry, dict) else None
        if not isinstance(value, int | float) or value > 1e-6 or "token" not in entry:
            return broken(
                f"an entry is no token with the logarithm of a probability: {quoted(json.dumps(entry))}"
            )
    short = [e for e in entries if len(e.get("top_logprobs") or ()) < 2]
    return supported("the two likeliest tokens are not told" if short else None)


def several(server: Server) -> Found:
    one = server.good(server.chat(PLAIN, max_tokens=4, n=2, temperature=1.0))
    indexes = sorted(c.get("index", -1) for c in one.choices if isinstance(c, dict))
    if indexes == [0, 1]:
        return supported()
    if len(indexes) == 1:
        return broken("asked for two answers, it gives one")
    return broken(f"asked for two answers, it gives those numbered {indexes}")


_QUESTION = turns(
    "What is the capital of Spain?",
    "Madrid",
    "What is the capital of Italy?",
    "Rome",
    "What is the capital of France? (JSON)",
)
"""The pattern asks for a plain word: only a server that holds the model to the format gives JSON."""


def json_object(server: Server) -> Found:
    said = server.answered(messages=_QUESTION, max_tokens=96, response_format={"type": "json_object"})
    return _format(said.content, said.finish_reason, lambda value: None)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
        "coastal": {"type": "boolean"},
    },
    "required": ["city", "coastal"],
    "additionalProperties": False,
}


def json_schema(server: Server) -> Found:
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    said = server.answered(messages=_QUESTION, max_tokens=96, response_format=wanted)
    return _format(said.content, said.finish_reason, _unlike_schema)


def _unlike_schema(value: dict[str, Any]) -> str | None:
    if set(value) != {"city", "coastal"}:
        return f"its keys are {', '.join(value) or 'none'} instead of city, coastal"
    if value["city"] not in SCHEMA["properties"]["city"]["enum"]:
        return f"city is {value['city']!r}, which the schema does not list"
    return (
        None if isinstance(value["coastal"], bool) else f"coastal is {value['coastal']!r}, not true or false"
    )


def _format(content: str, finish: str | None, unlike: Any) -> Found:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        if finish == "length" and content.lstrip().startswith("{"):
            return unknown("it begins as JSON and was cut before its end")
        return broken(f"the format was accepted, and the answer is not JSON: {quoted(content)}")
    if not isinstance(value, dict):
        return broken(f"the format was accepted, and the answer is no object: {quoted(content)}")
    problem = unlike(value)
    return broken(f"the schema was accepted, and {problem}") if problem else supported()


_RULES = 150


def long_system(server: Server) -> Found:
    """A system prompt of some 2,000 tokens, and whether it was read."""
    rules = min(_RULES, (server.context or 1 << 20) // 40)
    text = " ".join(f"Rule {n}: be brief on matter {n * 7919 % 1000}." for n in range(1, rules + 1))
    chat: Sequence[Any] = [{"role": "system", "content": text}, {"role": "user", "content": PLAIN}]
    one = server.good(server.chat(messages=chat, max_tokens=_FEW))
    if not _text(one):
        return broken("the answer is empty")
    counted = one.usage.prompt_tokens if one.usage else None
    words = len(text.split())
    if counted is not None and counted < words:
        return broken(f"a system prompt of {words} words is counted as {counted} tokens: it was not read")
    return supported(f"{counted:,} tokens" if counted else None)


def images(server: Server) -> Found:
    """A picture that is red all over."""
    url = "data:image/png;base64," + base64.b64encode(_red_png(32)).decode()
    parts = [
        {"type": "text", "text": "What is the colour of this picture? Answer with one word."},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    said = server.answered(parts, max_tokens=_MOST)
    if re.search(r"\bred\b", said.content + said.reasoning, re.IGNORECASE):
        return supported()
    return unknown(f"a red picture was accepted, and the answer does not say so: {quoted(said.content)}")


def _red_png(size: int) -> bytes:
    """A PNG (ISO/IEC 15948): signature, header, one stream of unfiltered rows, end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * size) * size)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _plain(server: Server) -> Exchange:
    if server.plain is None:
        server.plain = server.good(server.chat(PLAIN, max_tokens=_MOST))
    return server.plain


def _text(one: Exchange) -> str:
    return one.message.reasoning + one.message.content


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
