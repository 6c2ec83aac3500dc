"""A run: lanes measured one after the other, each alike, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from lanes import measuring
from lanes.errors import LanesError
from lanes.journal import Journal
from lanes.lifecycle import RETRIES, Attempt, Bound, Outcome
from lanes.nodes import Place
from lanes.settings import NOTHING, Allowed
from lanes.types import Endpoint

if TYPE_CHECKING:
    from lanes.bench.plan import Plan
    from lanes.instruments import Chosen

UNBELIEVED = (
    "the passes are kept: `lanes history show` has them; change --pp, --tg or --passes, and measure again"
)
Measure = Callable[..., measuring.Session]
"""`measuring.measure`, or what does the same elsewhere."""
INTERRUPTED = Outcome(status="interrupted", reason="interrupted by the user")


def run(
    bounds: Sequence[Bound],
    places: Sequence[Place],
    plan: Plan,
    journal: Journal,
    chosen: Sequence[Chosen],
    port: int | None = None,
    despite: Collection[str] = (),
    take_over: str | None = None,
    allowed: Allowed = NOTHING,
    retries: int = RETRIES,
    measure: Measure = measuring.measure,
) -> list[Outcome]:
    """Bring up, measure and take down each lane in turn, each at its place.

    A lane that fails or cannot run is an outcome with its reason, never an exception. Raises
    `KeyboardInterrupt` after cleaning up, and leaves the rest out.
    """
    # The same prompts for every lane of the run, fresh in the next one.
    plan = attrs.evolve(plan, comparison=journal.run)
    return [
        one(
            bound,
            place,
            [Visit(plan=plan)],
            journal,
            chosen,
            port,
            despite,
            take_over,
            allowed,
            retries,
            measure=measure,
        )
        for bound, place in zip(bounds, places, strict=True)
    ]


@attrs.frozen(kw_only=True)
class Visit:
    """One time that a lane is measured while it is up: by which plan, and with which `request` fields beside
    the lane's own. `block` is where it belongs in an A/B."""

    plan: Plan
    block: Mapping[str, Any] | None = None
    request: Mapping[str, Any] = attrs.field(factory=dict)


def one(
    bound: Bound,
    place: Place,
    visits: Sequence[Visit],
    journal: Journal,
    chosen: Sequence[Chosen],
    port: int | None = None,
    despite: Collection[str] = (),
    take_over: str | None = None,
    allowed: Allowed = NOTHING,
    retries: int = RETRIES,
    measure: Measure = measuring.measure,
) -> Outcome:
    """Do so with one lane. Each visit is an entry of its own in the run, and ends the launch when it fails."""
    outcome = INTERRUPTED
    attempt = Attempt(bound, place, journal, port, allowed, retries)
    try:
        _note(attempt, visits[0])
        endpoint = attempt.up(despite, take_over)
        found = _measured(attempt, endpoint, visits[0], chosen, despite, measure, alone=len(visits) == 1)
        for visit in visits[1:]:
            if found.status != "measured":
                break
            attempt.again()
            _note(attempt, visit)
            found = _measured(attempt, endpoint, visit, chosen, despite, measure, alone=False)
        outcome = found
    except LanesError as error:
        outcome = attempt.failed(error)
    except Exception as error:
        # Ours to mend, but the lane must not be left behind, and the next ones can still run.
        outcome = Outcome(
            status="failed",
            reason=f"lanes itself failed while {attempt.phase}: {type(error).__name__}: {error}",
            next_step="report this, with LANES_DEBUG=1 for the traceback",
        )
        if _debug():
            raise
    finally:
        outcome = attempt.stop(outcome)
    return outcome


def _note(attempt: Attempt, visit: Visit) -> None:
    if visit.block is not None:
        attempt.journal.record("block", lane=attempt.index, block=dict(visit.block))
    if visit.request:
        attempt.journal.record("fields", lane=attempt.index, request=dict(visit.request))


def _measured(
    attempt: Attempt,
    endpoint: Endpoint | None,
    visit: Visit,
    chosen: Sequence[Chosen],
    despite: Collection[str],
    measure: Measure,
    alone: bool,
) -> Outcome:
    """Measure the lane as it stands. Unless this visit is `alone`, no instrument may launch the lane anew:
    the others are of this very launch."""
    if endpoint is None:
        return Outcome(status="unmeasurable", reason="the engine has no server to measure")
    attempt.enter("measuring")
    subject = attempt.subject()
    relaunch = (lambda: _with(attempt.relaunch(), visit.request)) if alone else None
    found = measure(
        chosen,
        _with(endpoint, visit.request),
        visit.plan,
        attempt.journal,
        attempt.index,
        attrs.evolve(subject, relaunch=relaunch),
        attempt.findings,
        despite,
        attempt.overrides,
    )
    if found.status == "measured":
        return Outcome(status="measured", lacking=found.failed)
    if found.status in ("unrunnable", "unmeasurable"):
        return Outcome(status=found.status, reason=found.reason, next_step=found.next_step)
    if found.served and attempt.death() is None:
        return Outcome(status="failed", reason=found.reason, next_step=found.next_step or UNBELIEVED)
    return attempt.failed(attempt.loss(found.reason, found.next_step))


def _with(endpoint: Endpoint, request: Mapping[str, Any]) -> Endpoint:
    """The endpoint, sent these fields too."""
    if not request:
        return endpoint
    dialect = endpoint.dialect
    return attrs.evolve(endpoint, dialect=attrs.evolve(dialect, extra={**dialect.extra, **request}))


def exit_code(outcomes: Collection[Outcome]) -> int:
    """0 when every lane was measured; 1 when one failed, or an instrument did; 4 when somebody holds the nodes of one; 3 when one
    only could not run here."""
    statuses = {o.status for o in outcomes if not o.claimed}
    if statuses & {"crashed", "failed", "interrupted"} or any(o.lacking for o in outcomes):
        return 1
    if any(o.claimed for o in outcomes):
        return 4
    return 3 if statuses & {"unrunnable", "unmeasurable"} else 0


def _debug() -> bool:
    import os

    return bool(os.environ.get("LANES_DEBUG"))
