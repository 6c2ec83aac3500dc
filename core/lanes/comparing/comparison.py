"""What `compare` returns, as values: lanes, their figures, verdicts, differences, flags.

A `Comparison` holds all that the table, the report and `--json` show; none of them judges anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

Word = Literal["faster", "slower", "better", "worse", "no difference", "unresolved"]
"""`faster` and `slower` of rates and times, `better` and `worse` of other figures; `no difference` always
means: none beyond the bound. `unresolved` is no statement about the lanes at all, least of all that they
are equal."""


@frozen(kw_only=True)
class Figure:
    """One figure of one lane in one cell.

    `median` with its 95% interval `lo` to `hi` over `n` values; `unit` says what they are: `launch`, one
    value a launch of the engine, or `pass`, passes of a single launch, whose interval understates what
    another launch would show. `values` are the launches' own values, in the order of the runs. `best`
    is set only where it was shown to be better than every other lane's.
    """

    metric: str
    median: float
    lo: float
    hi: float
    n: int
    unit: Literal["launch", "pass"]
    values: tuple[float, ...]
    best: bool = False


@frozen(kw_only=True)
class Point:
    """What a lane has at one cell, or one row of an instrument without cells.

    `status` is the cell's own word (`ok`, `invalid`, `crashed`, `skipped`, or a row's), of the first launch
    that is not `ok`; then `reason` tells why, and `bad` of `launches` launches ended so.
    """

    instrument: str
    name: str
    status: str
    reason: str | None
    launches: int
    bad: int
    figures: Mapping[str, Figure]
    cell: Mapping[str, Any] = field(factory=dict)
    """pp, tg, depth, concurrency, shape, load, rate; empty for a row."""
    notes: tuple[str, ...] = ()
    version: str | None = None
    """Of the instrument, where it has one of its own."""


@frozen(kw_only=True)
class Side:
    """One lane: what was launched so, once or several times.

    `name` tells it from the others here. `status` is how its launches ended (`measured` when one of
    them was), `reason` why not; `failures` maps how others ended to how often. `factors` are what its
    figures may depend on, by name, as far as known. `lane_metrics` are what the engine told of itself.
    `reported` says whose figures these are when `lanes` did not measure them, `quoted` that they were
    measured in another document.
    """

    name: str
    engine: str | None
    cluster: str
    status: str
    reason: str | None
    next_step: str | None
    launches: int
    runs: tuple[str, ...]
    failures: Mapping[str, int]
    factors: Mapping[str, str]
    lane_metrics: Mapping[str, Any]
    reported: str | None
    quoted: bool
    overrides: tuple[str, ...]
    points: tuple[Point, ...]

    def point(self, instrument: str, name: str) -> Point | None:
        """Its point of this instrument and name, if it has one."""
        return next((p for p in self.points if (p.instrument, p.name) == (instrument, name)), None)


@frozen(kw_only=True)
class Entry:
    """A lane's figure in a column of the overview, and where it stands."""

    instrument: str
    point: str
    figure: Figure


@frozen(kw_only=True)
class Column:
    """One column of the overview, a row a lane: the same figure at the same cell, as far as lanes have it.
    `entries` is by lane."""

    title: str
    metric: str
    entries: Mapping[str, Entry]


@frozen(kw_only=True)
class Judgement:
    """What the launches of two lanes say of one figure: B against A.

    `ratio` is B / A, with its interval at 95% (`lo`, `hi`; None where values are too few for any). `p` is
    exact and two-sided; `p_adjusted` is Holm's over all figures judged together. `margin` is the share
    beyond which a difference counts, `floor` what launches of one and the same lane were seen to differ by.
    `paired` when each value of A has its partner of B in the same block. `more` is how many more blocks
    (launches of each lane, when not paired) would settle a difference of `margin`, None when settled.
    `sentence` says it all to a person.
    """

    word: Word
    ratio: float | None
    lo: float | None
    hi: float | None
    p: float
    p_adjusted: float
    n_a: int
    n_b: int
    paired: bool
    margin: float
    floor: float | None
    more: int | None
    sentence: str


@frozen(kw_only=True)
class Verdict:
    """A judgement with what it is about. `cause` names the one thing that differs between the lanes, when
    exactly one does; else no cause can be named, and `differences` of the comparison lists them."""

    a: str
    b: str
    instrument: str
    point: str
    metric: str
    judgement: Judgement
    cause: str | None


@frozen(kw_only=True)
class Difference:
    """A factor that is not the same in all lanes: its value by lane, None where it is not known."""

    factor: str
    values: Mapping[str, str | None]


@frozen(kw_only=True)
class Flag:
    """Something in the data that does not fit together: `kind` is short and stable, `sentence` for people."""

    kind: str
    sentence: str
    lanes: tuple[str, ...]


@frozen(kw_only=True)
class Choice:
    """Which lanes suit a shape of work (`interactive agent`, `batch`, ...), in words that name the figures.

    `front` are the lanes that no other beats in every figure of the shape; `scores` are by the user's
    own weights, empty without them. `lanes` are those with the figures that the shape needs."""

    shape: str
    figures: tuple[str, ...]
    lanes: tuple[str, ...]
    front: tuple[str, ...]
    scores: Mapping[str, float]
    sentence: str


@frozen(kw_only=True)
class Comparison:
    """Lanes side by side. `columns` are the overview, a row a lane; `points` the (instrument, name) of all
    rows in full, in order."""

    sides: tuple[Side, ...]
    columns: tuple[Column, ...]
    points: tuple[tuple[str, str], ...]
    verdicts: tuple[Verdict, ...]
    differences: tuple[Difference, ...]
    flags: tuple[Flag, ...]
    choices: tuple[Choice, ...]
    margin: float

    def side(self, name: str) -> Side:
        """The lane of this name. Raises KeyError."""
        for one in self.sides:
            if one.name == name:
                return one
        raise KeyError(name)
