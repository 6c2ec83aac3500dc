"""The contract of an instrument: one way to measure a lane that serves.

An instrument is data and one function::

    INSTRUMENT = Instrument(name="smoke", summary="does it answer sense?", run=run, cost="a few seconds")

    def run(context: Context) -> Measured:
        context.progress("asking", share=0.5)
        context.row(Row(name="capital of France", status="supported"))
        return MEASURED

Whatever it finds it records as it finds it, so that nothing is lost when it is killed: rows (`context.row`),
or the probe's cells and passes. What it cannot do it raises: a `LanesError` (one sentence, and what to do)
becomes the reason of a failed instrument, and the others go on. `KeyboardInterrupt` must pass through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

if TYPE_CHECKING:
    from lanes.bench.cells import CellResult, Pass
    from lanes.bench.plan import Plan
    from lanes.bench.timelines import Batch
    from lanes.types import Cause, Endpoint, Finding

Status = Literal["measured", "failed", "crashed", "unmeasurable", "unrunnable"]
"""What a lane comes to by one instrument, from good to bad."""


@frozen(kw_only=True)
class Measured:
    """What an instrument came to: `status` is what it says of the lane, with the reason when it is not `measured`.

    `failed`: this instrument has no result worth having. `crashed`: the server was lost. `unmeasurable`:
    the server cannot be measured as it is, and the reason says from where on. `unrunnable`: it runs and what it
    answers is worth nothing. `served` says whether every request was answered: then it is the figures that
    cannot be believed, and the server is not to blame.
    """

    status: Status = "measured"
    reason: str = ""
    next_step: str | None = None
    served: bool = False


MEASURED = Measured()


@frozen(kw_only=True)
class Row:
    """One thing that was found, as a line of a table.

    `name` tells it from the instrument's other rows: a row of the same name replaces the former. `status` is
    the instrument's own word (`supported`, `broken`, `identical`); `fault` says that it counts against the
    server. `reason` is one sentence. `figures` are numbers, or a median with its interval, named with their
    unit (`ttft_s`, `decode_tps`). `evidence` is what a person wants to see who doubts: requests, answers, as
    plain JSON, with no secret in it.
    """

    name: str
    status: str
    fault: bool = False
    reason: str | None = None
    figures: Mapping[str, Any] = field(factory=dict)
    evidence: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class Explained:
    """Why a lane died or failed, as its engine's plugin says it: in one sentence, and what to do about it."""

    reason: str
    next_step: str | None = None
    causes: tuple[Cause, ...] = ()
    log: tuple[str, ...] = ()


def _unexplained(what: str) -> Explained:
    return Explained(reason=what, next_step="look at the server's own log")


@frozen(kw_only=True)
class Subject:
    """The lane that is measured, and what can be asked of it beside its endpoint.

    `engine`, `recipe` and `environment` are as the result shows them, secrets hidden; None or empty for a
    server that lanes did not start. `alive` tells how the server died, in a sentence, as soon as it has;
    `logs` the last lines of each rank's log; `explain` turns what was seen (`"the connection was cut"`)
    into what the engine's plugin knows of it. `relaunch` stops the lane and launches it anew with the
    same options, and returns where it serves now; it takes as long as the first boot did, and raises
    `LaneError` when the lane does not come up. It is None for a server that lanes did not start.
    """

    name: str
    engine: str | None = None
    recipe: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(factory=dict)
    alive: Callable[[], str | None] = lambda: None
    logs: Callable[[], Mapping[int, Sequence[str]]] = lambda: {}
    explain: Callable[[str], Explained] = _unexplained
    relaunch: Callable[[], Endpoint] | None = None


@frozen(kw_only=True)
class Context:
    """What an instrument is given.

    `endpoint` is all that it should measure through: URL, model, dialect. `plan` is what the user asked of
    the probe, and whatever of it fits an instrument (lengths, passes, `budget_s`, `limits`, `seed`) is the
    user's wish for it too. `options` is an instance of the instrument's own `options` class. `folder` is
    made, empty, when it is first asked for: files put there stay with the result.
    """

    endpoint: Endpoint
    plan: Plan
    subject: Subject
    options: Any
    record: Callable[..., None]
    """Write an event into the journal, as `results/document.py` lists them: use the methods below."""
    tell: Callable[[str], None]
    """Show a line of progress."""
    observe: Callable[[Finding], None]
    """Add a finding, with the evidence OBSERVED, to those of the lane: its verdict is judged anew."""
    place: Callable[[], Path]
    earlier: Callable[[], Sequence[Mapping[str, Any]]] = lambda: ()
    """The instruments of this lane so far, as the result shows them: with their plans, cells and rows."""
    started: float = field(factory=time.monotonic)

    @property
    def alive(self) -> Callable[[], str | None]:
        return self.subject.alive

    @property
    def folder(self) -> Path:
        return self.place()

    def row(self, row: Row) -> None:
        """Record a row; it is on disk when this returns."""
        from lanes.bench.codec import as_json

        self.record("row", row=as_json(row))

    def began(self, what: Mapping[str, Any]) -> None:
        """Record what exactly is asked for: versions, settings, command lines. Shown as `plan` in the result."""
        from lanes.bench.codec import as_json

        self.record("instrument", plan=as_json(dict(what)))

    def passed(self, one: Pass) -> None:
        """Record a pass of a cell."""
        from lanes.bench import timelines
        from lanes.bench.codec import as_json

        self.record("pass", cell=as_json(one.cell), measured=timelines.without(one))

    def batch(self, one: Batch) -> None:
        """Record the timelines of requests."""
        from lanes.bench.codec import as_json
        from lanes.results.document import REQUESTS

        self.record(REQUESTS, **as_json(one))

    def cell(self, one: CellResult) -> None:
        """Record what became of a cell; its passes are in the journal already."""
        import attrs

        from lanes.bench.codec import as_json

        self.record("cell", cell=as_json(attrs.evolve(one, passes=())))

    def progress(self, text: str, share: float | None = None) -> None:
        """Show where it stands; with the `share` that is done (0 to 1) also how long the rest may take."""
        self.tell(text + _left(share, time.monotonic() - self.started))


def _left(share: float | None, taken_s: float) -> str:
    if not share or not 0 < share < 1 or taken_s < 1:
        return ""
    left_s = taken_s * (1 - share) / share
    if left_s < 90:
        return f", about {max(left_s, 1):.0f} s left"
    return f", about {left_s / 60:.0f} min left" if left_s < 5400 else f", about {left_s / 3600:.1f} h left"


@frozen(kw_only=True)
class Instrument:
    """One way to measure.

    `name` is the value of `--instrument`; `summary` a few words on what it finds out; `cost` how long it
    takes, in words. `needs` says in one sentence, before anything is started, what is missing on this
    machine (a program, a package), or None. `options` is an attrs class: `--with NAME.KEY=VALUE` sets
    its fields, and unknown keys and wrong types are refused with what would be right.
    """

    name: str
    summary: str
    run: Callable[[Context], Measured]
    cost: str = ""
    needs: Callable[[], str | None] = lambda: None
    options: type[Any] | None = None
