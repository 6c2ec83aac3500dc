"""Point the instruments at a lane, one after the other, and journal what they find, as they find it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from lanes import describe, verdicts
from lanes.errors import LanesError, UsageError
from lanes.instruments.base import MEASURED, Context, Measured, Subject
from lanes.types import Endpoint, Evidence, Finding, Verdict

if TYPE_CHECKING:
    from lanes.bench.plan import Plan
    from lanes.instruments import Chosen
    from lanes.journal import Events

_BAD = ("unrunnable", "unmeasurable", "crashed", "failed")
"""What one instrument makes of the whole lane, the worst first."""


@attrs.frozen(kw_only=True)
class Session:
    """What all instruments came to: the lane's status with the reason, and those of them that `failed`
    although the lane was measured."""

    status: str
    reason: str = ""
    next_step: str | None = None
    served: bool = False
    failed: tuple[str, ...] = ()


def measure(
    chosen: Sequence[Chosen],
    endpoint: Endpoint,
    plan: Plan,
    journal: Events,
    lane: int,
    subject: Subject,
    findings: Sequence[Finding] = (),
    despite: Collection[str] = (),
    overrides: Sequence[str] = (),
) -> Session:
    """Run each instrument on a lane that serves. One that fails is kept with its reason, and the others go on;
    when the server is gone the rest is skipped. `findings` and `overrides` are those of the lane so far.

    KeyboardInterrupt passes through, and so does UsageError; what was measured is on disk.
    """
    state = _State(endpoint=endpoint, findings=list(findings))
    ended: dict[str, Measured] = {}
    gone: str | None = None
    for one in chosen:
        name = one.instrument.name
        journal.record("instrument", lane=lane, instrument=name, plan={})
        if gone is not None:
            _end(journal, lane, name, "skipped", gone)
            continue
        context = _context(one, plan, journal, lane, subject, state, despite, overrides)
        found = _run(one, context)
        if found.status == "unrunnable" and state.overridden(despite):
            found = MEASURED
        ended[name] = found
        if found.status == "crashed" or (found.status != "measured" and subject.alive() is not None):
            gone = f"the server was gone since {name}"
        elif found.status == "unmeasurable":
            gone = f"the lane is unmeasurable since {name}"
        _end(journal, lane, name, "done" if found.status == "measured" else found.status, found.reason)
    return _fold(ended)


def _end(journal: Events, lane: int, name: str, status: str, reason: str) -> None:
    journal.record("instrument-end", lane=lane, instrument=name, status=status, reason=reason or None)


def _fold(ended: dict[str, Measured]) -> Session:
    for status in _BAD[:-1]:
        for found in ended.values():
            if found.status == status:
                return Session(
                    status=status, reason=found.reason, next_step=found.next_step, served=found.served
                )
    failed = {name: found for name, found in ended.items() if found.status == "failed"}
    if len(failed) == len(ended):
        name, found = next(iter(failed.items()))
        reason = found.reason if len(failed) == 1 else f"{name}: {found.reason}"
        return Session(status="failed", reason=reason, next_step=found.next_step, served=found.served)
    return Session(status="measured", failed=tuple(failed))


@attrs.define(kw_only=True)
class _State:
    """What instruments may change for those after them."""

    endpoint: Endpoint
    findings: list[Finding]

    def overridden(self, despite: Collection[str]) -> bool:
        """Whether the user goes on against all that was observed."""
        no = {
            f.question
            for f in self.findings
            if f.verdict is Verdict.UNRUNNABLE and f.evidence is Evidence.OBSERVED
        }
        return bool(no) and no <= set(despite)


def _context(
    one: Chosen,
    plan: Plan,
    journal: Events,
    lane: int,
    subject: Subject,
    state: _State,
    despite: Collection[str],
    overrides: Sequence[str],
) -> Context:
    name = one.instrument.name

    def record(kind: str, **data: Any) -> None:
        journal.record(kind, lane=lane, instrument=name, **data)

    def tell(text: str) -> None:
        journal.tell("progress", lane=lane, text=f"{name}: {text}")

    def observe(finding: Finding) -> None:
        state.findings.append(attrs.evolve(finding, evidence=Evidence.OBSERVED))
        judged = verdicts.judge(state.findings, despite)
        observed = [f.question for f in state.findings if f.question in despite]
        journal.record(
            "findings",
            lane=lane,
            verdict=judged.verdict.value,
            findings=[describe.finding(f) for f in state.findings],
            overrides=list(dict.fromkeys([*overrides, *observed])),
        )

    def place() -> Path:
        folder = journal.folder(lane, name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def earlier() -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = journal.document()["lanes"][lane]["instruments"]
        return found

    return Context(
        endpoint=state.endpoint,
        plan=plan,
        subject=attrs.evolve(subject, relaunch=_noted(subject.relaunch, state)),
        options=one.options,
        record=record,
        tell=tell,
        observe=observe,
        place=place,
        earlier=earlier,
    )


def _noted(relaunch: Callable[[], Endpoint] | None, state: _State) -> Callable[[], Endpoint] | None:
    """Relaunch, and remember for the next instruments where the lane serves then."""
    if relaunch is None:
        return None

    def noted() -> Endpoint:
        state.endpoint = relaunch()
        return state.endpoint

    return noted


def _run(one: Chosen, context: Context) -> Measured:
    try:
        if lacking := one.instrument.needs():
            return Measured(status="failed", reason=lacking)
        found = one.instrument.run(context)
        if found is not None and not isinstance(found, Measured):
            raise TypeError(f"its run returned a {type(found).__name__}, not a Measured")
        return found or MEASURED
    except UsageError:
        raise
    except LanesError as error:
        return Measured(status="failed", reason=error.message, next_step=error.next_step)
    except Exception as error:
        if os.environ.get("LANES_DEBUG"):
            raise
        return Measured(
            status="failed",
            reason=f"{one.instrument.name} itself failed: {type(error).__name__}: {error}",
            next_step="report this, with LANES_DEBUG=1 for the traceback",
        )
