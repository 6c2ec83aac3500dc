"""Why did a lane fail? The engine's plugin names known causes; failing that, the log's telling lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lanes.causes import find
from lanes.plugins import Engine
from lanes.types import Cause, Lane, Postmortem

_LONGEST = 400
"""How much of a line is worth repeating: some engines print whole requests."""

_TELLING = re.compile(
    r"\b(error|fatal|critical|exception|traceback|panic|abort(ed)?|assert(ion)?|fail(ed|ure)?|cannot|can't|"
    r"couldn't|could not|unable|invalid|out of memory|killed|denied|no such|not found)\b",
    re.IGNORECASE,
)


def diagnose(engine: Engine, lane: Lane, postmortem: Postmortem) -> tuple[Cause, ...]:
    """The causes that the engine's plugin and the extensions know, the first one first; without any, what the way
    a process ended tells.

    A plugin that raises meanwhile is left out: the failure itself matters more.
    """
    causes: list[Cause] = []
    for _, result in engine.collect("lanes_diagnose", lane=lane, postmortem=postmortem):
        if not isinstance(result, Exception):
            causes.extend(result)
    return tuple(causes) or find(postmortem, ())


def telling_lines(postmortem: Postmortem, most: int = 5) -> tuple[str, ...]:
    """The lines of the logs that most likely tell: those with an error word, else the last ones."""
    ranks = sorted(postmortem.logs)
    prefix = len(ranks) > 1
    lines = [
        (f"rank {rank}: " if prefix else "") + line[:_LONGEST]
        for rank in ranks
        for line in postmortem.logs[rank]
        if line.strip()
    ]
    telling = _distinct([line for line in lines if _TELLING.search(line)])
    return tuple((telling or lines)[-most:])


def _distinct(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def sentence(what: str, causes: Sequence[Cause], lines: Sequence[str]) -> tuple[str, str]:
    """The reason and the next step of a failure, in a sentence each."""
    if causes:
        return f"{what}: {causes[0].meaning}", causes[0].advice
    if lines:
        return f"{what}; its log ends: {lines[-1].strip()}", "`lanes logs` shows the whole log"
    return f"{what}; its log is empty", "start the program by hand with the argv that --dry-run shows"
