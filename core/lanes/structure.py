"""Turn plain data from a file into typed values, and every mistake into one sentence.

cattrs does the work. What is ours: primitives are taken strictly (TOML has types of its own, so the
string "8" is not the number 8), and errors name the key's path and what would be right.
"""

from __future__ import annotations

import datetime
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import attrs
import cattrs
from cattrs.strategies import configure_union_passthrough

T = TypeVar("T")

_MISSING = "the key is missing"
_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


class Mistake(Exception):
    """One mistake in data: the `key` it is at (dotted path) and one `problem` in words."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


def structure(data: Any, cls: type[T], path: str = "") -> T:
    """Build `cls` (an attrs class) from a mapping, or raise the first `Mistake`; `path` is put before
    the keys that it names."""
    try:
        return _converter().structure(data, cls)
    except Exception as error:
        # A misspelt key is missing under its right name too: the misspelling is what to tell.
        key, problem = min(_mistakes(error, cls, path), key=lambda found: found[1].startswith(_MISSING))
        raise Mistake(key, problem) from None


@cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for primitive in (str, int, float, bool):
        converter.register_structure_hook(primitive, _strict)
    configure_union_passthrough(str | bool | int | float | None, converter)
    converter.register_structure_hook_factory(_is_tuple, _strict_tuple)
    return converter


def _is_tuple(cls: Any) -> bool:
    return typing.get_origin(cls) is tuple


def _strict_tuple(cls: Any, converter: cattrs.Converter) -> Any:
    """A tuple from a list alone: a string would fall apart into letters."""
    as_list: Any = types.GenericAlias(list, typing.get_args(cls)[:1])

    def hook(value: Any, _: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise TypeError(f"should be {title(cls)}, not {_shown(value)}")
        return tuple(converter.structure(value, as_list))

    return hook


def _strict(value: Any, cls: type[Any]) -> Any:
    if cls is float and type(value) is int:
        return float(value)
    if type(value) is not cls:
        raise TypeError(f"should be {_NAMES[cls]}, not {_shown(value)}")
    if cls is str and "\0" in value:
        raise TypeError("should be text without the character NUL")
    return value


def _shown(value: Any) -> str:
    """A value as TOML writes it, cut where it is long."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    text = str(value) if isinstance(value, datetime.date | datetime.time) else text
    return text if len(text) <= 60 else text[:57] + "..."


def _mistakes(error: BaseException, cls: Any, path: str) -> Iterator[tuple[str, str]]:
    """Walk an error of cattrs down to its leaves: (key path, what is wrong)."""
    if isinstance(error, cattrs.ClassValidationError):
        cls = next(
            (one for one in typing.get_args(cls) if attrs.has(one)), cls
        )  # of `Table | None` the table
        hints = typing.get_type_hints(cls) if attrs.has(cls) else {}
        grouped, rest = error.group_exceptions()
        for inner, note in grouped:
            yield from _mistakes(inner, hints.get(note.name), _join(path, note.name))
        for inner in rest:
            yield from _mistakes(inner, cls, path)
    elif isinstance(error, cattrs.IterableValidationError):
        grouped_items, rest = error.group_exceptions()
        for inner, at in grouped_items:
            where = _join(path, at.index) if isinstance(at.index, str) else f"{path}[{at.index}]"
            yield from _mistakes(inner, _item_type(cls), where)
        for inner in rest:
            yield from _mistakes(inner, cls, path)
    elif isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [a.name for a in attrs.fields(error.cl)] if attrs.has(error.cl) else []
        for name in sorted(error.extra_fields):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known) or 'none'}"
            yield _join(path, name), f"there is no such key; {hint}"
    elif isinstance(error, KeyError):
        yield path, f"{_MISSING}; it should be {title(cls)}"
    else:
        yield _join(path, _validated(error)) or "the document", _leaf(error, cls)


def _leaf(error: BaseException, expected: Any) -> str:
    text = str(error).strip()
    if isinstance(error, TypeError) and text.startswith("should be"):
        return text
    if isinstance(error, ValueError) and text and not text.startswith(("Expected", "could not")):
        return text  # a validator's own sentence
    return f"should be {title(expected)}"


def _validated(error: BaseException) -> str:
    """The name of the field whose validator raised: attrs hands it to the validator, and nowhere else."""
    trace = error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, attrs.Attribute):
                return value.name
        trace = trace.tb_next
    return ""


def title(expected: Any) -> str:
    """A type in a person's words: `a whole number or "auto"`, `a list of strings`."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected in _NAMES:
        return _NAMES[expected]
    if origin is Literal:
        return " or ".join(f'"{a}"' if isinstance(a, str) else repr(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(title(a) for a in arguments if a is not type(None))
    if origin in (tuple, list):
        return "a list of " + re.sub(r"^an? (.*)$", r"\1s", title(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return "a table"
    return "a table" if attrs.has(expected) else "something else"


def _item_type(cls: Any) -> Any:
    arguments = typing.get_args(cls)
    return arguments[-1] if arguments and arguments[-1] is not Ellipsis else (arguments or (None,))[0]


def _join(path: str, name: str) -> str:
    return ".".join(part for part in (path, name) if part)
