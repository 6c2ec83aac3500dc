"""A `Comparison` as text and as JSON, where both must say the same wherever it is shown."""

from __future__ import annotations

from typing import Any

import cattrs.preconf.json

from lanes.comparing.comparison import Comparison, Figure

SCHEMA = "lanes.compare/2"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON data, `"schema": "lanes.compare/2"`."""
    data: dict[str, Any] = cattrs.preconf.json.make_converter().unstructure(comparison)
    return {"schema": SCHEMA, **data}


def text(figure: Figure) -> str:
    """`41.8 [38.8, 43.0]`; `22.0 to 27.0` of two values, between which nothing is known; `45.6` of one."""
    if figure.n < 2:
        return number(figure.median)
    if figure.n == 2:
        return f"{number(figure.lo)} to {number(figure.hi)}"
    return f"{number(figure.median)} [{number(figure.lo)}, {number(figure.hi)}]"


def count(figure: Figure) -> str:
    """`3 launches`, `5 passes`, `1 value`."""
    if figure.n == 1:
        return "1 value"
    return f"{figure.n} {'launches' if figure.unit == 'launch' else 'passes'}"


def number(value: float) -> str:
    """Three or four digits that count; whole numbers as they are."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
