"""llama-benchy, as its own program: a run of it for each cell, its figures beside our own.

See `benchy_report` for what it is known to get wrong, `benchy_text` for what it is fed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from lanes.instruments.base import Context, Instrument, Measured, Row
from lanes.instruments.programs import (
    KEY_VARIABLE,
    Ended,
    Folder,
    Installed,
    Program,
    clean_environment,
    lines_of,
)
from lanes.instruments.programs import run as run_program

if TYPE_CHECKING:
    from lanes.bench.plan import Cell
    from lanes.instruments.benchy_report import Judged, Request
    from lanes.types import Dialect

PROGRAM = Program(command="llama-benchy", package="llama-benchy", tried=("0.4.0",))
AGREE = 0.03
"""Figures that differ by no more than that agree."""
_COMPARED = ("ttft_s", "prefill_tps", "decode_tps", "stream_decode_tps")
_REPORT, _PROGRESS = "report.json", "progress.jsonl"
_TOKEN_IDS = "return_token_ids"


@attrs.frozen(kw_only=True)
class Options:
    """`runs` of each cell (default: as many as the plan has passes); `latency`, what is taken for the network's
    latency and subtracted from times to the first response; a `tokenizer`'s file or folder, where ours is not
    wanted; `own`, whether our probe measures the cells that it has not measured in this run."""

    runs: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    latency: Literal["api", "generation", "none"] = "api"
    tokenizer: str | None = None
    own: bool = True


@attrs.frozen(kw_only=True)
class _Own:
    """What our probe says of a cell: medians, and how many tokens the first delta holds where it knows."""

    figures: Mapping[str, float] = attrs.field(factory=dict)
    k1: float | None = None
    reason: str | None = None


def run(context: Context) -> Measured:
    """Run llama-benchy over the plan's grid, cell by cell; each cell is on disk as it ends."""
    options: Options = context.options or Options()
    if context.plan.load != "burst":
        return Measured(
            status="failed", reason=f"llama-benchy sends bursts, and the load is to be {context.plan.load}"
        )
    installed = PROGRAM.installed()
    bench = _Bench(context, options, installed)
    groups = _groups(context.plan.cells)
    judged: list[Judged] = []
    for index, cells in enumerate(groups):
        if dead := context.alive():
            return Measured(status="crashed", reason=dead)
        judged += bench.measure(cells, index, len(groups))
    if any(one.result.status == "ok" for one in judged):
        return Measured()
    if dead := context.alive():
        return Measured(status="crashed", reason=dead)
    reasons = [one.result.reason for one in judged if one.result.reason]
    return Measured(
        status="failed", reason=f"no cell of llama-benchy is valid: {reasons[0]}", served=not bench.errors
    )


def _groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells that one run of it measures: at a depth it fills the context first, and that is a `ctx` cell."""
    groups: list[list[Cell]] = []
    made: dict[Any, list[Cell]] = {}
    for cell in cells:
        key = (cell.depth, cell.tg, cell.concurrency) if cell.depth else cell
        # A suffix of each length needs a run of its own, which fills the context anew; one `ctx` cell is enough.
        near = made.get(key, [])
        if near and cell.shape not in {one.shape for one in near}:
            near.append(cell)
            continue
        made[key] = [cell]
        groups.append(made[key])
    return groups


class _Bench:
    def __init__(self, context: Context, options: Options, installed: Installed) -> None:
        from lanes.bench.http import Target, api_key
        from lanes.instruments.benchy_text import Text, fitting

        self._context, self._options, self._installed = context, options, installed
        self._runs = options.runs or context.plan.passes
        self._fields, self._notes = fields_of(context.endpoint.dialect, context.plan.seed)
        self._fixed = "--exact-tg" if context.endpoint.dialect.fixed_length else None
        self._key = api_key(context.endpoint.dialect.api_key_env)
        self._redact = Target.of(context.endpoint).redact
        self.errors = False
        context.progress("making its book")
        self._text: Text = asyncio.run(fitting(context.endpoint))
        if note := installed.note:
            self._notes.append(note)
        if self._text.note and options.tokenizer is None:
            self._notes.append(self._text.note)
        context.began(
            {
                "program": PROGRAM.command,
                "version": installed.version,
                "runs": self._runs,
                "latency_mode": options.latency,
                "tokenizer": options.tokenizer or "made for this server",
                "fields": dict(self._fields),
                "cells": [str(cell) for cell in context.plan.cells],
            }
        )

    def measure(self, cells: Sequence[Cell], index: int, of: int) -> list[Judged]:
        """Run the program once, as number `index` of `of` (from 0), and once more without the field that it always
        sends when the server refuses it."""
        sent, report, ended = self._run(cells, index, of)
        if (
            sent
            and all(one.error and _TOKEN_IDS in one.error for one in sent)
            and _TOKEN_IDS not in self._fields
        ):
            self._fields[_TOKEN_IDS] = "false"
            self._notes.append(
                f"sent with {_TOKEN_IDS}=false, for the server refuses what llama-benchy always sends"
            )
            sent, report, ended = self._run(cells, index, of)
        self.errors |= any(one.error for one in sent)
        return [self._judge(cell, sent, report, ended) for cell in cells]

    def _run(self, cells: Sequence[Cell], index: int, of: int) -> tuple[list[Request], str, Ended]:
        from lanes.instruments.benchy_report import requests

        context, limits = self._context, self._context.plan.limits
        cell = _asked(cells)
        with Folder(self._redact) as folder:
            tokenizer = self._options.tokenizer or str(self._text.write(folder.path))
            argv = self._installed.argv(self.arguments(cell, tokenizer))
            env = clean_environment(HOME=str(folder.path), HF_HUB_OFFLINE="1")
            env |= {KEY_VARIABLE: self._key} if self._key else {}
            lines, text = lines_of(folder.path / _PROGRESS), ""
            total = self._runs * cell.concurrency * (2 if cell.depth else 1)

            def watch() -> None:
                nonlocal text
                text += next(lines)
                done = text.count('"request_end"')
                context.progress(f"{cell}: {done} of {total} requests", (index + min(done / total, 1.0)) / of)
                if dead := context.alive():
                    raise _Dead(dead)

            name = str(cell).replace(" ", "-").replace(",", "")
            try:
                ended = run_program(argv, folder, env, watch, limits.first_byte_s + limits.stall_s)
            except _Dead as dead:
                ended = Ended(code=1, lines=(str(dead),))
            finally:
                for file in (_REPORT, _PROGRESS, "log"):
                    folder.keep(file, context.folder / f"{name}-{file}")
            sent = requests(folder.read(_PROGRESS).splitlines())
            return sent, folder.read(_REPORT), ended

    def arguments(self, cell: Cell, tokenizer: str) -> list[str]:
        """Its command line, which holds no secret."""
        from lanes.instruments.benchy_text import BOOK_URL

        endpoint = self._context.endpoint
        argv = ["--base-url", f"{endpoint.url.rstrip('/')}/v1", "--model", endpoint.model]
        argv += ["--served-model-name", endpoint.model, "--tokenizer", tokenizer, "--book-url", BOOK_URL]
        argv += ["--pp", str(cell.pp or 1), "--tg", str(cell.tg), "--depth", str(cell.depth)]
        argv += ["--concurrency", str(cell.concurrency), "--runs", str(self._runs)]
        argv += ["--latency-mode", self._options.latency, "--skip-coherence"]
        argv += [self._fixed] if self._fixed else []
        argv += ["--enable-prefix-caching"] if cell.depth else []
        for name, value in self._fields.items():
            argv += ["--extra-body", f"{name}={value}"]
        return [*argv, "--format", "json", "--save-result", _REPORT, "--emit-progress", _PROGRESS]

    def _judge(self, cell: Cell, sent: Sequence[Request], report: str, ended: Ended) -> Judged:
        from lanes.instruments.benchy_report import judge, latency_s, rows

        context = self._context
        own = self._own(cell)
        phase = 1 if cell.depth and cell.shape == "suffix" else 0
        context_phase = bool(cell.depth) and phase == 0
        row = next(
            (r for r in rows(report) if bool(r.get("is_context_prefill_phase")) == context_phase), None
        )
        mine = [one for one in sent if one.phase == phase]
        judged = judge(cell, row, mine, latency_s(report), own.k1, self._fixed is not None)
        result = judged.result
        if "Falling back to 'gpt2'" in "\n".join(ended.lines):
            result = attrs.evolve(
                result, status="invalid", reason="it could not load the tokenizer, and took gpt2's"
            )
        elif ended.code and not any(one.error for one in mine):
            reason = f"llama-benchy ended with exit code {ended.code}: {ended.last}"
            result = attrs.evolve(result, status="invalid", reason=reason)
        dead = context.alive()
        if dead and result.status != "ok":
            result = attrs.evolve(result, status="crashed", reason=dead)
        result = attrs.evolve(result, notes=(*self._notes, *result.notes))
        judged = attrs.evolve(judged, result=result)
        context.cell(result)
        context.row(beside(cell, judged, own))
        return judged

    def _own(self, cell: Cell) -> _Own:
        """Our figures of the same cell: those that the probe has in this run, else measured now."""
        found = _from_probe(self._context.earlier(), cell)
        if found is not None or not self._options.own:
            return found or _Own(reason="our probe has not measured this cell")
        from lanes.bench.probe import measure

        plan = attrs.evolve(
            self._context.plan,
            pp=cell.pp or self._context.plan.pp,
            tg=cell.tg,
            depth=cell.depth,
            depth_shape=cell.shape,
            concurrency=cell.concurrency,
        )
        self._context.progress(f"{cell}: our own probe")
        (result,) = measure(self._context.endpoint, plan, alive=self._context.alive)
        if result.status != "ok":
            return _Own(reason=f"our own cell is {result.status}: {result.reason}")
        k1s = [k1 for one in result.passes for k1 in one.first_deltas if k1 and not k1.approximate]
        return _Own(
            figures={name: value.median for name, value in result.metrics.items()},
            k1=statistics.median(k1.tokens for k1 in k1s) if k1s else None,
        )


class _Dead(Exception):
    """The engine died; the message says how."""


def _asked(cells: Sequence[Cell]) -> Cell:
    """What to ask for so that all of these are measured: the suffix at a depth has its context with it."""
    return next((cell for cell in cells if cell.shape == "suffix"), cells[0])


def fields_of(dialect: Dialect, seed: int) -> tuple[dict[str, str], list[str]]:
    """The fields that are sent beside its own, as it wants them written, and what a reader should know of them."""
    wanted = {"temperature": 0, "seed": seed, **dialect.extra, **dialect.fixed_length}
    fields: dict[str, str] = {}
    notes = []
    for name, value in wanted.items():
        if name in dialect.forbidden:
            continue
        text = json.dumps(value, separators=(",", ":"))
        if "," in text:
            notes.append(f"sent without {name}: llama-benchy cannot send {text}")
        else:
            fields[name] = text
    if _TOKEN_IDS in dialect.forbidden:
        fields[_TOKEN_IDS] = "false"
    return fields, notes


def _from_probe(instruments: Sequence[Mapping[str, Any]], cell: Cell) -> _Own | None:
    """What the probe found of a cell in this run, or None when it has not measured it."""
    probe = next((one for one in instruments if one["name"] == "probe"), None)
    for found in probe["cells"] if probe else ():
        if all(
            found.get(name) == getattr(cell, name)
            for name in ("pp", "tg", "depth", "concurrency", "shape", "load")
        ):
            if found["status"] != "ok":
                return _Own(reason=f"our own cell is {found['status']}: {found['reason']}")
            firsts = [k1 for one in found["passes"] for k1 in one.get("first_deltas") or () if k1]
            known = [k1["tokens"] for k1 in firsts if k1.get("source") != "average"]
            return _Own(
                figures={name: value["median"] for name, value in found["metrics"].items()},
                k1=statistics.median(known) if known else None,
            )
    return None


def beside(cell: Cell, judged: Judged, own: _Own) -> Row:
    """Its figures, put right where they are known to be wrong, beside ours."""
    result = judged.result
    figures: dict[str, Any] = {}
    off: dict[str, float] = {}
    for name in _COMPARED:
        if name in result.metrics:
            figures[name] = result.metrics[name]
        if name in judged.said and any(flag.figure == name for flag in judged.flags):
            figures[f"said_{name}"] = judged.said[name]
        if name in own.figures:
            figures[f"own_{name}"] = own.figures[name]
        if name in result.metrics and own.figures.get(name):
            off[name] = result.metrics[name].median / own.figures[name] - 1
            figures[f"off_{name.removesuffix('_tps').removesuffix('_s')}_share"] = off[name]
    status, reason = _word(judged, own, off)
    return Row(
        name=str(cell),
        status=status,
        reason=reason,
        figures=figures,
        evidence={"flags": [attrs.asdict(flag) for flag in judged.flags], "said": dict(judged.said)},
    )


def _word(judged: Judged, own: _Own, off: Mapping[str, float]) -> tuple[str, str | None]:
    result = judged.result
    if result.status != "ok":
        return result.status, result.reason
    if judged.flags:
        return "put right", "; ".join(flag.sentence for flag in judged.flags)
    if not off:
        return "alone", own.reason or "our own cell has no figure in common with it"
    apart = {name: share for name, share in off.items() if abs(share) > AGREE}
    if not apart:
        return "agrees", None
    said = ", ".join(f"{name} {share:+.1%}" for name, share in apart.items())
    return "differs", f"more than {AGREE:.0%} from ours: {said}"


INSTRUMENT = Instrument(
    name="benchy",
    summary="llama-benchy's own figures of the same cells, put right where it is known to be wrong, beside ours",
    run=run,
    cost="as long as the probe, and a few seconds a cell",
    needs=PROGRAM.lacking,
    options=Options,
)
