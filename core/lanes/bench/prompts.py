"""Cold prompts of natural text: a nonce at the very start, prose, and a task in words at the end."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

from lanes.bench.plan import Cell, Plan
from lanes.bench.prose import words


def nonce(plan: Plan, cell: Cell, number: int | None, stream: int) -> str:
    """Return 16 hexadecimal digits that make a prompt cold.

    They depend on the comparison, block, cell, pass and stream alone, so every lane of a comparison
    gets the same prompts, and no prompt comes twice within a block. `number` counts the passes from
    0, warm-ups included; None is for what all passes of a cell share, the cached prefix.
    """
    load = (cell.load, cell.rate, cell.concurrency)
    parts = (plan.comparison, plan.block, cell.pp, cell.tg, cell.depth, cell.shape, load, number, stream)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def task(tg: int) -> str:
    """Return a task whose answer, left alone, is longer than `tg` tokens."""
    return (
        f"Write about {max(150, tg)} words of plain prose that go on from the text above: what happened "
        "next, to whom, and why. Do not stop early and do not make lists."
    )


class Prompt:
    """A text that can be cut to any number of words: nonce, prose from the nonce's seed, `tail`."""

    def __init__(self, nonce: str, tail: str = "") -> None:
        self._head = f"[{nonce}]"
        self._tail = f"\n\n{tail}" if tail else "\n\n"
        self._source: Iterator[str] = words(nonce)
        self._words: list[str] = []

    def cut(self, count: int) -> str:
        """Return the prompt with its first `count` words of prose."""
        count = max(count, 0)
        self._words.extend(itertools.islice(self._source, max(count - len(self._words), 0)))
        prose = "".join(self._words[:count]).rstrip(",;:")
        stop = "" if prose.endswith((".", "?", '"')) or not prose else "."
        return self._head + prose + stop + self._tail


PROSE_CHARS_PER_WORD = 5.75
"""Of our prose, the space before each word included; a first guess that the server's counts correct."""
