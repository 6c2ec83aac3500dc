"""What was seen of lanes that ran: findings with the evidence OBSERVED, from the history and from files of others.

An observation is about one engine, of one version or in one image, on one kind of GPU, with one recipe. That a lane
was measured there shows that the hardware runs it; that it crashed shows nothing of the hardware, and is told
as a finding of its own, which degrades and never forbids. A rehearsal is an observation apart, and only the latest of
one making counts: what failed in an earlier one may be mended.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import cattrs
import cattrs.preconf.json

from lanes.errors import LanesError, UsageError
from lanes.types import Evidence, Finding, Kind, Node, Verdict

SCHEMA = "lanes.observations/1"
LOOKED_AT = 500
"""The latest runs of the history that are looked at."""

_GOOD = ("measured",)
_BAD = ("crashed", "failed")


@attrs.frozen(kw_only=True)
class Observation:
    """Launches of one making, together: how many were `measured`, how many `crashed` or failed, the `reason` of
    the latest of these. `targets` are the compute capabilities of the GPUs, empty for none; `overruled` are the questions
    that were gone on against. `by` is who saw it, None for this history."""

    engine: str
    engine_version: str | None
    image: str | None
    targets: tuple[str, ...]
    recipe: str
    measured: int
    crashed: int
    reason: str | None
    latest: str
    run: str
    overruled: tuple[str, ...] = ()
    by: str | None = None
    rehearsed: tuple[tuple[str, str, str], ...] = ()
    """Of a rehearsal: its steps, each with its status and its reason."""


def of_documents(documents: Iterable[Mapping[str, Any]]) -> list[Observation]:
    """The observations in `lanes.result/1` documents that lanes measured itself, the oldest first."""
    found: dict[tuple[Any, ...], Observation] = {}
    for document in sorted(documents, key=lambda d: d.get("started_at") or 0.0):
        if document.get("provenance"):
            continue
        for lane in document["lanes"]:
            rehearsed = bool(lane.get("rehearsal")) and lane["status"] in ("rehearsed", *_BAD)
            if (rehearsed or lane["status"] in (*_GOOD, *_BAD)) and lane["engine"] and lane["recipe"]:
                one = _observation(document, lane)
                key = (one.engine, one.engine_version, one.image, one.targets, one.recipe, rehearsed)
                found[key] = _together(found[key], one) if key in found and not rehearsed else one
    return list(found.values())


def _observation(document: Mapping[str, Any], lane: Mapping[str, Any]) -> Observation:
    good = lane["status"] in _GOOD
    steps = lane.get("rehearsal") or ()
    gpus = [gpu for node in lane["environment"].get("nodes") or () for gpu in node.get("gpus") or ()]
    images = sorted({str(one.get("id") or "") for one in (lane.get("images") or {}).values()} - {""})
    return Observation(
        engine=lane["engine"],
        engine_version=lane["environment"].get("engine_version"),
        image=", ".join(images) or lane["recipe"].get("image"),
        targets=tuple(sorted({gpu["target"] for gpu in gpus if gpu.get("target")})),
        recipe=lane["recipe"]["name"],
        measured=int(good),
        crashed=int(not good and not steps),
        reason=None if good else lane["reason"],
        latest=datetime.date.fromtimestamp(document["started_at"] or 0.0).isoformat(),
        run=document["run"],
        overruled=tuple(lane["overrides"]),
        rehearsed=tuple((one["name"], one["status"], one["reason"]) for one in steps),
    )


def _together(one: Observation, later: Observation) -> Observation:
    return attrs.evolve(
        later,
        measured=one.measured + later.measured,
        crashed=one.crashed + later.crashed,
        reason=later.reason or one.reason,
        overruled=tuple(dict.fromkeys((*one.overruled, *later.overruled))),
    )


def findings(
    seen: Iterable[Observation],
    engine: str,
    version: str | None,
    nodes: Sequence[Node],
    recipe: str | None = None,
    image: str | None = None,
) -> Iterator[Finding]:
    """What was observed of this engine, in this version, on the GPUs of these nodes; with a `recipe` of that one alone,
    in its image when it has one.
    """
    targets = tuple(sorted({gpu.target for node in nodes for gpu in node.gpus or () if gpu.target}))
    for one in seen:
        if one.engine != engine or one.targets != targets or one.engine_version != version:
            continue
        if recipe is not None and (one.recipe != recipe or (image is None) != (one.image is None)):
            continue
        # Without a recipe it is asked what the hardware does: on a machine without a GPU nothing is.
        if recipe is not None or targets:
            yield from _findings(one, recipe)


def _findings(one: Observation, recipe: str | None) -> Iterator[Finding]:
    who = f"{one.by}: " if one.by else ""
    common: dict[str, Any] = {
        "source": f"{who}run {one.run}",
        "evidence": Evidence.OBSERVED,
        "engine_version": one.engine_version,
        "date": datetime.date.fromisoformat(one.latest),
    }
    where = ", ".join(one.targets) or "no GPU"
    despite = f", despite {', '.join(one.overruled)}" if one.overruled else ""
    if one.rehearsed:
        yield from _of_rehearsal(one, recipe, where, despite, common)
    if one.measured:
        yield Finding(
            question="sm" if one.targets else "ran",
            kind=Kind.HARDWARE,
            verdict=Verdict.RUNNABLE,
            reason=f"{one.recipe} was measured {_times(one.measured)} on {where}{despite}",
            **common,
        )
    if one.crashed and recipe is not None:
        yield Finding(
            question="crashes",
            kind=Kind.SANITY,
            verdict=Verdict.DEGRADED,
            reason=f"{one.recipe} crashed or failed in {one.crashed} of {one.measured + one.crashed} launches: {one.reason}",
            recheck_when="the engine, its image or the recipe is another",
            **common,
        )


_ABOUT = {"kernels": Kind.HARDWARE, "start": Kind.SANITY, "answer": Kind.SANITY, "stop": Kind.SANITY}
"""What a step that failed says something of, where not of the configuration."""


def _of_rehearsal(
    one: Observation, recipe: str | None, where: str, despite: str, common: Mapping[str, Any]
) -> Iterator[Finding]:
    """What the steps of a rehearsal tell; without a `recipe` only what they tell of the hardware."""
    steps = {name: (status, reason) for name, status, reason in one.rehearsed}
    good = [name for name, (status, _) in steps.items() if status == "ok"]
    ran = [name for name in good if name in ("kernels", "answer")]
    if ran and one.targets:
        yield Finding(
            question="sm",
            kind=Kind.HARDWARE,
            verdict=Verdict.RUNNABLE,
            reason=f"in a rehearsal of {one.recipe} on {where} {' and '.join(ran)} went well{despite}",
            **common,
        )
    failed = [(name, reason) for name, (status, reason) in steps.items() if status == "failed"]
    for name, reason in failed:
        kind = _ABOUT.get(name, Kind.CONFIGURATION)
        if recipe is not None or kind is Kind.HARDWARE:
            yield Finding(
                question=f"rehearsal of {name}",
                kind=kind,
                verdict=Verdict.DEGRADED,
                reason=f"{one.recipe} was rehearsed on {where}{despite}, and {name} failed: {reason}",
                next_step=f"mend that, and `lanes rehearse {one.recipe}` again",
                recheck_when="the engine, its image or the recipe is another",
                **common,
            )
    if recipe is not None and not failed:
        rest = [name for name, (status, _) in steps.items() if status == "not possible" and name != "network"]
        untried = f"; {' and '.join(rest)} could not be tried" if rest else ""
        yield Finding(
            question="rehearsal",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.RUNNABLE,
            reason=f"{one.recipe} was rehearsed on {where}{despite}: {', '.join(good)} went well{untried}",
            **common,
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- From site to site ----------------------------------------------------------------------------


def known(history: Path, folder: Path) -> list[Observation]:
    """All that is known here: of the history, and of the files that were taken in. Raises `LanesError`."""
    from lanes.results.store import Store

    found: list[Observation] = []
    if history.exists():
        with Store(history) as store:
            found = of_documents(store.recent(LOOKED_AT))
    return found + [one for file in sorted(folder.glob("*.json")) for one in read(file)]


def read(path: Path) -> list[Observation]:
    """The observations of a file that `lanes caps --export` wrote. Raises `UsageError`."""
    mend = "`lanes caps --export FILE` writes one"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", mend) from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UsageError(f"{path} holds no observations ({SCHEMA})", mend)
    converter = cattrs.preconf.json.make_converter(forbid_extra_keys=True)
    try:
        found = converter.structure(value["observations"], list[Observation])
        who = str(value["by"])
    except (KeyError, cattrs.BaseValidationError):
        raise UsageError(f"{path} is damaged: an observation lacks what one has", mend) from None
    # What they had from others stays theirs.
    return [one if one.by else attrs.evolve(one, by=who) for one in found]


def write(path: Path, seen: Sequence[Observation], by: str) -> None:
    """Write them for another site, with who saw them and when. Raises `LanesError`."""
    from lanes._version import __version__

    data = {
        "schema": SCHEMA,
        "by": by,
        "date": datetime.date.today().isoformat(),
        "lanes": __version__,
        # What is as it is without saying is left out: earlier versions do not know all of it.
        "observations": cattrs.preconf.json.make_converter(omit_if_default=True).unstructure(list(seen)),
    }
    try:
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise LanesError(f"{path} cannot be written: {error}", "name another file") from None


def take_in(path: Path, folder: Path) -> int:
    """Keep another site's file; a later one of the same name replaces it. Returns how many observations it has."""
    found = read(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{path.stem}.json").write_bytes(path.read_bytes())
    except OSError as error:
        raise LanesError(
            f"{folder} cannot be written: {error}", "make it writable, or set LANES_HOME"
        ) from None
    return len(found)
