"""A report as one HTML file that loads nothing: everything in it is escaped, and its policy forbids the rest."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from lanes.reporting import data, svg
from lanes.reporting.model import (
    Block,
    Cell,
    Column,
    Curves,
    Items,
    Log,
    Plot,
    Plots,
    Report,
    Section,
    Strips,
    Table,
    Text,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Whatever stood in a result, the page runs nothing and asks nobody for anything."""


def page(report: Report) -> str:
    """The page. Raises `UsageError` when there is something to plot and no matplotlib."""
    return "\n".join(_Page(report).lines()) + "\n"


class _Page:
    """Writes one page; counts what needs an id of its own."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._count = 0

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def lines(self) -> Iterator[str]:
        report = self._report
        style = (files("lanes.reporting") / "page.css").read_text(encoding="utf-8")
        yield from ("<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">')
        yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
        yield '<meta name="color-scheme" content="light dark">'
        yield '<meta name="referrer" content="no-referrer">'
        yield f"<title>{escape(report.title)}</title>"
        yield from ("<style>", style.strip(), "</style>", "</head>", "<body>")
        yield '<a class="skip" href="#content">Skip to the content</a>'
        yield from ("<header>", f"<h1>{escape(report.title)}</h1>", '<dl class="facts">')
        for name, value in report.facts:
            yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        yield from ("</dl>", '<nav aria-label="Contents"><ul>')
        for section in report.sections:
            yield f'<li><a href="#{escape(section.ident)}">{escape(section.title)}</a></li>'
        yield from ("</ul></nav>", "</header>", '<main id="content" tabindex="-1">')
        for section in report.sections:
            yield from self._section(section)
        yield from ("</main>", "</body>", "</html>")

    def _section(self, section: Section) -> Iterator[str]:
        ident = escape(section.ident)
        yield f'<section aria-labelledby="{ident}"><h2 id="{ident}">{escape(section.title)}</h2>'
        for block in section.blocks:
            yield from self._block(block)
        yield "</section>"

    def _block(self, block: Block) -> Iterator[str]:
        if isinstance(block, Text):
            yield f"<p>{escape(block.text)}</p>"
        elif isinstance(block, Items):
            yield from self._items(block)
        elif isinstance(block, Table):
            yield from self._table(block)
        elif isinstance(block, Log):
            title = self._new("log")
            yield f'<h3 id="{title}">{escape(block.title)}</h3>'
            lines = escape("\n".join(block.lines))
            yield f'<pre role="region" tabindex="0" aria-labelledby="{title}">{lines}</pre>'
        elif isinstance(block, Plots):
            yield '<div class="plots">'
            for plot in block.plots:
                yield from self._plot(plot)
            yield "</div>"

    def _items(self, found: Items) -> Iterator[str]:
        """A short list as it is; what is for those who ask opens when they do."""
        items = (
            f'<li class="{item.tone}">{escape(item.text)}</li>'
            if item.tone
            else f"<li>{escape(item.text)}</li>"
            for item in found.items
        )
        if found.quiet:
            yield f"<details open><summary>{escape(found.title)}</summary>"
            yield f'<ul class="notes">{"".join(items)}</ul></details>'
            return
        if found.title:
            yield f"<h3>{escape(found.title)}</h3>"
        yield f'<ul class="said">{"".join(items)}</ul>'

    def _table(self, found: Table) -> Iterator[str]:
        caption = self._new("table")
        yield f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{caption}"><table>'
        yield f'<caption id="{caption}">{escape(found.caption)}</caption><thead><tr>'
        yield "".join(f'<th scope="col"{_class(c)}>{escape(c.title)}</th>' for c in found.columns)
        yield "</tr></thead><tbody>"
        for row in found.rows:
            cells = [_cell(cell, column) for cell, column in zip(row, found.columns, strict=True)]
            first = f'<th scope="row"{_class(found.columns[0], row[0])}>{cells[0]}</th>'
            rest = (
                f"<td{_class(column, cell)}>{text}</td>"
                for text, column, cell in zip(cells[1:], found.columns[1:], row[1:], strict=True)
            )
            yield f"<tr>{first}{''.join(rest)}</tr>"
        yield "</tbody></table></div>"

    def _plot(self, plot: Plot) -> Iterator[str]:
        ident = self._new("plot")
        long = "" if isinstance(plot, Curves) else ' class="long"'
        yield f'<figure{long}><figcaption id="{ident}">{escape(plot.title)}</figcaption>'
        yield _legend(plot)
        words = escape(data.in_words(plot))
        yield f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{ident}">'
        yield svg.draw(plot, ident, words)
        yield "</div><details><summary>The same as a table</summary>"
        yield from self._table(data.as_table(plot))
        yield "</details></figure>"


_WIDE = 40
"""Characters from which a cell may break its lines."""


def _class(column: Column, cell: Cell | None = None) -> str:
    if column.numeric:
        return ' class="num"'
    return ' class="wide"' if cell is not None and len(cell.text) > _WIDE else ""


def _cell(cell: Cell, column: Column) -> str:
    text = escape(cell.text)
    if column.numeric and text.endswith("]"):
        # The interval stands under its median, where columns are narrow.
        median, _, interval = text.partition(" [")
        text = f'{median} <span class="interval">[{interval}</span>' if interval else text
    if cell.tone == "best":
        return f'<span class="tone best">{text} *</span>'
    return f'<span class="tone {cell.tone}">{text}</span>' if cell.tone and text else text


def _legend(plot: Plot) -> str:
    """What the colours and marks of a plot stand for."""
    if isinstance(plot, Curves):
        names = [(one.name, svg.swatch(one.number)) for one in plot.series]
    elif isinstance(plot, Strips):
        numbers = {strip.number: strip.name for strip in plot.strips}
        names = [(name, svg.swatch(number)) for number, name in numbers.items()]
    else:
        names = [(kind, svg.block(index)) for index, kind in enumerate(plot.kinds)]
    items = "".join(f"<li>{mark}<span>{escape(name)}</span></li>" for name, mark in names)
    return f'<ul class="legend">{items}</ul>'
