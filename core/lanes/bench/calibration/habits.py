"""The habits of real servers that leave the timing of tokens unchanged, in all combinations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

HABITS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "the role chunk": ({"role": "early"}, {"role": "late"}, {"role": "none"}),
    "tokens a delta": ({}, {"tokens_per_delta": 4}, {"first_delta": 6}),
    "what comes first": ({}, {"reasoning": 12}, {"tool_call": True}),
    "usage": ({}, {"usage": "every"}, {"usage": "none"}),
    "line ends": ({}, {"line_end": "\r\n"}),
    "comments": ({}, {"comments": True}),
    "packets": ({}, {"packet": 131}, {"tail_at_once": True}),
    "the usage chunk": ({}, {"tail_s": 0.05}),
    "the body": ({}, {"chunked": False}),
    "cached tokens": ({}, {"cached": None}, {"cached": 6}),
}
"""Fields of a `Script`, by what they are a habit of; the first of each is the plain one."""

COMBINATIONS = math.prod(map(len, HABITS.values()))
_STRIDE = 2521
"""Prime to the number of combinations, so that a few neighbours differ in everything."""


def combination(number: int) -> dict[str, Any]:
    """Return the fields of a `Script` with the habits of a number; `COMBINATIONS` numbers in a row
    give each combination once, beginning with the plain one."""
    rest = number * _STRIDE % COMBINATIONS
    fields: dict[str, Any] = {}
    for choices in HABITS.values():
        rest, chosen = divmod(rest, len(choices))
        fields |= choices[chosen]
    return fields
