"""One lane, from check to stop.

`Attempt` carries a lane through its phases in order: checking, claiming (on a cluster), staging,
launching, loading, then whatever its holder does with the endpoint, and stopping. Each phase is
journaled as it begins. Whatever happens, `stop` leaves nothing running.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs

from lanes import (
    checks,
    claims,
    describe,
    diagnosis,
    health,
    hosts,
    limits,
    nodes,
    paths,
    records,
    staging,
    verdicts,
)
from lanes.errors import Claimed, LaneError, LanesError, StagingError, Unmeasurable, Unrunnable
from lanes.executors import process
from lanes.hosts import Host
from lanes.instruments.base import Explained, Subject
from lanes.interrupts import held_off
from lanes.journal import Journal
from lanes.nodes import Place
from lanes.plugins import Engine
from lanes.settings import NOTHING, Allowed, how_to_allow, resolved
from lanes.staging import copies, scripts
from lanes.staging.crew import Station
from lanes.types import (
    Build,
    Cause,
    Copy,
    Endpoint,
    Files,
    Finding,
    HostScript,
    Image,
    Lane,
    Launch,
    Node,
    Placement,
    Postmortem,
    Process,
    Recipe,
    Seat,
    Staged,
    StageItem,
    StopPlan,
)
from lanes.verdicts import Judgement

RETRIES = 1
"""How often a boot that failed for a passing cause is tried again, unless told otherwise."""
_OF_THE_LAUNCH = {
    "findings": ("verdict", "findings", "overrides"),
    "launched": ("launch", "folder"),
    "images": ("images",),
}
"""Events whose data hold for every entry of one launch."""
_NEWS_S = 3.0
"""How long news of a container's end may be on its way: connections break before the engine tells why."""


@attrs.frozen(kw_only=True)
class Bound:
    """A lane and the engine that serves it."""

    lane: Lane
    engine: Engine


@attrs.frozen(kw_only=True)
class Outcome:
    """How a lane ended: `status` and `reason` as in a result, and what to do about it."""

    status: str
    reason: str = ""
    next_step: str | None = None
    causes: tuple[Cause, ...] = ()
    log: tuple[str, ...] = ()
    claimed: bool = False
    """Whether somebody else holds its nodes."""
    lacking: tuple[str, ...] = ()
    """Instruments that failed, of a lane that others measured."""


@attrs.frozen(kw_only=True)
class Preview:
    """What a run of a lane would do; `launch` is None where that cannot be told, with the `problem`."""

    findings: tuple[Finding, ...]
    judgement: Judgement
    items: tuple[StageItem, ...] = ()
    scripts: Mapping[str, str] = attrs.field(factory=dict)
    """The text of each host script, or why it cannot be shown."""
    launch: Launch | None = None
    limited: tuple[str, ...] = ()
    """What the cluster's file changes of the containers that the engine asks for."""
    problem: str | None = None


def preview(bound: Bound, place: Place, despite: Collection[str] = (), allowed: Allowed = NOTHING) -> Preview:
    """Ask the engine everything, and do nothing: values that only a launch knows are symbolic."""
    findings = checks.examine(bound.engine, bound.lane, place.nodes, allowed)
    judgement = verdicts.judge(findings, despite)
    try:
        items, launch, limited = symbolic(bound, place, allowed)
    except LanesError as error:
        return Preview(findings=findings, judgement=judgement, problem=str(error))
    texts = {item.name: _text(item, bound.lane) for item in items if isinstance(item, HostScript)}
    return Preview(
        findings=findings, judgement=judgement, items=items, scripts=texts, launch=launch, limited=limited
    )


def symbolic(
    bound: Bound, place: Place, allowed: Allowed = NOTHING
) -> tuple[tuple[StageItem, ...], Launch, tuple[str, ...]]:
    """What would be staged and launched, with words for what only a launch knows, and what the cluster's file changes of
    it. Raises LanesError where that cannot be told."""
    placement = Placement(
        seats=_seats(bound.lane, place),
        http_host=place.http_host,
        http_port="<free port>",
        rendezvous_port="<free port>",
    )
    items = _items(bound.engine, bound.lane, allowed)
    staged = Staged(paths={item.name: _symbolic(item) for item in items})
    asked = bound.engine.ask("lanes_launch", lane=bound.lane, placement=placement, staged=staged)
    launch, limited = _limited(asked, place, placement)
    return items, launch, limited


def _text(script: HostScript, lane: Lane) -> str:
    try:
        return scripts.read(script, lane.recipe.origin if lane.recipe else "").text
    except StagingError as error:
        return str(error)


def _seats(lane: Lane, place: Place) -> tuple[Seat, ...]:
    """A seat for each rank; where there are too few nodes, with words for those that are missing."""
    missing = range(len(place.seats), _ranks(lane))
    if not missing:
        return place.seats[: _ranks(lane)]
    return nodes.seats([*place.nodes, *(Node(name=f"node {rank + 1}") for rank in missing)])


def _limited(launch: Launch, place: Place, placement: Placement) -> tuple[Launch, tuple[str, ...]]:
    return limits.applied(launch, place.limits, [seat.node.name for seat in placement.seats])


def _items(engine: Engine, lane: Lane, allowed: Allowed) -> tuple[StageItem, ...]:
    """What the engine wants staged, and what the recipe itself does, scripts as the user names them."""
    wanted: tuple[StageItem, ...] = tuple(engine.ask("lanes_stage", lane=lane))
    if lane.recipe:
        wanted = tuple(_built(one, lane.recipe) for one in wanted)
        if lane.recipe.build is not None and not any(isinstance(one, Build) for one in wanted):
            raise StagingError(
                f"recipe {lane.recipe.name!r} builds an image, and engine {engine.name!r} uses none",
                "take [build] out of the recipe",
            )
        wanted += (*lane.recipe.staging, *lane.recipe.scripts)
    return tuple(resolved(one, allowed) if isinstance(one, HostScript) else one for one in wanted)


def _built(item: StageItem, recipe: Recipe) -> StageItem:
    """The recipe's image as something to build, where the recipe says how."""
    if recipe.build is None or not isinstance(item, Image) or item.reference != recipe.image:
        return item
    how = recipe.build
    return Build(
        name=item.name,
        tag=item.reference,
        context=how.context,
        dockerfile=how.dockerfile,
        patches=how.patches,
    )


def _symbolic(item: StageItem) -> str:
    if isinstance(item, Image):
        return item.reference
    if isinstance(item, Build):
        return item.tag
    return item.parts[0] if isinstance(item, Files) and item.in_place else f"<{item.name}>"


def _ranks(lane: Lane) -> int:
    return lane.recipe.nodes if lane.recipe else 1


class Attempt:
    """A lane that this program brings up, holds, and takes down."""

    def __init__(
        self,
        bound: Bound,
        place: Place,
        journal: Journal,
        port: int | None = None,
        allowed: Allowed = NOTHING,
        retries: int = RETRIES,
    ) -> None:
        self.lane, self.engine = bound.lane, bound.engine
        self.place, self.journal, self.port = place, journal, port
        self.allowed = allowed
        """The host scripts that the user lets run."""
        self.retries = retries
        """How often a boot is tried again that failed for a passing cause."""
        self.phase = "starting"
        self.record: records.Record | None = None
        self.launch_data: Launch | None = None
        self.owner = process.Owner()
        self.overrides: list[str] = []
        self.findings: tuple[Finding, ...] = ()
        self._staged = Staged(paths={})
        self._texts: dict[str, scripts.Text] = {}
        self.index = self._entry()

    def _entry(self) -> int:
        return self.journal.lane(
            name=self.lane.name,
            engine=self.engine.name,
            recipe=describe.recipe(self.lane),
            cluster=self.lane.cluster,
            environment=describe.environment(self.engine, self.place.nodes),
        )

    def again(self) -> None:
        """Close the lane's entry in the run as measured, and open another for the same launch: what happens
        from here on is of that one."""
        so_far = self.journal.document()["lanes"][self.index]
        self._close(Outcome(status="measured"))
        self.index = self._entry()
        for kind, names in _OF_THE_LAUNCH.items():
            if known := {name: so_far[name] for name in names if name in so_far}:
                self.journal.record(kind, lane=self.index, **known)

    def enter(self, phase: str) -> None:
        """Begin a phase: journaled, shown, and written into the lane's record."""
        self.phase = phase
        if self.record is not None:
            self.record = records.update(self.record, phase=phase)
        self.journal.record("phase", lane=self.index, phase=phase)

    def progress(self, text: str) -> None:
        self.journal.tell("progress", lane=self.index, text=text)

    def warn(self, text: str) -> None:
        """Tell what a person should know of, though it is no failure."""
        self.journal.tell("warning", lane=self.index, text=text)

    # -- up ------------------------------------------------------------------------------------

    def check(self, despite: Collection[str] = ()) -> None:
        """Ask whether the lane can run and be measured here. Raises `Unrunnable` with all that blocks it."""
        self.enter("checking")
        self.findings = findings = checks.examine(self.engine, self.lane, self.place.nodes, self.allowed)
        judged = verdicts.judge(findings, despite)
        self.overrides = sorted(q for q in despite if any(f.question == q for f in findings))
        self.journal.record(
            "findings",
            lane=self.index,
            verdict=judged.verdict.value,
            findings=[describe.finding(f) for f in findings],
            overrides=self.overrides,
        )
        if judged.status == "unrunnable":
            raise Unrunnable(judged.reason, judged.next_step)
        if judged.status == "unmeasurable":
            raise Unmeasurable(judged.reason, judged.next_step)
        if self.place.hypothetical:
            raise Unmeasurable(
                f"nothing is launched on {self.place.name}, hardware that was only asked about",
                "leave --arch out where that hardware is",
            )

    def claim(self, take_over: str | None = None) -> None:
        """Claim the nodes of a cluster; this machine alone needs none. With a reason to `take_over`, also
        from those who have given no sign of life. Raises `Claimed`."""
        self.record = records.create(
            self.lane.name,
            self.engine.name,
            self.lane.recipe.origin if self.lane.recipe else "",
            self.journal.run,
        )
        if self.place.file is None:
            return
        self.enter("claiming")
        taken = claims.acquire(
            self.record.folder,
            {node.name: self.place.host(rank) for rank, node in enumerate(self.place.nodes)},
            cluster=self.place.name,
            file=self.place.file,
            run=self.journal.run,
            owner=self.owner,
            take_over=take_over,
        )
        if taken and take_over:
            self.overrides = [*self.overrides, *(f"claim of {one}: {take_over}" for one in taken)]
            self.journal.record("findings", lane=self.index, overrides=self.overrides)

    def stage(self) -> Staged:
        """Bring to the lane's nodes what it needs. Raises `StagingError`, and `Unrunnable` for a host script
        that the user has not allowed."""
        self.enter("staging")
        items = self.items()
        # An engine may ask for scripts of its own: they too are refused before anything is fetched.
        if no := scripts.refused((one for one in items if isinstance(one, HostScript)), self.allowed):
            raise Unrunnable(f"host scripts are not allowed: {', '.join(no)}", how_to_allow(no))
        # Read once: what is shown is what runs; and one that is not there is told before anything is copied.
        origin = self.lane.recipe.origin if self.lane.recipe else ""
        self._texts = {one.name: scripts.read(one, origin) for one in items if isinstance(one, HostScript)}
        return staging.stage(
            items,
            paths.staged(),
            lambda name, done, total: self.progress(_bytes(name, done, total)),
            self._image,
            self._copies,
            self._script,
        )

    def items(self) -> tuple[StageItem, ...]:
        """What the lane needs on its nodes."""
        return _items(self.engine, self.lane, self.allowed)

    def seats(self) -> tuple[Seat, ...]:
        """Whose nodes are brought what the lane needs: those of all its ranks."""
        return self.place.seats[: _ranks(self.lane)]

    def _copies(self, wanted: Sequence[Copy]) -> None:
        for one in copies.carry_out(wanted, self._stations(), self.lane.recipe, self.progress, self.warn):
            self._note("copy", one.name, one)

    def _script(self, script: HostScript) -> None:
        assert self.record is not None
        text = self._texts[script.name]
        where = ", ".join(station.name for station in self._stations())
        self.journal.tell("script", lane=self.index, name=script.name, text=text.text, where=where)
        scripts.run(text, self._stations(), self.record.folder / "scripts", self.progress)

    def _stations(self) -> list[Station]:
        """The lane's nodes, each once."""
        found: dict[Host, Station] = {}
        for seat in self.seats():
            host = self.place.host(seat.rank)
            found.setdefault(host, Station(name=seat.node.name, host=host))
        return list(found.values())

    def _image(self, item: Image | Build) -> str:
        from lanes.executors import images

        spots: dict[Host, images.Spot] = {}
        for seat in self.seats():
            host = self.place.host(seat.rank)
            name, arch = seat.node.name, seat.node.arch
            spots.setdefault(host, images.Spot(name=name, host=host, address=seat.address, machine=arch))
        origin = self.lane.recipe.origin if self.lane.recipe else ""
        ready = images.ready(item, list(spots.values()), self.progress, origin)
        self._note("image", item.name, ready)
        return ready.pinned

    def _note(self, kind: str, name: str, what: Any) -> None:
        """Keep in the result what became of an item that was staged."""
        about = {"kind": kind, "name": name, **describe.plain(what)}
        self.journal.record("staged", lane=self.index, staged=about)

    def planned(self, staged: Staged) -> tuple[Launch, Placement, tuple[str, ...]]:
        """The launch, where its ranks will run, and what the cluster's file changes of it."""
        placement = process.place(self.place, _ranks(self.lane), self.port)
        asked: Launch = self.engine.ask("lanes_launch", lane=self.lane, placement=placement, staged=staged)
        launch, limited = _limited(asked, self.place, placement)
        return launch, placement, limited

    def launch(self, staged: Staged) -> Launch:
        """Start every rank in the engine's order. Raises `StartError`."""
        assert self.record is not None
        self.enter("launching")
        self._staged = staged
        launch, placement, limited = self.planned(staged)
        if limited:
            self.overrides = [*self.overrides, *(one for one in limited if one not in self.overrides)]
            self.journal.record("findings", lane=self.index, overrides=self.overrides)
        stop = self.engine.ask("lanes_stop", lane=self.lane, launch=launch)
        self.launch_data = launch
        argv = tuple(one.argv for one in launch.in_order)
        self.record = records.update(self.record, stop=stop, endpoint=launch.endpoint, argv=argv)
        self.journal.record(
            "launched", lane=self.index, launch=describe.launch(launch), folder=str(self.record.folder)
        )
        self.start(launch.in_order, stop, placement)
        if images := process.images(self.record.folder):
            self.journal.record("images", lane=self.index, images=images)
        return launch

    def start(self, in_order: Sequence[Process], stop: StopPlan, placement: Placement) -> None:
        """Start the ranks in this order. Containers are made on all nodes at once, and each is started when
        the one before it has been."""
        assert self.record is not None
        folder = self.record.folder
        ranks = [one.rank for one in in_order]
        after = dict(zip(ranks[1:], ranks, strict=False))

        def begin(one: Process) -> Callable[[], None]:
            where, amd = self.place.host(one.rank), _amd(placement.seats[one.rank].node)
            return process.begin(folder, one, stop, self.owner, where, amd, after.get(one.rank))

        contained = all(one.container is not None for one in in_order)
        with ThreadPoolExecutor(max_workers=16) as pool:
            # A plain process starts at once, so the next one is begun only then.
            begun = pool.map(begin, in_order) if contained else map(begin, in_order)
            for one, started in zip(in_order, begun, strict=True):
                self.progress(f"rank {one.rank}")
                started()

    def wait(self) -> Endpoint | None:
        """Wait until the lane is ready. Raises `LaneError` as soon as it never will be."""
        assert self.record is not None and self.launch_data is not None
        self.enter("loading")
        ladder = self.engine.ask("lanes_healthcheck", lane=self.lane)
        if self.lane.recipe is not None and self.lane.recipe.patience_s is not None:
            ladder = attrs.evolve(ladder, deadline_s=self.lane.recipe.patience_s)
        health.wait_until_ready(ladder, self.launch_data.endpoint, self.record.folder, self.progress)
        return self.launch_data.endpoint

    def up(self, despite: Collection[str] = (), take_over: str | None = None) -> Endpoint | None:
        """Check, claim, stage, launch and wait: everything until the lane is ready.

        A boot that failed for causes that pass (`Cause.transient`) is tried again, once nothing is left of it.
        """
        self.check(despite)
        self.claim(take_over)
        staged = self.stage()
        for number in itertools.count(1):
            began = time.monotonic()
            try:
                self.launch(staged)
                endpoint = self.wait()
            except LaneError as error:
                outcome = self.failed(error)
                self._tried(number, outcome, began)
                if number > self.retries or not _passing(outcome.causes):
                    raise
                self._take_down("retrying")
                self.warn(f"attempt {number + 1} of {self.retries + 1}: {outcome.reason}; that may pass")
            else:
                self._tried(number, Outcome(status="ready"), began)
                break
        return endpoint

    def _tried(self, number: int, outcome: Outcome, began: float) -> None:
        self.journal.record(
            "attempt",
            lane=self.index,
            number=number,
            of=self.retries + 1,
            status=outcome.status,
            reason=outcome.reason,
            seconds=round(time.monotonic() - began, 3),
            causes=describe.plain(outcome.causes),
            log=list(outcome.log),
        )

    def _take_down(self, phase: str) -> None:
        """`clear`, as a phase of its own."""
        self.enter(phase)
        self.clear()

    def clear(self) -> None:
        """Stop the ranks, see that none is left on any node, and put what they wrote aside, for another
        launch. Raises `LaneError`."""
        assert self.record is not None
        with held_off() as hurry:
            left = process.stop(self.record.folder, self.record.stop, hurry)
            if left:
                raise LaneError(
                    f"these processes could not be ended: {', '.join(map(str, left))}",
                    "`lanes stop` tries again",
                )
            process.put_aside(self.record.folder)
        if hurry():
            raise KeyboardInterrupt

    def death(self) -> str | None:
        """How a process of the lane died, in a sentence; None while all live."""
        return health.death(self.record.folder) if self.record is not None else None

    def _death_by_now(self) -> str | None:
        """How a process died, for somebody whose connection broke: news of a container may be on its way."""
        deadline = time.monotonic() + _NEWS_S
        while self.death() is None and time.monotonic() < deadline:
            if self.record is None or not process.in_containers(self.record.folder):
                break
            time.sleep(0.05)
        return self.death()

    def _lost_node(self) -> str | None:
        """That a node of the lane cannot be reached, for somebody whose connection broke: its rank's keeper has
        patience before it says so."""
        for station in self._stations():
            if station.host.ssh is not None:
                try:
                    hosts.run(station.host, ["true"])
                except LaneError as error:
                    return error.message
        return None

    def loss(self, reason: str, next_step: str | None = None) -> LaneError:
        """What measuring came to, as an error: a dead process is the better reason."""
        said = "`lanes logs` shows what the engine said"
        if died := self._death_by_now():
            return LaneError(died, said)
        return LaneError(reason, next_step or said)

    def subject(self) -> Subject:
        """The running lane, as instruments see it."""
        return Subject(
            name=self.lane.name,
            engine=self.engine.name,
            recipe=describe.recipe(self.lane),
            environment=describe.environment(self.engine, self.place.nodes),
            alive=self.death,
            logs=self._logs,
            explain=self._explain,
            relaunch=self.relaunch,
        )

    def relaunch(self) -> Endpoint:
        """Stop the lane and launch it anew; what its processes left is kept beside. Raises `LaneError`."""
        self._take_down("relaunching")
        self.launch(self._staged)
        endpoint = self.wait()
        self.enter("measuring")
        if endpoint is None:
            raise LaneError("the engine has no server to measure")
        return endpoint

    def _logs(self) -> dict[int, tuple[str, ...]]:
        assert self.record is not None and self.launch_data is not None
        return {p.rank: tuple(process.tail(self.record.folder, p.rank)) for p in self.launch_data.processes}

    def _explain(self, what: str) -> Explained:
        found = self.failed(self.loss(what))
        return Explained(reason=found.reason, next_step=found.next_step, causes=found.causes, log=found.log)

    # -- down ----------------------------------------------------------------------------------

    def detach(self) -> records.Record:
        """Leave the lane serving when this program ends; `lanes stop` stops it."""
        assert self.record is not None
        self.record = records.update(self.record, phase="serving", detached=True)
        self.owner.detach()
        self.journal.record(
            "lane-end", lane=self.index, status="serving", reason="left serving by `lanes serve`"
        )
        return self.record

    def failed(self, error: LanesError) -> Outcome:
        """Turn an error into an outcome: a dead process comes first, and the engine's plugin says why."""
        if isinstance(error, Unrunnable):
            status = "unmeasurable" if isinstance(error, Unmeasurable) else "unrunnable"
            return Outcome(status=status, reason=error.message, next_step=error.next_step)
        if self.record is None or self.launch_data is None or not isinstance(error, LaneError):
            claimed = isinstance(error, Claimed)
            return Outcome(status="failed", reason=error.message, next_step=error.next_step, claimed=claimed)
        died = self._death_by_now()
        ended = process.ended(self.record.folder)
        if any(one.reason == "stopped" for one in ended.values()):
            return Outcome(status="interrupted", reason=f"stopped by `lanes stop` while {self.phase}")
        postmortem = Postmortem(
            phase=self.phase,
            logs=self._logs(),
            exits={rank: one.exit for rank, one in ended.items()},
            http=None if died else error.message,
        )
        lines = diagnosis.telling_lines(postmortem)
        first = process.first_ended(self.record.folder)
        if died and first and first[1].step:
            # The log cannot say what became of the node.
            reason = f"{died} while {self.phase}"
            return Outcome(status="crashed", reason=reason, next_step=first[1].step, log=lines)
        causes = diagnosis.diagnose(self.engine, self.lane, postmortem)
        if died is None and (lost := self._lost_node()) is not None:
            step = "when it is back, `lanes stop` removes what it still runs"
            return Outcome(status="crashed", reason=f"{lost} while {self.phase}", next_step=step, log=lines)
        if died is None and not causes:
            step = error.next_step or "`lanes logs` shows what the engine said"
            return Outcome(status="failed", reason=error.message, next_step=step, log=lines)
        what = f"{died} while {self.phase}" if died else error.message
        reason, next_step = diagnosis.sentence(what, causes, lines)
        status = "crashed" if died else "failed"
        return Outcome(status=status, reason=reason, next_step=next_step, causes=causes, log=lines)

    def stop(self, outcome: Outcome) -> Outcome:
        """Stop what runs, and close the lane with this outcome. Not to be interrupted."""
        with held_off() as hurry:
            if self.record is not None:
                self.progress("stopping")
                self.record = records.update(self.record, phase="stopping")
                left = process.stop(self.record.folder, self.record.stop, hurry)
                if left:
                    what = f"{', '.join(left)} could not be ended"
                    again = f"{what}: `lanes stop` tries again"
                    if outcome.status == "measured":
                        outcome = attrs.evolve(
                            outcome, status="failed", reason=f"it was measured, but {what}"
                        )
                        again = "`lanes stop` tries again"
                    outcome = attrs.evolve(outcome, next_step=again)
                else:
                    ending = records.Ending(status=outcome.status, reason=outcome.reason, at=time.time())
                    self.record = records.update(self.record, ending=ending)
                    if held := claims.release(self.record.folder):
                        still = f"{', '.join(held)} could not be let go of: `lanes stop` tries again"
                        outcome = attrs.evolve(outcome, next_step=still)
            self._close(outcome)
        return outcome

    def _close(self, outcome: Outcome) -> None:
        self.journal.record(
            "lane-end",
            lane=self.index,
            status=outcome.status,
            reason=outcome.reason,
            next_step=outcome.next_step,
            causes=describe.plain(outcome.causes),
            log=list(outcome.log),
        )


def _passing(causes: Sequence[Cause]) -> bool:
    """Whether the same launch may succeed next time: everything that is known to be wrong passes."""
    return bool(causes) and all(cause.transient for cause in causes)


def _amd(node: Node) -> bool:
    return any((gpu.target or "").startswith("gfx") for gpu in node.gpus or ())


def _bytes(name: str, done: int, total: int) -> str:
    return f"{name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
