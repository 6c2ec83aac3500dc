"""What a rehearsal is made of: its steps, where it takes place, and how it differs from a launch in earnest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import attrs

from lanes.errors import UsageError
from lanes.plugins import Engine
from lanes.types import Copy, Files, Lane, Launch, Rehearsal, Seat, StageItem

STEPS = ("check", "claim", "image", "flags", "kernels", "network", "start", "answer", "stop")
"""In their order; `claim` on a cluster only."""


@attrs.frozen(kw_only=True)
class Step:
    """What came of a step: `reason` is a sentence in any case."""

    name: str
    status: Literal["ok", "failed", "not possible", "skipped"]
    reason: str
    next_step: str | None = None
    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Scope:
    """On whose nodes images are brought and programs are tried: these ranks', of so many in all."""

    ranks: tuple[int, ...]
    of: int

    @property
    def whole(self) -> bool:
        return len(self.ranks) == self.of


def scope(seats: Sequence[Seat], of: int, node: str | None, every: bool) -> Scope:
    """The head alone, the node of that name, or every one of the lane's. Raises UsageError for a name that is not
    one of them."""
    if node is None:
        return Scope(ranks=tuple(range(of)) if every else (0,), of=of)
    names = [seat.node.name for seat in seats[:of]]
    if node not in names:
        raise UsageError(f"the lane has no node {node!r}", f"it runs on {', '.join(names)}")
    return Scope(ranks=(names.index(node),), of=of)


def asked(engine: Engine, lane: Lane, launch: Launch) -> Rehearsal:
    """How the engine is rehearsed. Raises PluginError."""
    found: Rehearsal | None = engine.ask("lanes_rehearsal", lane=lane, launch=launch)
    if found is None:
        none = f"the plugin of {engine.name} does not say how"
        return Rehearsal(flags=none, kernels=none, dummy=none)
    return found


def spared(
    plan: Rehearsal, items: Sequence[StageItem], where: Scope, without: Collection[str]
) -> frozenset[str]:
    """The names of items that need not be staged: those that the dummy does without, and all files where it is not
    started; then there is nobody to read them."""
    if isinstance(plan.dummy, str) or not where.whole:
        return frozenset({*without, *(one.name for one in items if isinstance(one, Files | Copy))})
    return frozenset({*without, *plan.spared})


def changes(lane: Lane, dummy: Lane) -> str:
    """What the dummy has otherwise, as `load_format dummy, context_length 4096 (not 1048576)`."""
    if not attrs.has(type(lane.options)) or type(lane.options) is not type(dummy.options):
        return "dummy weights"
    told = []
    for field in attrs.fields(type(lane.options)):
        was, now = getattr(lane.options, field.name), getattr(dummy.options, field.name)
        if was != now:
            told.append(
                f"{field.name} {_word(now)}" + ("" if was in (None, False) else f" (not {_word(was)})")
            )
    return ", ".join(told) or "the recipe's own options"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
