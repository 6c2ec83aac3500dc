"""Thoughts: where they stand, and whether one can turn them on, off, up and down."""

from __future__ import annotations

from typing import Any

from lanes.instruments.asking import Message
from lanes.instruments.surface.checks import Found, Server, broken, ignored, supported, unknown

_ASKED = "A farmer has 17 sheep, and all but 9 run away. How many are left?"
_FEW, _MOST = 64, 512
"""Tokens in which one sees whether a model thinks, and in which its thoughts may differ in length."""
_MARKS = ("<think>", "</think>", "<|channel|>", "[THINK]")


def fields(server: Server) -> Found:
    said = _asked(server)
    if mark := next((m for m in _MARKS if m in said.content), None):
        return broken(f"the thoughts stand in the content ({mark}): no reasoning parser is set")
    if said.reasoning:
        return supported(f"as {said.reasoning_field}")
    return unknown("no reasoning came: the model does not think, or not unasked")


def switch(server: Server) -> Found:
    """By the argument of chat templates that is common for it."""
    on, off = (
        _thinks(_asked(server, chat_template_kwargs={"enable_thinking": value, "thinking": value}))
        for value in (True, False)
    )
    if on and not off:
        return supported()
    if on:
        return ignored("it thinks when told not to")
    if off:
        return broken("it thinks when told not to, and does not when told to")
    return unknown("it does not think either way")


def effort(server: Server) -> Found:
    if not _thinks(_asked(server, reasoning_effort="high")):
        return unknown("accepted, and it does not think at high effort")
    low, high = (_asked(server, max_tokens=_MOST, reasoning_effort=e).reasoning for e in ("low", "high"))
    if low == high:
        return ignored("low and high effort give the same thoughts")
    return supported(f"{len(low):,} characters at low, {len(high):,} at high")


def _asked(server: Server, max_tokens: int = _FEW, **fields: Any) -> Message:
    # Streamed, so that thoughts that were cut before their end still count as such.
    return server.answered(_ASKED, max_tokens=max_tokens, stream=True, **fields)


def _thinks(said: Message) -> bool:
    return bool(said.reasoning) or any(mark in said.content for mark in _MARKS)
