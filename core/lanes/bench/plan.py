"""What to measure: a grid of cells, how often, and how long to wait for an answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from attrs import Attribute, field, frozen


@frozen(kw_only=True)
class Limits:
    """How long to wait, in seconds: for a connection, for the first byte of an answer, between two
    reads after it."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    stall_s: float = 120.0


@frozen(kw_only=True)
class Cell:
    """One point of the grid.

    `pp` tokens of prompt (the whole message as the server counts it, with its chat template), `tg`
    tokens of answer, after a cached prefix of `depth` tokens, in `concurrency` streams at once.
    """

    pp: int
    tg: int
    depth: int = 0
    concurrency: int = 1

    def __str__(self) -> str:
        depth = f" at depth {self.depth}" if self.depth else ""
        streams = f", {self.concurrency} streams" if self.concurrency > 1 else ""
        return f"pp{self.pp} tg{self.tg}{depth}{streams}"


def _integers(value: int | Iterable[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


_NAMES = {
    "pp": "the prompt's length (pp)",
    "tg": "the answer's length (tg)",
    "depth": "the depth",
    "concurrency": "the number of streams (concurrency)",
    "passes": "the number of passes",
    "warmups": "the number of warm-ups",
}


def _at_least(least: int) -> Any:
    def check(_: Plan, attribute: Attribute[Any], value: Any) -> None:
        name = _NAMES[attribute.name]
        values = value if isinstance(value, tuple) else (value,)
        if not values:
            raise ValueError(f"{name} is missing")
        for one in values:
            if isinstance(one, bool) or not isinstance(one, int) or one < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {one!r}")
        if len(set(values)) != len(values):
            raise ValueError(f"{name} names a value twice")

    return check


@frozen(kw_only=True)
class Plan:
    """The grid (each combination of `pp`, `tg`, `depth` and `concurrency` is a cell) and its passes.

    `comparison` and `block` make the prompts: the same for every lane of one block of a comparison,
    fresh in each block. A server that has seen them once may answer from its cache, so use a new
    block for each launch or run. `seed` is sent to the server.

    Raises ValueError, with one sentence, for what cannot be measured.
    """

    pp: tuple[int, ...] = field(default=(2048,), converter=_integers, validator=_at_least(1))
    tg: tuple[int, ...] = field(default=(128,), converter=_integers, validator=_at_least(1))
    depth: tuple[int, ...] = field(default=(0,), converter=_integers, validator=_at_least(0))
    concurrency: tuple[int, ...] = field(default=(1,), converter=_integers, validator=_at_least(1))
    passes: int = field(default=5, validator=_at_least(1))
    warmups: int = field(default=2, validator=_at_least(0))
    comparison: str = field(factory=lambda: secrets.token_hex(8))
    block: int = 0
    seed: int = 42
    limits: Limits = field(factory=Limits)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells in the order in which they are measured."""
        return tuple(
            Cell(pp=pp, tg=tg, depth=depth, concurrency=concurrency)
            for depth in self.depth
            for pp in self.pp
            for tg in self.tg
            for concurrency in self.concurrency
        )
