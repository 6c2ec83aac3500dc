"""A report as values, before anything decides how it looks.

All texts are plain: they come from results, which anybody may have written, and a renderer escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import field, frozen

Tone = Literal["", "good", "bad", "doubt", "best"]
"""What a text is told with beside its words, which always say it too."""


@frozen(kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    tone: Tone = ""


@frozen(kw_only=True)
class Column:
    """A column's head; `numeric` columns are set flush right."""

    title: str
    numeric: bool = False


@frozen(kw_only=True)
class Table:
    """Rows under columns; the first cell of a row is its head."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@frozen(kw_only=True)
class Text:
    """A paragraph."""

    text: str


@frozen(kw_only=True)
class Item:
    """A line of a list."""

    text: str
    tone: Tone = ""


@frozen(kw_only=True)
class Items:
    """A list of sentences. `title` is shown above it, where it has one; a `quiet` list is for those who ask."""

    items: tuple[Item, ...]
    title: str = ""
    quiet: bool = False


@frozen(kw_only=True)
class Log:
    """Lines as a program wrote them."""

    title: str
    lines: tuple[str, ...]


@frozen(kw_only=True)
class Dot:
    """A value `y` at `x` with its 95% interval; `n` says over what, as text."""

    x: float
    y: float
    lo: float
    hi: float
    n: str


@frozen(kw_only=True)
class Series:
    """The dots of one lane; `number` is the lane's place, which gives it its colour and mark everywhere."""

    name: str
    number: int
    dots: tuple[Dot, ...]


@frozen(kw_only=True)
class Curves:
    """Figures against one thing that was varied."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]


@frozen(kw_only=True)
class Strip:
    """All values of one lane at one point, with their median."""

    name: str
    where: str
    number: int
    values: tuple[float, ...]


@frozen(kw_only=True)
class Strips:
    """How values are distributed: a mark for each."""

    title: str
    x: str
    strips: tuple[Strip, ...]


@frozen(kw_only=True)
class Span:
    """A stretch of time, in seconds from the left edge; `kind` is what happened in it."""

    kind: str
    start: float
    end: float


@frozen(kw_only=True)
class Bar:
    """The spans of one line, in order."""

    name: str
    spans: tuple[Span, ...]


@frozen(kw_only=True)
class Spans:
    """What happened when: a line each, against seconds. Kinds have their colours in the order of `kinds`."""

    title: str
    x: str
    kinds: tuple[str, ...]
    bars: tuple[Bar, ...]


Plot = Curves | Strips | Spans


@frozen(kw_only=True)
class Plots:
    """Plots that belong together."""

    plots: tuple[Plot, ...]


Block = Text | Items | Table | Log | Plots


@frozen(kw_only=True)
class Section:
    """A part of the page. `ident` is short and stable: links lead to it."""

    ident: str
    title: str
    blocks: tuple[Block, ...]


@frozen(kw_only=True)
class Report:
    """The page. `facts` are what it is of: a name and a value each."""

    title: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())


def table(caption: str, columns: Sequence[Column | str], rows: Sequence[Sequence[Cell | str]]) -> Table:
    """A table of texts; a column whose title is written with `>` at its end is numeric (a title that comes from
    a result is given as a `Column`), and one that nothing fills is left out."""
    cells = [[one if isinstance(one, Cell) else Cell(text=one) for one in row] for row in rows]
    heads = [one if isinstance(one, Column) else _head(one) for one in columns]
    kept = [i for i in range(len(heads)) if i == 0 or any(row[i].text for row in cells)]
    return Table(
        caption=caption,
        columns=tuple(heads[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in cells),
    )


def _head(title: str) -> Column:
    return Column(title=title.removesuffix(">"), numeric=title.endswith(">"))
