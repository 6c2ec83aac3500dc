"""Results as rows, one for each figure: for tables of others (CSV, Markdown, Parquet)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lanes.errors import LanesError, UsageError
from lanes.results.document import CELL_KEY, cell_name

COLUMNS = (
    "run", "started_at", "command", "lane", "engine", "cluster", "lane_status", "instrument", "point", *CELL_KEY,
    "status", "reason", "figure", "median", "lo", "hi", "n",
)  # fmt: skip
"""`started_at` is in Unix seconds; `point` is a cell's name or a row's; a lane without figures has one row."""

FORMATS = ("csv", "json", "md", "parquet")


def rows(documents: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each figure of `lanes.result/1` documents, with the keys of `COLUMNS`."""
    for document in documents:
        for lane in document["lanes"]:
            head = {
                "run": document["run"],
                "started_at": document["started_at"],
                "command": document.get("command"),
                "lane": lane["name"],
                "engine": lane["engine"],
                "cluster": lane["cluster"],
                "lane_status": lane["status"],
            }
            found = False
            for one in _of_lane(lane):
                found = True
                yield dict.fromkeys(COLUMNS) | head | one
            if not found:
                yield dict.fromkeys(COLUMNS) | head | {"status": lane["status"], "reason": lane["reason"]}


def _of_lane(lane: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for instrument in lane["instruments"]:
        for cell in instrument["cells"]:
            place = {key: cell.get(key) for key in CELL_KEY} | {"point": cell_name(cell)}
            yield from _figures(place | {"instrument": instrument["name"]}, cell, cell["metrics"])
        for row in instrument.get("rows") or ():
            place = {"point": row["name"], "instrument": instrument["name"]}
            yield from _figures(place, row, row["figures"])


def _figures(
    place: dict[str, Any], told: Mapping[str, Any], figures: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    place = place | {"status": told["status"], "reason": told.get("reason")}
    if not figures:
        yield place
    for name, value in figures.items():
        held = value if isinstance(value, Mapping) else {"median": value, "lo": value, "hi": value, "n": 1}
        yield place | {"figure": name, **{key: held.get(key) for key in ("median", "lo", "hi", "n")}}


def text(found: Iterable[Mapping[str, Any]], form: str) -> str:
    """The rows as `csv`, `json` or `md`."""
    if form == "json":
        return json.dumps(list(found), indent=1) + "\n"
    if form == "csv":
        written = io.StringIO()
        writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        return written.getvalue()
    lines = [COLUMNS, tuple("---" for _ in COLUMNS)]
    lines += [tuple(_cell(row[column]) for column in COLUMNS) for row in found]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown.replace("|", "\\|").replace("\n", " ")


def write_parquet(found: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write the rows as a Parquet file. Raises `UsageError` without pyarrow, `LanesError` when it cannot be written."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "Parquet is written by pyarrow, which is not here", "pip install 'lanes-core[parquet]'"
        ) from None
    numbers = ("started_at", "rate", "median", "lo", "hi")
    counts = ("pp", "tg", "depth", "concurrency", "n")
    kinds = {name: pyarrow.float64() for name in numbers} | {name: pyarrow.int64() for name in counts}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in found], schema), path)
    except OSError as error:
        raise LanesError(f"{path} cannot be written: {error}", "name another file") from None
