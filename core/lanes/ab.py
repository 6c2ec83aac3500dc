"""An A/B: two lanes launched in turn, block after block, until the plan is done.

A block is one launch of each lane, in an order that a coin chose; two blocks together read ABBA or BAAB, so a
drift of the machine weighs on both lanes alike. Where requests alone differ, a block is one launch that both sides
visit in the order ABBA, and the next BAAB: what differs from launch to launch then weighs on both alike. All
launches, and visits, are lanes of one run, so the journal tells what is done: whatever ended it, the run is resumed
where it was. A block that was cut is begun anew, for its parts belong together in time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from lanes import runs
from lanes.comparing.planning import NESTED
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
    """One entry of the run: which lane, in which block, at which attempt of that block, and, where both sides share
    a launch, which visit to it."""

    side: Name
    number: int
    attempt: int
    visit: int | None = None

    @property
    def prompts(self) -> int:
        """Both lanes of a block get the same prompts, and no other block gets them; a server that has seen them may have
        them in its cache, so those of each visit are others."""
        return self.number if self.visit is None else NESTED * (self.number - 1) + self.visit


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
    entries = NESTED if document["ab"].get("nested") else 2
    for number in range(1, len(document["ab"]["order"]) + 1):
        attempts = _attempts(document, number)
        ends = list(attempts.values())
        whole = any(statuses == ["measured"] * entries for statuses in ends)
        failed = [s for s in ends if set(s) - {"measured", "interrupted", "running"}]
        if not whole and len(failed) < _TRIES:
            found.append((number, max(attempts, default=0) + 1))
    return found


def _name(letter: str) -> Name:
    return "a" if letter == "a" else "b"


def _attempts(document: Mapping[str, Any], number: int) -> dict[int, list[str]]:
    """How the launches of a block, or the visits to its launch, ended: attempt -> statuses."""
    found: dict[int, list[str]] = {}
    for lane in document["lanes"]:
        block = lane.get("block")
        if block and block["number"] == number:
            found.setdefault(block["attempt"], []).append(lane["status"])
    return found


def _launches(ab: Mapping[str, Any], number: int, attempt: int) -> list[list[Step]]:
    """The launches of a block in their order, each with its visits."""
    turn = ab["order"][number - 1]
    if not ab.get("nested"):
        return [[Step(side=_name(letter), number=number, attempt=attempt)] for letter in turn]
    return [
        [
            Step(side=_name(letter), number=number, attempt=attempt, visit=visit)
            for visit, letter in enumerate(turn + turn[::-1], 1)
        ]
    ]


def carry_out(
    document: Callable[[], Mapping[str, Any]],
    lanes: Mapping[Name, tuple[Bound, Place]],
    plan: Plan,
    chosen: Sequence[Chosen],
    journal: Journal,
    done: Callable[[str, Outcome], None],
    **how: Any,
) -> str | None:
    """Launch, measure and stop each lane in its turn, until no block is left. `document` is the run's as it
    stands; `done` is told which launch ended, and how; `how` goes to `runs.one`. A block in which a launch fails is
    begun once more. Returns why the rest was given up, or None. Raises `KeyboardInterrupt` after cleaning up.
    """
    failed: dict[str, int] = {}
    while blocks := left(now := document()):
        number, attempt = blocks[0]
        for steps in _launches(now["ab"], number, attempt):
            bound, place = lanes[steps[0].side]
            visits = [_visit(step, plan, now["ab"], journal.run) for step in steps]
            outcome = runs.one(bound, place, visits, journal, chosen, **how)
            what = f"lane {steps[0].side.upper()}" if len(steps) == 1 else "the launch of both"
            done(f"block {number} of {len(now['ab']['order'])}, {what}", outcome)
            if outcome.status == "measured":
                failed[what] = 0
                continue
            failed[what] = failed.get(what, 0) + 1
            if outcome.status in ("unrunnable", "unmeasurable") or failed[what] >= _IN_A_ROW:
                return f"{_which(document(), what)} {outcome.status}: {outcome.reason}"
            break
    return None


def _visit(step: Step, plan: Plan, ab: Mapping[str, Any], run: str) -> runs.Visit:
    return runs.Visit(
        plan=attrs.evolve(plan, comparison=f"{run} {step.attempt}", block=step.prompts),
        block={name: value for name, value in attrs.asdict(step).items() if value is not None},
        request=ab[step.side].get("request") or {},
    )


def _which(document: Mapping[str, Any], launched: str) -> str:
    """What failed: what was launched, or the lane that was being measured then."""
    last = document["lanes"][-1]
    return f"lane {last['block']['side'].upper()}" if last["instruments"] else launched
