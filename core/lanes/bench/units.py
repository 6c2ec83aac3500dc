"""Quantities as people write them: `50ms`, `10min`, `3%`."""

from __future__ import annotations

import re

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Return the seconds in `50ms`, `2s`, `10min` or `1h`.

    Raises ValueError, with one sentence; a bare number is refused, for nobody knows its unit.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s|min|h)\s*", text)
    value = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if value <= 0:
        raise ValueError(f"{text!r} is not a time such as 50ms, 2s or 10min")
    return value


def share(text: str) -> float:
    """Return 0.03 for `3%`. Raises ValueError, with one sentence."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*%\s*", text)
    value = float(found[1]) / 100 if found else 0.0
    if not 0 < value < 1:
        raise ValueError(f"{text!r} is not a share such as 3%")
    return value
