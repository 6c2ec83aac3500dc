"""A report without what its texts should not hold: secrets, and characters that a reader cannot see."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs

from lanes.reporting.model import Report

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Control characters, those that turn the direction of others, and halves of characters."""


def without_secrets(report: Report, redact: Callable[[str], str]) -> Report:
    """The report with each of its texts as `redact` returns it; what would be unseen is a mark instead."""
    hidden: Report = _changed(report, cache(lambda text: _UNSEEN.sub("\ufffd", redact(text))))
    return hidden


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(one, change) for one in value)
    if attrs.has(type(value)):
        fields = attrs.fields(type(value))
        return type(value)(**{one.name: _changed(getattr(value, one.name), change) for one in fields})
    return value
