"""What instruments other than the probe found, and what the checks found before the launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lanes.comparing.comparison import Comparison, Figure, Point, Side
from lanes.comparing.grouping import Group
from lanes.comparing.metrics import METRICS
from lanes.reporting.model import Block, Cell, Column, Item, Items, Section, Table, Tone, table
from lanes.reporting.overview import point_status, shown
from lanes.results.document import cell_name

_TITLES = {
    "smoke": "Does it answer sense (smoke)",
    "surface": "What the server does (surface)",
    "survival": "Which prompts it survives (survival)",
    "contention": "What others cost a stream (contention)",
    "invariance": "Does a batch change answers (invariance)",
    "tooleval": "Tools and agents (tool-eval-bench)",
    "benchy": "By llama-benchy",
}
_FIGURES = 7
"""Figures that have a column each; more of them share one."""

Found = tuple[Side, Point]


def instruments(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """A table for each instrument that has rows, a row for each thing and lane; then those that did not end well."""
    by: dict[str, list[Found]] = {}
    for instrument, name in comparison.points:
        for side in comparison.sides:
            point = side.point(instrument, name)
            if point is not None and not point.cell:
                by.setdefault(instrument, []).append((side, point))
    blocks: list[Block] = [
        _table(_TITLES.get(name, name), found, len(comparison.sides)) for name, found in by.items()
    ]
    if ended := tuple(dict.fromkeys(_ended(comparison, groups))):
        blocks.append(Items(title="Instruments that did not end well", items=ended))
    return Section(ident="instruments", title="What instruments found", blocks=tuple(blocks))


def _table(title: str, found: Sequence[Found], lanes: int) -> Table:
    names = list(dict.fromkeys(name for _, point in found for name in point.figures))
    apart = len(names) <= _FIGURES
    rows = []
    for side, point in found:
        head = (
            Cell(text=point.name),
            Cell(text=side.name if lanes > 1 else ""),
            Cell(text=point_status(point), tone=_tone(point)),
        )
        figures = (
            [shown(point.figures.get(name)) for name in names]
            if apart
            else [Cell(text=", ".join(f"{_name(n)} {shown(f).text}" for n, f in point.figures.items()))]
        )
        rows.append((*head, *figures, Cell(text=point.reason or "")))
    heads = [Column(title=_name(name), numeric=True) for name in names] if apart else ["figures"]
    return table(title, ("what", "lane", "found", *heads, "why"), rows)


def _tone(point: Point) -> Tone:
    return "bad" if point.bad else ""


def _name(metric: str) -> str:
    return METRICS[metric].title if metric in METRICS else metric


def _ended(comparison: Comparison, groups: Sequence[Group]) -> Iterator[Item]:
    for side, group in zip(comparison.sides, groups, strict=True):
        for launch in group.launches:
            for one in launch.lane["instruments"]:
                status = one.get("status")
                if status not in (None, "done", "running"):
                    reason = f": {one['reason']}" if one.get("reason") else ""
                    yield Item(text=f"{side.name}, {one['name']} {status}{reason}", tone="bad")


_SERVER = (
    ("acceptance", "tokens accepted a step"),
    ("running_max", "ran at once at most"),
    ("queued_max", "waited at most"),
    ("kv_use_max", "KV cache used at most"),
    ("gpus", "GPUs busy"),
    ("gpu_power_w", "power W"),
    ("gpu_energy_j_per_token", "energy J a token"),
    ("gpu_clock_mhz", "clock MHz"),
    ("gpu_temperature_c", "temperature \u00b0C"),
)


def server(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """The server and its GPUs by their own account, of the last launch that has one."""
    rows = []
    for side, group in zip(comparison.sides, groups, strict=True):
        held: dict[str, Mapping[str, Any]] = {}
        for launch in group.launches:
            for instrument in launch.lane["instruments"]:
                for cell in instrument["cells"]:
                    if cell["status"] == "ok" and cell.get("server_metrics"):
                        held[cell_name(cell)] = cell["server_metrics"]
        for name, told in held.items():
            figures = [shown(_figure(key, told[key])) if key in told else Cell(text="") for key, _ in _SERVER]
            if any(one.text for one in figures):
                lane = side.name if len(comparison.sides) > 1 else ""
                rows.append((Cell(text=name), Cell(text=lane), *figures))
    blocks: tuple[Block, ...] = ()
    if rows:
        heads = ("cell", "lane", *(f"{title}>" for _, title in _SERVER))
        blocks = (table("By their own account", heads, rows),)
    return Section(ident="server", title="The server and its GPUs", blocks=blocks)


def _figure(name: str, told: Mapping[str, Any]) -> Figure:
    return Figure(
        metric=name,
        median=told["median"],
        lo=told["lo"],
        hi=told["hi"],
        n=int(told["n"]) if told["lo"] < told["hi"] else 1,
        unit="pass",
        values=(),
    )


_VERDICTS: dict[str, Tone] = {
    "runnable": "good",
    "degraded": "doubt",
    "unknown": "doubt",
    "unrunnable": "bad",
}


def findings(comparison: Comparison, groups: Sequence[Group]) -> Section:
    """What was found out about whether lanes can run, worst first; findings that lanes share stand once."""
    by: dict[tuple[str, ...], list[str]] = {}
    for side, group in zip(comparison.sides, groups, strict=True):
        for one in group.launches[-1].lane["findings"]:
            key = tuple(
                str(one.get(name) or "")
                for name in (
                    "verdict",
                    "question",
                    "kind",
                    "reason",
                    "evidence",
                    "source",
                    "next_step",
                    "recheck_when",
                )
            )
            lanes = by.setdefault(key, [])
            if side.name not in lanes:
                lanes.append(side.name)
    order = list(_VERDICTS)[::-1]
    rows = []
    for key in sorted(by, key=lambda one: order.index(one[0]) if one[0] in order else 0):
        verdict, question, kind, reason, evidence, source, step, again = key
        every = len(by[key]) == len(comparison.sides)
        lane = "" if len(comparison.sides) == 1 else "all" if every else ", ".join(by[key])
        told = Cell(text=verdict, tone=_VERDICTS.get(verdict, ""))
        advice = "; ".join(filter(None, (step, again and f"look again when {again}")))
        rows.append((question, told, lane, kind, reason, evidence, source, advice))
    heads = ("question", "verdict", "lane", "kind", "reason", "evidence", "source", "what to do")
    blocks: tuple[Block, ...] = (table("Findings", heads, rows),) if rows else ()
    return Section(ident="findings", title="Can they run", blocks=blocks)
