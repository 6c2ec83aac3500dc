"""A report without secrets: logs, command lines and reasons may hold some."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import attrs

from lanes.reporting.model import Report


def without_secrets(report: Report, redact: Callable[[str], str]) -> Report:
    """The report with each of its texts as `redact` returns it."""
    hidden: Report = _changed(report, cache(redact))
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
