"""Point the instruments at an endpoint and journal what they find, as they find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from lanes.journal import Journal
from lanes.results.document import REQUESTS
from lanes.types import Endpoint

if TYPE_CHECKING:
    from lanes.bench.cells import CellResult, Pass, Progress
    from lanes.bench.plan import Plan
    from lanes.bench.timelines import Batch

PROBE = "probe"


@attrs.frozen(kw_only=True)
class Measured:
    """What became of a lane's cells: the status of the lane, with the reason when it is not `measured`.

    `served` says whether every request was answered: then it is the figures that cannot be believed,
    and the server is not to blame.
    """

    status: str
    reason: str = ""
    served: bool = False


def probe(
    endpoint: Endpoint,
    plan: Plan,
    journal: Journal,
    lane: int,
    alive: Callable[[], str | None] = lambda: None,
) -> Measured:
    """Run the probe over its grid; each pass and cell is on disk as it ends.

    `alive` tells how the server died, in a sentence, as soon as it has.
    """
    from lanes.bench.codec import as_json
    from lanes.bench.probe import measure

    journal.record("instrument", lane=lane, instrument=PROBE, plan=as_json(plan))

    def on_pass(one: Pass) -> None:
        journal.record("pass", lane=lane, instrument=PROBE, cell=as_json(one.cell), measured=as_json(one))

    def on_batch(one: Batch) -> None:
        what = {"cell": as_json(one.cell), "number": one.number, "count": one.count, "packed": one.packed}
        journal.record(REQUESTS, lane=lane, instrument=PROBE, **what)

    def on_cell(one: CellResult) -> None:
        # Its passes are in the journal already.
        cell = as_json(attrs.evolve(one, passes=()))
        journal.record("cell", lane=lane, instrument=PROBE, cell=cell)

    def on_progress(one: Progress) -> None:
        where = f"{one.cell}, " if one.cells > 1 else ""
        journal.tell("progress", lane=lane, text=where + one.phase)

    cells = measure(
        endpoint,
        plan,
        on_pass=on_pass,
        on_batch=on_batch,
        on_cell=on_cell,
        on_progress=on_progress,
        alive=alive,
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
