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


def steps(document: Mapping[str, Any]) -> list[Step]:
    """The launches that are left to do, in their order."""
    left = []
    for number, turn in enumerate(document["ab"]["order"], 1):
        attempts = _attempts(document, number)
        last = max(attempts, default=0)
        if last and len(attempts[last]) == 2 and "interrupted" not in attempts[last].values():
            continue
        left += [Step(side=_name(side), number=number, attempt=last + 1) for side in turn]
    return left


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
    left: Sequence[Step],
    lanes: Mapping[Name, tuple[Bound, Place]],
    plan: Plan,
    chosen: Sequence[Chosen],
    journal: Journal,
    done: Callable[[Step, Outcome], None],
    **how: Any,
) -> str | None:
    """Launch, measure and stop each lane in its turn; `how` goes to `runs.one`. Returns why the rest was given
    up, or None when all was done. Raises `KeyboardInterrupt` after cleaning up.
    """
    failed: dict[Name, int] = {"a": 0, "b": 0}
    for step in left:
        bound, place = lanes[step.side]
        # Both lanes of a block get the same prompts, and no other block gets them.
        fresh = attrs.evolve(plan, comparison=f"{journal.run} {step.attempt}", block=step.number)
        outcome = runs.one(bound, place, fresh, journal, chosen, block=attrs.asdict(step), **how)
        done(step, outcome)
        failed[step.side] = 0 if outcome.status == "measured" else failed[step.side] + 1
        if outcome.status in ("unrunnable", "unmeasurable") or failed[step.side] >= _IN_A_ROW:
            return f"lane {step.side.upper()} {outcome.status}: {outcome.reason}"
    return None
