"""The record of a started lane: one folder, readable by every later command.

`lane.json` says what was launched and who owns it; each rank's folder beside it says how its process
fares. The record is written before anything starts, so a kill at any moment leaves something to see.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import cattrs
import cattrs.preconf.json

from lanes import claims, clusters, paths
from lanes.errors import LaneError, UsageError
from lanes.executors import process
from lanes.executors.keeper import write_json
from lanes.owners import Owner
from lanes.types import Endpoint, StopPlan

_OF_A_STOP = ("stopped", "vanished")
"""How ranks end that somebody stops: one whose keeper hangs is killed."""

KEPT = 20
"""How many ended lanes keep their folder, for their logs."""


@attrs.frozen(kw_only=True)
class Ending:
    """How a lane ended: `status` as in a result (`measured`, `crashed`, ...) or `stopped`."""

    status: str
    reason: str
    at: float


@attrs.frozen(kw_only=True)
class Record:
    """What was launched. `phase` is the last one that its owner reached; times are Unix seconds."""

    id: str
    lane: str
    engine: str
    recipe: str
    run: str
    owner: Owner
    started_at: float
    phase: str = "starting"
    detached: bool = False
    endpoint: Endpoint | None = None
    stop: StopPlan = attrs.field(factory=StopPlan)
    argv: tuple[tuple[str, ...], ...] = ()
    ending: Ending | None = None

    @property
    def folder(self) -> Path:
        return paths.lanes() / self.id


@attrs.frozen(kw_only=True)
class Standing:
    """How a lane stands now. `state` is its phase while its owner lives, `serving` when detached, or
    `orphaned` (its processes run, its owner is gone), `interrupted`, `died`, `ended`."""

    state: str
    sentence: str

    @property
    def runs(self) -> bool:
        return self.state not in ("interrupted", "died", "ended")

    @property
    def needs_mending(self) -> bool:
        return self.state in ("orphaned", "interrupted", "died")


@cache
def _converter() -> cattrs.Converter:
    return cattrs.preconf.json.make_converter()


def create(lane: str, engine: str, recipe: str, run: str) -> Record:
    """Make the folder and the first record of a lane that is about to start."""
    paths.lanes().mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9.]+", "-", lane.lower())[:60].strip("-.") or "lane"
    taken = {folder.name for folder in paths.lanes().iterdir()}
    record = Record(
        id=next(name for _ in count() if (name := f"{slug}-{secrets.token_hex(2)}") not in taken),
        lane=lane,
        engine=engine,
        recipe=recipe,
        run=run,
        owner=Owner.me(),
        started_at=time.time(),
    )
    record.folder.mkdir(mode=0o700)
    write(record)
    return record


def write(record: Record) -> Record:
    write_json(str(record.folder / "lane.json"), _converter().unstructure(record))
    return record


def update(record: Record, **changes: Any) -> Record:
    return write(attrs.evolve(record, **changes))


def every() -> Iterator[Record]:
    """All records, the newest first. One that cannot be read is passed over."""
    found = []
    for file in paths.lanes().glob("*/lane.json"):
        try:
            found.append(_converter().structure(json.loads(file.read_text(encoding="utf-8")), Record))
        except (OSError, ValueError, TypeError, cattrs.BaseValidationError):
            continue
    yield from sorted(found, key=lambda r: r.started_at, reverse=True)


def standing(record: Record) -> Standing:
    """Look at the machine and say how a lane stands."""
    if record.ending is not None:
        return Standing(state="ended", sentence=f"{record.ending.status}: {record.ending.reason}")
    if record.owner.alive() and not record.detached:
        return Standing(state=record.phase, sentence=f"{record.phase}, by lanes (pid {record.owner.pid})")
    ended = process.ended(record.folder)
    unasked = None
    try:
        alive: Sequence[int | str] = process.survivors(record.folder) or _containers(record)
    except LaneError as error:
        alive, unasked = (), f"whether its containers run cannot be asked: {error.message}"
    if record.detached:
        if not ended and alive:
            return Standing(state="serving", sentence="serving")
        stopped = any(one.reason == "stopped" for one in ended.values())
        died = {rank: one for rank, one in ended.items() if not (stopped and one.reason in _OF_A_STOP)}
        if stopped and not died:
            left = unasked or ("its processes still run" if alive else "its processes were stopped")
            state = "orphaned" if alive or unasked else "interrupted"
            return Standing(state=state, sentence=f"`lanes stop` has not finished; {left}")
        how = "; ".join(f"rank {rank}: {one.sentence()}" for rank, one in died.items()) or unasked
        return Standing(state="died", sentence=f"died while serving: {how or 'its processes are gone'}")
    how = "ended" if record.phase == "stopping" else "was killed"
    killed = f"lanes (pid {record.owner.pid}) {how} while {record.phase}"
    if alive or unasked:
        return Standing(state="orphaned", sentence=f"{killed}; {unasked or 'its processes still run'}")
    return Standing(state="interrupted", sentence=f"{killed}; its processes were stopped")


def _containers(record: Record) -> Sequence[str]:
    """The lane's containers that are still there though no keeper is."""
    if not process.in_containers(record.folder):
        return ()
    from lanes.executors import docker

    return docker.left(record.folder)


def protected(record: Record) -> str | None:
    """The name of the lane's cluster, if its file says by now that it is protected."""
    hold = claims.held(record.folder)
    return hold.cluster if hold is not None and clusters.protected(hold.file) else None


def mend(record: Record) -> list[str]:
    """Clean up after a lane whose owner is gone; return what could not be ended."""
    how = standing(record)
    left = process.stop(record.folder, record.stop) or claims.release(record.folder)
    if not left:
        status = "crashed" if how.state == "died" else "interrupted"
        update(record, ending=Ending(status=status, reason=how.sentence, at=time.time()))
    return left


def mend_all() -> list[tuple[Record, Standing]]:
    """Clean up after every lane that needs it, and forget the oldest of those that ended."""
    mended = []
    ended = 0
    for record in list(every()):
        how = standing(record)
        if how.needs_mending:
            if protected(record) is None and not mend(record):
                mended.append((record, how))
        elif how.state == "ended":
            ended += 1
            if claims.release(record.folder):
                continue
            if ended > KEPT:
                shutil.rmtree(record.folder, ignore_errors=True)
    return mended


def choose(name: str | None, ended_too: bool = False) -> Record:
    """The lane that a person means: by id, by the start of its id, by its recipe's name; without a
    name the only one there is. With `ended_too`, one that has ended will do when none runs: the latest;
    and without a name the latest of all. Raises `UsageError` when none or several fit."""
    records = list(every())
    pool = [r for r in records if r.ending is None]
    if ended_too and (name is not None or not pool):
        pool = records
    if name is None:
        fitting = pool
    else:
        fitting = [r for r in pool if name in (r.id, r.lane) or (name and r.id.startswith(name))]
        fitting = [r for r in fitting if r.id == name] or fitting
        # Of a name that was used again and again, the lane that runs is meant.
        fitting = [r for r in fitting if r.ending is None] or (fitting[:1] if ended_too else [])
    if ended_too and name is None and fitting:
        return fitting[0]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        what = "no lane is running" if name is None else f"no lane {name!r} is there"
        raise UsageError(what, "`lanes status --all` lists them")
    raise UsageError(f"several lanes fit: {', '.join(r.id for r in fitting)}", "name one by its id")
