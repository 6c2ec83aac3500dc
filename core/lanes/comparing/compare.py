"""Documents in, a `Comparison` out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import evolve

from lanes.comparing import choices, doubts, factors, grouping, overview, pairing
from lanes.comparing.comparison import Comparison
from lanes.comparing.grouping import Group, Launch
from lanes.comparing.judging import MARGIN
from lanes.comparing.summarising import summary


def compare(
    documents: Sequence[Mapping[str, Any]],
    *,
    only: Sequence[str] = (),
    by: str | None = None,
    margin: float = MARGIN,
    weights: Mapping[str, float] | None = None,
    floors: pairing.Floors | None = None,
    figures: Collection[str] = (),
) -> Comparison:
    """Compare the lanes of `lanes.result/1` documents.

    `only` names lanes or runs: the others are known, for doubts, and not shown. With `by` launches are put
    together by that factor's value, whatever else differs. `margin` is the share beyond which a difference
    counts; `weights` are the user's own, a figure's name to its weight; `floors` what A/A runs taught; `figures` those
    to judge by, where not all.

    Raises KeyError with the name of a lane or run of `only`, a factor, or a figure that nothing has.
    """
    pool = grouping.launches(documents)
    groups = chosen(pool, only, by)
    summed = [summary(group) for group in groups]
    sides = factors.with_clocks([one.side for one in summed])
    summaries = [evolve(one, side=side) for one, side in zip(summed, sides, strict=True)]
    found = pairing.verdicts(summaries, margin, floors or {}, figures or _agreed(documents))
    sides = [pairing.with_best(side, sides, found) for side in sides]
    columns = overview.columns(sides)
    return Comparison(
        sides=tuple(sides),
        columns=columns,
        points=tuple(dict.fromkeys((p.instrument, p.name) for side in sides for p in side.points)),
        verdicts=found,
        differences=factors.differences([(side.name, side.factors) for side in sides]),
        flags=doubts.flags(groups, pool, columns),
        choices=choices.choices(sides, columns, weights),
        margin=margin,
    )


def chosen(pool: Sequence[Launch], only: Sequence[str] = (), by: str | None = None) -> list[Group]:
    """The launches that are shown, by lane: the groups that the sides of `compare` are made of, in their
    order. Raises KeyError as `compare` does."""
    shown = [one for one in pool if not only or one.lane["name"] in only or one.run in only]
    for name in only:
        if not any(name in (one.lane["name"], one.run) for one in shown):
            raise KeyError(name)
    # Lanes stand in the order in which they were named, those of an A/B as A and B.
    shown.sort(key=lambda one: (_place(one, only), one.block[2] if one.block else ""))
    return grouping.by_factor(shown, by) if by is not None else grouping.by_lane(shown)


def _agreed(documents: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """The figures that an A/B was to be judged by, when it is all that is compared: what was settled before
    is not settled anew after."""
    ab = documents[0].get("ab") if len(documents) == 1 else None
    return tuple(ab.get("figures", ())) if ab else ()


def _place(launch: Launch, only: Sequence[str]) -> int:
    """Where the lane was named, 0 when it was not."""
    named = (launch.lane["name"], launch.run)
    return min((index for index, name in enumerate(only) if name in named), default=0)
