"""The table of a result: a row a cell, and a row with its reason for a lane that has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lanes.cli import output, rows
from lanes.results.document import cell_name as cell_name

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    ("ttft_s", "TTFT s>"),
    ("prefill_tps", "prefill tok/s>"),
    ("decode_tps", "decode tok/s>"),
    ("span_tps", "span tok/s>"),
    ("ttft_p99_s", "TTFT p99 s>"),
    ("load_tps", "load tok/s>"),
    ("request_rps", "requests/s>"),
    ("schedule_delay_p99_s", "delay p99 s>"),
    ("slo_share", "SLO met>"),
    ("goodput_rps", "goodput/s>"),
)
_ALWAYS = ("ttft_s", "prefill_tps", "decode_tps")
"""Columns that are there even when no cell has the figure."""


_CONTENDED = 1.2
_SERVER = (
    ("acceptance", "{:.2f} tokens accepted a step"),
    ("running_max", "the server ran {:.0f} at once at most"),
    ("queued_max", "{:.0f} waited at most"),
    ("kv_use_max", "its KV cache was {:.0%} full at most"),
    ("gpus", "{:.0f} GPU(s) busy"),
    ("gpu_power_w", "{:.0f} W"),
    ("gpu_energy_j_per_token", "{:.3g} J a token"),
    ("gpu_clock_mhz", "{:.0f} MHz"),
    ("gpu_temperature_c", "{:.0f} \u00b0C"),
)
_ROOMY = 130
"""Columns from which a median and its interval fit on one line."""


def show(document: dict[str, Any]) -> None:
    """Print the table of a `lanes.result/1` document on stdout, with the notes that belong to it."""
    console = output.console()
    console.print(_table(document, " " if console.width >= _ROOMY else "\n"))
    for table in rows.tables(document):
        console.print(table)
    for line in (*rows.notes(document), *_notes(document)):
        console.print(line, markup=False, highlight=False, style="dim")


def _table(document: dict[str, Any], between: str) -> Table:
    every = [cell for lane in document["lanes"] for cell in _cells(lane)]
    held = {name for cell in every for name in cell["metrics"]}
    if not any(cell["concurrency"] > 1 for cell in every):
        # What all streams brought together says something of several only.
        held.discard("span_tps")
    columns = {name: title for name, title in _COLUMNS if name in held or name in _ALWAYS}
    if not every:
        made = output.table("lane", "status")
        for lane in document["lanes"]:
            said = ": ".join(part for part in (lane["status"], lane["reason"]) if part)
            made.add_row(lane["name"], said + _attempts(lane))
        return made
    made = output.table("lane", "cell", *columns.values(), "n>", "status")
    for lane in document["lanes"]:
        cells = _named(lane)
        for name, cell in cells:
            made.add_row(lane["name"], name, *_figures(cell, columns, between), _status(cell, lane))
        if not cells or lane["status"] not in ("measured", "running"):
            ended = f"{lane['status']}: {lane['reason']}{_attempts(lane)}"
            made.add_row(lane["name"], "", *[""] * len(columns), "", ended)
    return made


def _cells(lane: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for instrument in lane["instruments"] for cell in instrument["cells"]]


def _named(lane: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The lane's cells with their names, and whose they are where they are not the probe's."""
    return [
        (cell_name(cell) + ("" if instrument["name"] == "probe" else f" by {instrument['name']}"), cell)
        for instrument in lane["instruments"]
        for cell in instrument["cells"]
    ]


def _figures(cell: dict[str, Any], names: Iterable[str], between: str) -> Iterator[str]:
    metrics = cell["metrics"]
    for name in names:
        found = metrics.get(name) or (metrics.get("stream_decode_tps") if name == "decode_tps" else None)
        yield interval(found, between) if found else ""
    yield str(max((m["n"] for m in metrics.values()), default=0) or "")


def interval(value: dict[str, Any], between: str = " ") -> str:
    """`41.7 [38.8, 43.0]`: the median and its 95% interval, with three or four digits that count. One
    pass has no interval."""
    if value["n"] < 2:
        return number(value["median"])
    return f"{number(value['median'])}{between}[{number(value['lo'])}, {number(value['hi'])}]"


def number(value: float) -> str:
    """A number with three or four digits that count."""
    if isinstance(value, int):
        return f"{value:,}"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _attempts(lane: dict[str, Any]) -> str:
    """How often the lane was launched, where that was more than once."""
    made = len(lane.get("attempts", ()))
    return f" (attempt {made} of {lane['attempts'][-1]['of']})" if made > 1 else ""


def _status(cell: dict[str, Any], lane: dict[str, Any]) -> str:
    status = cell["status"]
    if lane["overrides"]:
        status += f" (despite {', '.join(lane['overrides'])})"
    return f"{status}: {cell['reason']}" if cell["reason"] else str(status)


def _notes(document: dict[str, Any]) -> Iterator[str]:
    if any(c["metrics"] for lane in document["lanes"] for c in _cells(lane)):
        yield "Medians with 95% intervals over n passes within one launch; decode at c > 1 is one stream's."
    for lane in document["lanes"]:
        cells = _named(lane)
        for note in dict.fromkeys(note for _, cell in cells for note in cell["notes"]):
            held = [name for name, cell in cells if note in cell["notes"]]
            where = f", {', '.join(held)}" if len(held) < len(cells) else ""
            yield f"{lane['name']}{where}: {note}"
        for name, cell in cells:
            if said := ", ".join(_beside(cell)):
                yield f"{lane['name']}, {name}: {said}"
        if lane["next_step"]:
            yield f"{lane['name']}: {lane['next_step']}"


def _beside(cell: dict[str, Any]) -> Iterator[str]:
    """What the table has no column for: contention, and the server and its GPUs by their own account."""
    contention = cell["metrics"].get("contention")
    if contention and contention["median"] >= _CONTENDED:
        yield f"a token takes {contention['median']:.1f} times as long while another stream prefills"
    server = cell.get("server_metrics", {})
    for name, words in _SERVER:
        if name in server:
            yield words.format(server[name]["median"])
