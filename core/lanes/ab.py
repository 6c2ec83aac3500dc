"""An A/B: two lanes launched in turn, block after block, until the plan is done.

A block is one launch of each lane, in an order that a coin chose; two blocks together read ABBA or BAAB, so a
drift of the machine weighs on both lanes alike. All launches are lanes of one run, so the journal tells what is
done: whatever ended it, the run is resumed where it was. A block that was cut is begun anew, for its launches
belong together in time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from lanes import runs
from lanes.journal import Journal
from lanes.lifecycle import Bound, Outcome
from lanes.nodes import Place

if TYPE_CHECKING:
    from lanes.bench.plan import Plan
    from lanes.instruments import Chosen

Name = Literal["a", "b"]
_IN_A_ROW = 2
"""Launches of one lane that fail one after the other before the rest is given up."""


@attrs.frozen(kw_only=True)
class Step:
    """One launch: of which lane, in which block, and at which attempt of that block."""

    side: Name
    number: int
    attempt: int


def order(blocks: int, seed: str) -> list[str]:
    """Which lane goes first in each block, `ab` or `ba`: a coin for each two blocks, the second the mirror of
    the first."""
    dice = random.Random(seed)
    found: list[str] = []
    while len(found) < blocks:
        found += dice.choice((["ab", "ba"], ["ba", "ab"]))
    return found[:blocks]


_TRIES = 2
"""How often a block is begun in which a launch fails; those that were cut do not count."""


def left(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The blocks that are left to do, in their order, each with the number of its next attempt."""
    found = []
    for number in range(1, len(document["ab"]["order"]) + 1):
        attempts = _attempts(document, number)
        ends = [list(statuses.values()) for statuses in attempts.values()]
        whole = any(statuses == ["measured", "measured"] for statuses in ends)
        failed = [s for s in ends if set(s) - {"measured", "interrupted", "running"}]
        if not whole and len(failed) < _TRIES:
            found.append((number, max(attempts, default=0) + 1))
    return found


def _name(letter: str) -> Name:
    return "a" if letter == "a" else "b"


def _attempts(document: Mapping[str, Any], number: int) -> dict[int, dict[str, str]]:
    """How the launches of a block ended: attempt -> lane -> status."""
    found: dict[int, dict[str, str]] = {}
    for lane in document["lanes"]:
        block = lane.get("block")
        if block and block["number"] == number:
            found.setdefault(block["attempt"], {})[block["side"]] = lane["status"]
    return found


def carry_out(
    document: Callable[[], Mapping[str, Any]],
    lanes: Mapping[Name, tuple[Bound, Place]],
    plan: Plan,
    chosen: Sequence[Chosen],
    journal: Journal,
    done: Callable[[Step, Outcome], None],
    **how: Any,
) -> str | None:
    """Launch, measure and stop each lane in its turn, until no block is left. `document` is the run's as it
    stands; `how` goes to `runs.one`. A block in which a launch fails is begun once more. Returns why
    the rest was given up, or None. Raises `KeyboardInterrupt` after cleaning up.
    """
    failed: dict[Name, int] = {"a": 0, "b": 0}
    while blocks := left(now := document()):
        number, attempt = blocks[0]
        for letter in now["ab"]["order"][number - 1]:
            step = Step(side=_name(letter), number=number, attempt=attempt)
            bound, place = lanes[step.side]
            # Both lanes of a block get the same prompts, and no other block gets them.
            fresh = attrs.evolve(plan, comparison=f"{journal.run} {attempt}", block=number)
            outcome = runs.one(bound, place, fresh, journal, chosen, block=attrs.asdict(step), **how)
            done(step, outcome)
            if outcome.status == "measured":
                failed[step.side] = 0
                continue
            failed[step.side] += 1
            if outcome.status in ("unrunnable", "unmeasurable") or failed[step.side] >= _IN_A_ROW:
                return f"lane {step.side.upper()} {outcome.status}: {outcome.reason}"
            break
    return None
