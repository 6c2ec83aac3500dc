"""The probe: cold prompts over the plan's grid, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lanes.instruments.base import Context, Instrument, Measured

if TYPE_CHECKING:
    from lanes.bench.cells import CellResult, Progress


def run(context: Context) -> Measured:
    """Run the probe over its grid; each pass and cell is on disk as it ends."""
    from lanes.bench.codec import as_json
    from lanes.bench.probe import measure

    context.began(as_json(context.plan))

    def on_progress(one: Progress) -> None:
        where = f"{one.cell}, " if one.cells > 1 else ""
        done = one.index - 1 + (one.number - 1) / max(one.total, 1)
        context.progress(where + one.phase, done / one.cells)

    cells = measure(
        context.endpoint,
        context.plan,
        on_pass=context.passed,
        on_batch=context.batch,
        on_cell=context.cell,
        on_progress=on_progress,
        alive=context.alive,
    )
    return judge(cells)


def judge(cells: Sequence[CellResult]) -> Measured:
    """A lane is measured when at least one cell is valid; crashed when the server was lost."""
    crashed = [c for c in cells if c.status == "crashed"]
    if crashed:
        return Measured(status="crashed", reason=crashed[0].reason or "the server was lost")
    if any(c.status == "ok" for c in cells):
        return Measured(status="measured")
    reasons = [c.reason for c in cells if c.reason]
    return Measured(
        status="failed",
        reason=f"no cell is valid: {reasons[0]}" if reasons else "no cell is valid",
        served=not any(one.error for c in cells for one in c.passes),
    )


INSTRUMENT = Instrument(
    name="probe",
    summary="prefill, decode and times to the first token of cold prompts, over the grid",
    cost="about a minute a cell on a small model",
    run=run,
)
