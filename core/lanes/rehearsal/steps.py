"""Rehearse a lane: the steps of a launch, each tried as cheaply as it can be, under the same claims and keepers.

It is an `Attempt` of the same life cycle, whose ranks run short programs first (`Trial`), and then the engine with dummy
weights. Whatever happens, nothing is left running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from lanes import describe, diagnosis, verdicts
from lanes.errors import LaneError, LanesError
from lanes.executors import process
from lanes.journal import Journal
from lanes.lifecycle import Attempt, Bound, Outcome, symbolic
from lanes.nodes import Place
from lanes.records import update
from lanes.rehearsal import network, values
from lanes.rehearsal.values import STEPS, Scope, Step, asked, changes
from lanes.settings import NOTHING, Allowed
from lanes.types import (
    Copy,
    Endpoint,
    Launch,
    Placement,
    Postmortem,
    Rehearsal,
    Seat,
    Staged,
    StageItem,
    StopPlan,
    Trial,
)

CANNOT = 69
"""What a trial exits with when it could not be tried (EX_UNAVAILABLE)."""
_ESSENTIAL = ("check", "claim", "image")
"""Without these no other step can be tried."""
_POLL_S = 0.05
_OF_A_TRIAL = StopPlan(order=(), signal="SIGTERM", patience_s=5.0)


class _NotPossible(Exception):
    """A step that cannot be tried, and why, as a clause."""


class _Attempt(Attempt):
    """A lane that is only rehearsed: what is needed is brought to the nodes in scope, without what a dummy can spare."""

    scope: Scope
    spared: Collection[str] = ()
    staged_items: tuple[dict[str, Any], ...] = ()

    def items(self) -> tuple[StageItem, ...]:
        return tuple(one for one in super().items() if one.name not in self.spared)

    def seats(self) -> tuple[Seat, ...]:
        return tuple(seat for seat in super().seats() if seat.rank in self.scope.ranks)

    def _note(self, kind: str, name: str, what: Any) -> None:
        super()._note(kind, name, what)
        self.staged_items = (*self.staged_items, {"kind": kind, "name": name, **describe.plain(what)})


def rehearse(
    bound: Bound,
    place: Place,
    journal: Journal,
    scope: Scope,
    port: int | None = None,
    despite: Collection[str] = (),
    take_over: str | None = None,
    allowed: Allowed = NOTHING,
    keep_going: bool = False,
    without: Collection[str] = (),
) -> Outcome:
    """Go through the steps; each is journaled as it ends. One that fails ends the rehearsal, unless it is to
    `keep_going`: then those that need nothing of it are tried too. Items named in `without` are not staged.

    Raises `KeyboardInterrupt` after cleaning up.
    """
    outcome = Outcome(status="interrupted", reason="interrupted by the user")
    attempt = _Attempt(bound, place, journal, port, allowed, retries=0)
    attempt.scope, attempt.spared = scope, without
    try:
        outcome = _Steps(attempt, bound, despite, take_over, keep_going).all()
    except Exception as error:
        outcome = Outcome(
            status="failed",
            reason=f"lanes itself failed while {attempt.phase}: {type(error).__name__}: {error}",
            next_step="report this, with LANES_DEBUG=1 for the traceback",
        )
        if os.environ.get("LANES_DEBUG"):
            raise
    finally:
        outcome = attempt.stop(outcome)
    return outcome


class _Steps:
    """The steps of one rehearsal, and what each leaves for the next."""

    def __init__(
        self,
        attempt: _Attempt,
        bound: Bound,
        despite: Collection[str],
        take_over: str | None,
        keep_going: bool,
    ) -> None:
        self.attempt, self.bound, self.lane = attempt, bound, bound.lane
        self.despite, self.take_over, self.keep_going = despite, take_over, keep_going
        self.done: list[Step] = []
        self.first: Outcome | None = None
        """What the first step that failed comes to."""
        self.staged = Staged()
        self.endpoint: Endpoint | None = None
        self.up = False

    def all(self) -> Outcome:
        attempt = self.attempt
        self.step("check", self.check)
        if self.first is None:
            if attempt.place.file is None:
                attempt.claim()
            else:
                self.step("claim", self.claim)
        for name in STEPS[2:]:
            self.step(name, getattr(self, name))
        if self.first is not None:
            return self.first
        rest = [f"{one.name} was not possible" for one in self.done if one.status == "not possible"]
        good = ", ".join(one.name for one in self.done if one.status == "ok")
        return Outcome(status="rehearsed", reason="; ".join([f"{good} went well", *rest]))

    def step(self, name: str, act: Callable[[], str]) -> None:
        """Try a step and journal it. One that was not begun because of another is skipped."""
        failed = next((one.name for one in self.done if one.status == "failed"), None)
        if failed and name != "stop" and (failed in _ESSENTIAL or not self.keep_going):
            self._ended(Step(name=name, status="skipped", reason=f"{failed} failed"))
            return
        began = time.monotonic()
        step, outcome = Step(name=name, status="ok", reason=""), None
        try:
            step = attrs.evolve(step, reason=act())
        except _NotPossible as why:
            step = attrs.evolve(step, status="not possible", reason=str(why))
        except LanesError as error:
            # Of a lane that was started the engine's own words count, of a short program what it said is known.
            ran = name in ("flags", "kernels", "network", "stop")
            outcome = (
                Outcome(status="failed", reason=error.message, next_step=error.next_step)
                if ran
                else self.attempt.failed(error)
            )
            step = attrs.evolve(step, status="failed", reason=outcome.reason, next_step=outcome.next_step)
        self._ended(attrs.evolve(step, seconds=round(time.monotonic() - began, 3)))
        if outcome is not None and self.first is None:
            self.first = attrs.evolve(outcome, reason=f"{name}: {outcome.reason}")

    def _ended(self, step: Step) -> None:
        self.done.append(step)
        self.attempt.journal.record("step", lane=self.attempt.index, step=describe.plain(step))

    # -- the steps, in order; each returns what it came to ------------------------------------------

    def check(self) -> str:
        self.attempt.check(self.despite)
        judged = verdicts.judge(self.attempt.findings, self.despite)
        despite = f", despite {', '.join(self.attempt.overrides)}" if self.attempt.overrides else ""
        return f"{judged.verdict.value} by what is known{despite}"

    def claim(self) -> str:
        self.attempt.claim(self.take_over)
        return f"{', '.join(node.name for node in self.attempt.place.nodes)} held"

    def image(self) -> str:
        items, launch, _ = symbolic(self.bound, self.attempt.place, self.attempt.allowed)
        plan = asked(self.attempt.engine, self.lane, launch)
        self.attempt.spared = values.spared(plan, items, self.attempt.scope, self.attempt.spared)
        left = [one for one in items if one.name in self.attempt.spared]
        # Command lines name them all the same.
        paths = {one.name: one.target if isinstance(one, Copy) else f"<{one.name}>" for one in left}
        self.staged = Staged(paths={**paths, **self.attempt.stage().paths})
        spared = [one.name for one in left]
        said = [_came(one) for one in self.attempt.staged_items if one["kind"] == "image"]
        brought = [one.name for one in self.attempt.items() if one.name not in self.staged_images()]
        said += [f"also brought: {', '.join(brought)}"] if brought else []
        said += [f"not brought: {', '.join(spared)}"] if spared else []
        if images := [one for one in self.attempt.staged_items if one["kind"] == "image"]:
            ids = {
                str(rank): {"reference": images[0]["reference"], "id": images[0]["id"]}
                for rank in self.attempt.scope.ranks
            }
            self.attempt.journal.record("images", lane=self.attempt.index, images=ids)
        return "; ".join(said) or "nothing to bring: the recipe names no image and no files"

    def staged_images(self) -> set[str]:
        return {one["name"] for one in self.attempt.staged_items if one["kind"] == "image"}

    def flags(self) -> str:
        self.attempt.enter("trying its flags")
        launch, placement, plan = self._plan()
        if isinstance(plan.flags, str):
            raise _NotPossible(plan.flags)
        trials = {one.rank: one for one in plan.flags if one.rank in self.attempt.scope.ranks}
        if not trials:
            raise _NotPossible(f"{self.attempt.engine.name} says nothing of these ranks")
        self._try(launch, placement, trials, "correct the recipe's options, or set them with --set")
        words = sum(
            word.startswith("-") for one in launch.processes if one.rank in trials for word in one.argv
        )
        return f"the engine's own parser takes the command line ({words} flags)"

    def kernels(self) -> str:
        self.attempt.enter("trying its kernels")
        launch, placement, plan = self._plan()
        if isinstance(plan.kernels, str):
            raise _NotPossible(plan.kernels)
        step = "use an image, or a build, with kernels for this GPU; `lanes scan` shows for which a file has some"
        logs = self._try(launch, placement, dict.fromkeys(self.attempt.scope.ranks, plan.kernels), step)
        last = [line for log in logs.values() for line in log if line.strip()][-1:]
        return f"a kernel ran{': ' + last[0].strip() if last else ''}"

    def network(self) -> str:
        attempt = self.attempt
        seats = attempt.place.seats[: attempt.scope.of]
        if len(seats) < 2:
            raise _NotPossible("the lane runs on one node")
        attempt.enter("trying its network")
        met = network.meet(
            [
                network.Peer(
                    name=seat.node.name,
                    host=attempt.place.host(seat.rank),
                    address=seat.address,
                    interface=seat.interface,
                )
                for seat in seats
            ]
        )
        if met.problems:
            raise LaneError(
                "; ".join(met.problems),
                "correct address and interface in the cluster's file, or the nodes' firewall",
            )
        assert met.round_trip_s is not None
        return f"all {len(seats)} nodes reach each other; the longest round trip took {met.round_trip_s * 1e3:.2f} ms"

    def start(self) -> str:
        attempt = self.attempt
        if not attempt.scope.whole:
            raise _NotPossible(
                f"it takes all {attempt.scope.of} nodes, and one was prepared: --every-node prepares all"
            )
        _, _, plan = self._plan()
        if isinstance(plan.dummy, str):
            raise _NotPossible(plan.dummy)
        attempt.lane = plan.dummy
        self.up = True
        attempt.launch(self.staged)
        self.endpoint = attempt.wait()
        return f"ready with {changes(self.lane, plan.dummy)}"

    def answer(self) -> str:
        if not self.up or any(one.name == "start" and one.status != "ok" for one in self.done):
            raise _NotPossible("nothing was started")
        if self.endpoint is None:
            raise _NotPossible("the engine has no server")
        from lanes.bench.smoke import smoke

        self.attempt.enter("answering")
        try:
            stream = smoke(self.endpoint)
        except LaneError as error:
            raise self.attempt.loss(error.message, error.next_step) from None
        count = len(stream.token_arrivals)
        return f"a streamed answer came in {count} piece{'' if count == 1 else 's'}; with dummy weights its words mean nothing"

    def stop(self) -> str:
        if not self.up:
            raise _NotPossible("nothing was started")
        self.attempt.enter("stopping")
        self.attempt.clear()
        return "nothing is left running"

    # -- what they have in common -------------------------------------------------------------------

    def _plan(self) -> tuple[Launch, Placement, Rehearsal]:
        """The launch in earnest, with real ports, where its ranks would run, and how it is rehearsed."""
        launch, placement, _ = self.attempt.planned(self.staged)
        return launch, placement, asked(self.attempt.engine, self.lane, launch)

    def _try(
        self, launch: Launch, placement: Placement, trials: Mapping[int, Trial], next_step: str
    ) -> Mapping[int, tuple[str, ...]]:
        """Run a short program where each of these ranks would run, to its end; what each printed.

        Raises LaneError for one that fails, `_NotPossible` where it could not be tried.
        """
        attempt = self.attempt
        assert attempt.record is not None
        folder = attempt.record.folder
        programs = [
            attrs.evolve(one, argv=trials[one.rank].argv, env={**one.env, **trials[one.rank].env})
            for one in launch.processes
            if one.rank in trials
        ]
        attempt.record = update(attempt.record, stop=_OF_A_TRIAL)
        deadline_s = max(one.deadline_s for one in trials.values())
        try:
            attempt.start(programs, _OF_A_TRIAL, placement)
            deadline = time.monotonic() + deadline_s
            while len(ended := process.ended(folder)) < len(programs) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            logs = {rank: tuple(process.tail(folder, rank)) for rank in trials}
        except LanesError:
            attempt.clear()
            raise
        attempt.clear()
        self._judge(trials, ended, logs, deadline_s, next_step)
        return logs

    def _judge(
        self,
        trials: Mapping[int, Trial],
        ended: Mapping[int, process.Ended],
        logs: Mapping[int, tuple[str, ...]],
        deadline_s: float,
        next_step: str,
    ) -> None:
        attempt = self.attempt
        names = {seat.rank: seat.node.name for seat in attempt.place.seats}
        where = {rank: f"on {names.get(rank, names[0])}: " if attempt.scope.of > 1 else "" for rank in trials}
        if late := [rank for rank in trials if rank not in ended]:
            raise LaneError(f"{where[late[0]]}it did not end within {deadline_s:g} s", next_step)
        bad = {rank: how for rank, how in ended.items() if how.reason != "exited" or how.exit.code != 0}
        cannot = {rank for rank, how in bad.items() if how.exit.code == CANNOT}
        if real := sorted(bad.keys() - cannot):
            rank = real[0]
            postmortem = Postmortem(
                phase=attempt.phase, logs={rank: logs[rank]}, exits={rank: bad[rank].exit}
            )
            causes = diagnosis.diagnose(attempt.engine, attempt.lane, postmortem)
            lines = diagnosis.telling_lines(postmortem)
            reason, advice = diagnosis.sentence(f"{where[rank]}{bad[rank].sentence()}", causes, lines)
            raise LaneError(reason, advice if causes else bad[rank].step or next_step)
        if cannot:
            rank = min(cannot)
            said = next(
                (line.strip() for line in reversed(logs[rank]) if line.strip()), "it does not say why"
            )
            raise _NotPossible(where[rank] + said)


def _came(image: Mapping[str, Any]) -> str:
    """`lanes-test:1 is sha256:0a1b2c3d4e5f for amd64 on n1 (was there), n2 (24 MB in 3.1 s)`."""
    nodes = [
        f"{one['node']} ({one['bytes'] / 1e6:,.1f} MB in {one['seconds']:.1f} s)"
        if one["bytes"]
        else f"{one['node']} (was there)"
        for one in image["nodes"]
    ]
    how = "built" if image["built"] else "pulled" if image["pulled"] else ""
    made = f", {how} on {image['source']}" if how else ""
    return (
        f"{image['reference']} is {image['id'][:19]} for {image['architecture']}{made}, on {', '.join(nodes)}"
    )
