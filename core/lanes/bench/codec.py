"""Values of the benchmark as plain JSON data, and back."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import attrs
import cattrs

from lanes.bench.arrivals import Arrivals

T = TypeVar("T")


def as_json(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers and None. A timeline becomes its columns."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Arrivals):
        return value.as_json()
    if attrs.has(type(value)):
        return {a.name: as_json(getattr(value, a.name)) for a in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(inner) for inner in value]
    return value


def from_json(kind: type[T], data: Any) -> T:
    """Return the value of class `kind` that `as_json` made `data` of; unknown keys are ignored, so
    that older programs read newer results. Raises cattrs' errors for data of another shape."""
    return _converter().structure(data, kind)


@functools.cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_structure_hook(Arrivals, lambda data, _: Arrivals.from_json(data))
    return converter
