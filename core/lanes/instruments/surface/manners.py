"""What a server does with requests that are wrong: a clear 4xx, never a 5xx and never silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanes.bench.context import overflows
from lanes.instruments.asking import CHAT, Exchange
from lanes.instruments.surface.checks import Found, Server, broken, ignored, no, refused, supported, unknown

_SPARE = 1.25
_OVERFLOW_S = 120.0


def unknown_field(server: Server) -> Found:
    one = server.good(server.chat("Hello", max_tokens=4, lanes_no_such_field={"a": [1]}))
    return supported("passed over") if one.choices else broken("the answer has no choices")


def wrong_type(field: str, value: Any) -> Callable[[Server], Found]:
    """A check with a value of the wrong type in this field."""

    def check(server: Server) -> Found:
        return _refusal(server.chat("Hello", **{"max_tokens": 4, field: value}), f"{field}: {value!r}")

    return check


def no_json(server: Server) -> Found:
    return _refusal(server.ask.post(CHAT, b'{"messages": [{"role": "user", "cont'), "half a JSON document")


def unknown_model(server: Server) -> Found:
    return _refusal(
        server.chat("Hello", max_tokens=4, model="lanes-no-such-model"), "a model that is not there"
    )


def _refusal(one: Exchange, what: str) -> Found:
    """Wants a 4xx."""
    return no(one) or ignored(f"{what} is accepted")


def overflow(server: Server) -> Found:
    """A prompt that is longer than the context: each word is a token at least."""
    if server.context is None:
        return unknown("the server does not tell how long its context is: --with surface.context=N does")
    words = int(server.context * _SPARE) + 64
    text = " ".join(f"word{n % 977}" for n in range(words))
    one = server.chat(text, max_tokens=8, patience_s=max(_OVERFLOW_S, server.ask.patience_s))
    found = no(one)
    if found is not None and found.status == "refused":
        if overflows(str(one.error)):
            return found
        return refused(f"without saying that it is the length: {one.error}")
    if found is not None:
        return found
    counted = one.usage.prompt_tokens if one.usage else None
    if counted is not None and counted >= words:
        return unknown(f"it read a prompt of {counted:,} tokens, and tells a context of {server.context:,}")
    told = f"the usage counts {counted:,} of at least {words:,} tokens" if counted else "it answers"
    return broken(f"a prompt that is longer than the context is cut in silence: {told}")
