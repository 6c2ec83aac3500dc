"""A command as a recipe gives it: words with placeholders that each rank fills in.

    ("serve", "--listen", "{host}:{port}")

Nothing but these names stands between braces; a brace that is meant is doubled.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping

PLACEHOLDERS = {
    "model": "model.path or model.repo",
    "name": "the name under which clients ask for the model",
    "host": "the address to listen on",
    "port": "the port to listen on",
    "rank": "the rank, 0 for the head",
    "nnodes": "how many nodes there are",
    "address": "the rank's own address",
    "head": "the head's address",
    "rendezvous_port": "a free port of the head's, where the ranks meet",
}


def names(words: Iterable[str]) -> frozenset[str]:
    """The placeholders that these words hold."""
    return frozenset(name for word in words for name, _ in _fields(word))


def problem(word: str) -> str | None:
    """What is wrong with a word, as a clause, or None."""
    try:
        fields = list(_fields(word))
    except ValueError:
        return f"has a brace without its other half in {word!r}; a brace that is meant is doubled"
    for name, dressed in fields:
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
            return f"has no placeholder {{{name}}}; there are {known}"
        if dressed:
            return f"takes {{{name}}} as it is, without a conversion or a format"
    return None


def fill(words: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words with their placeholders filled in."""
    return tuple(word.format_map(values) for word in words)


def _fields(word: str) -> Iterator[tuple[str, bool]]:
    for _, name, form, conversion in string.Formatter().parse(word):
        if name is not None:
            yield name, bool(form or conversion)
