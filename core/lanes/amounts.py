"""Amounts as people read them."""

from __future__ import annotations


def size(value: float) -> str:
    """Bytes, in MB or GB."""
    return f"{value / 1e9:,.1f} GB" if value >= 1e9 else f"{value / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    """Seconds, in s, min or h."""
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
