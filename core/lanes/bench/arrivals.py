"""The timeline of one answer, as columns: hundreds of streams bring hundreds of thousands of events."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

TOKEN_KINDS = frozenset({"content", "reasoning", "tool"})
"""Kinds of delta that carry tokens. A role-only, empty, finish or usage delta carries none."""


class Arrival(NamedTuple):
    """One event: when it came (ns since the stream's t0), its kind (see `deltas.Delta`), how many
    characters it carried, the completion tokens so far and those in this delta (None: not told)."""

    at_ns: int
    kind: str
    chars: int
    cumulative: int | None = None
    tokens: int | None = None


class Arrivals(Sequence[Arrival]):
    """The events of one answer in the order in which they came. Not to be changed."""

    __slots__ = ("at_ns", "chars", "cumulative", "kinds", "tokens")

    def __init__(
        self,
        at_ns: Sequence[int] = (),
        kinds: Sequence[str] = (),
        chars: Sequence[int] = (),
        cumulative: Sequence[int | None] = (),
        tokens: Sequence[int | None] = (),
    ) -> None:
        self.at_ns, self.kinds, self.chars = at_ns, kinds, chars
        self.cumulative, self.tokens = cumulative, tokens

    def with_tokens(self) -> Arrivals:
        """Return those that carried tokens."""
        chosen = list(map(TOKEN_KINDS.__contains__, self.kinds))
        count = sum(chosen)
        first = chosen.index(True) if count else 0
        if all(chosen[first : first + count]):  # as a rule other events come only before and after them
            return self if count == len(self) else self[first : first + count]
        return Arrivals(*(list(itertools.compress(c, chosen)) for c in self._columns))

    def gaps_ns(self) -> list[int]:
        """Return the times between one and the next, in ns."""
        return list(map(operator.sub, self.at_ns[1:], self.at_ns))

    def told(self, name: Literal["cumulative", "tokens"]) -> list[int]:
        """Return the column, if every event tells it; else nothing."""
        column = getattr(self, name)
        # What is not told is seldom told first.
        return [] if None in column[:1] or None in column else list(column)

    def count_into(self, counts: Counter[int], t0_ns: int, window_ns: int) -> None:
        """Add how many events came in each window of the clock whose time at t0 is `t0_ns`."""
        counts.update([(t0_ns + at) // window_ns for at in self.at_ns])

    def as_json(self) -> dict[str, Any]:
        """Return the columns; kinds as runs of [kind, how many], and null for what no event tells."""
        runs = [[kind, len(list(same))] for kind, same in itertools.groupby(self.kinds)]
        told = {
            name: list(column) if column.count(None) < len(column) else None
            for name, column in (("cumulative", self.cumulative), ("tokens", self.tokens))
        }
        return {"at_ns": list(self.at_ns), "kinds": runs, "chars": list(self.chars), **told}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Arrivals:
        """Return what `as_json` made `data` of. Raises ValueError for columns of different lengths."""
        at_ns, chars = data["at_ns"], data["chars"]
        kinds = [kind for kind, count in data["kinds"] for _ in range(count)]
        nothing = [None] * len(at_ns)
        columns = (at_ns, kinds, chars, data["cumulative"] or nothing, data["tokens"] or nothing)
        if any(len(column) != len(at_ns) for column in columns):
            raise ValueError("the columns of a timeline are not of one length")
        return cls(*columns)

    @property
    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.at_ns, self.kinds, self.chars, self.cumulative, self.tokens

    @overload
    def __getitem__(self, index: int) -> Arrival: ...
    @overload
    def __getitem__(self, index: slice) -> Arrivals: ...
    def __getitem__(self, index: int | slice) -> Arrival | Arrivals:
        if isinstance(index, slice):
            return Arrivals(*(column[index] for column in self._columns))
        return Arrival(*(column[index] for column in self._columns))

    def __iter__(self) -> Iterator[Arrival]:
        return map(Arrival, *self._columns)

    def __len__(self) -> int:
        return len(self.at_ns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"as_columns({list(self)!r})"


def as_columns(arrivals: Iterable[Arrival]) -> Arrivals:
    """Return the events as columns."""
    return arrivals if isinstance(arrivals, Arrivals) else Arrivals(*zip(*arrivals, strict=True))


def _same(one: object, other: object) -> bool:
    return one == other
