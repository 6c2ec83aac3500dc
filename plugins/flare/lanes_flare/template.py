"""The words of a command with placeholders such as `{port}`, which only a launch can fill."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

PLACEHOLDERS = {
    "host": "the address to listen on",
    "port": "the port to listen on: the option port, or else a free one",
    "head": "the address of rank 0, as the other ranks reach it",
    "rendezvous_port": "a free port of rank 0, where the ranks may meet",
    "rank": "this process's number, from 0",
    "nnodes": "how many nodes there are, with a process on each",
    "address": "this node's own address, as the other ranks reach it",
    "interface": "this node's network interface towards the other ranks",
    "model": "the recipe's model.path, or else its model.repo",
    "name": "the name under which clients ask for the model",
}
"""What a word may ask for."""

# Braces with a space, a quote or a comma inside are JSON, and stay as they are.
_PLACEHOLDER = re.compile(r"""\{([^{}\s"',]+)\}""")


def names(words: Iterable[str]) -> frozenset[str]:
    """The placeholders that occur in words, known or not."""
    return frozenset(name for word in words for name in _PLACEHOLDER.findall(word))


def unknown(words: Iterable[str]) -> str | None:
    """What is wrong with the first placeholder that there is not, in a sentence."""
    for name in sorted(names(words) - PLACEHOLDERS.keys()):
        near = difflib.get_close_matches(name.lower(), PLACEHOLDERS, n=1)
        there_are = f"there are {', '.join(f'{{{one}}}' for one in PLACEHOLDERS)}"
        return f"there is no placeholder {{{name}}}; " + (
            f"did you mean {{{near[0]}}}?" if near else there_are
        )
    return None


def fill(word: str, values: Mapping[str, str]) -> str:
    """The word with every placeholder replaced; KeyError names one that has no value."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], word)
