"""A report as Markdown, for a forum or a repository: tables and lists, and of a plot its values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lanes.bugs.markdown import fenced
from lanes.reporting.data import as_table
from lanes.reporting.model import Block, Cell, Column, Items, Log, Plots, Report, Section, Table, Text, Tone

_MARKS: dict[Tone, str] = {"bad": "**{}**", "best": "**{}** \\*"}
_SPECIAL = re.compile(
    r"[\\`*\[\]<|&$]|(?<!\w)_|_(?!\w)|~(?=~)|#(?=\d)|^[#>=]|^[+-](?=\s)|(?<=^\d)[.)](?=\s)|(?<=^\d\d)[.)](?=\s)"
)
"""What Markdown, GitHub's included, would take for its own, where it stands there."""
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def page(report: Report) -> str:
    """The report in GitHub's Markdown; nothing in its texts is taken for markup."""
    return "\n".join(_page(report)).rstrip() + "\n"


def _page(report: Report) -> Iterator[str]:
    yield from (f"# {plain(report.title)}", "")
    yield from (f"- {plain(name)}: {plain(value)}" for name, value in report.facts)
    for section in report.sections:
        yield from ("", *_section(section))


def _section(section: Section) -> Iterator[str]:
    yield f"## {plain(section.title)}"
    for block in section.blocks:
        yield from ("", *_block(block))


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield plain(block.text)
    elif isinstance(block, Items):
        if block.title:
            yield from (f"{plain(block.title)}:", "")
        yield from (f"- {_toned(item.text, item.tone)}" for item in block.items)
    elif isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Log):
        yield from (f"{plain(block.title)}:", "", *fenced(block.lines))
    elif isinstance(block, Plots):
        for index, plot in enumerate(block.plots):
            if index:
                yield ""
            yield from _table(as_table(plot))


def _table(found: Table) -> Iterator[str]:
    yield from (f"**{plain(found.caption)}**", "")
    yield _row(plain(column.title) for column in found.columns)
    yield _row(_rule(column) for column in found.columns)
    yield from (_row(_cell(cell) for cell in row) for row in found.rows)


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(column: Column) -> str:
    return "---:" if column.numeric else "---"


def _cell(cell: Cell) -> str:
    return _toned(cell.text, cell.tone) if cell.text else ""


def _toned(text: str, tone: Tone) -> str:
    return _MARKS.get(tone, "{}").format(plain(text))


def plain(text: str) -> str:
    """The text on one line, as Markdown that shows it as it is."""
    one = " ".join(text.split())
    # A word joiner, which nobody sees, keeps a name from being called.
    return _MENTION.sub("@\u2060", _SPECIAL.sub(r"\\\g<0>", one))
