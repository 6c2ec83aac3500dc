"""Which of two lanes is faster, as far as their launches tell: the word and the figures behind it.

The unit is a launch of the engine, or a block of two launches, one of each lane: passes of one launch are
not independent of each other. Ratios, not differences: a lane is 10% faster, whatever the unit.

A win needs an exact probability of at most 4.5% (`planning.LEVEL`), after Holm's correction for all figures that were looked at,
and a ratio beyond the floor that launches of one and the same lane were seen to differ by. "No difference"
is a claim of its own, with its own test (two one-sided tests, D. J. Schuirmann, 1987): the ratio lies within
the margin. Everything else is unresolved, which says nothing about the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
from attrs import frozen

from lanes.comparing import permutation, planning
from lanes.comparing.comparison import Judgement, Word

MARGIN = 0.05
"""The share beyond which a difference counts, where the user names none."""


@frozen(kw_only=True)
class Question:
    """Two lanes' values of one figure, a value a launch (`paired`: a value a block, in the same order).

    All values are above 0. `higher` says whether more is better; `time` or rate decides between "faster"
    and "better". `what` names the figure, `name_a` and `name_b` the lanes.
    """

    a: Sequence[float]
    b: Sequence[float]
    paired: bool
    name_a: str = "A"
    name_b: str = "B"
    what: str = "the figure"
    higher: bool = True
    speed: bool = True
    floor: float | None = None


def judge(question: Question, margin: float = MARGIN, level: float = planning.LEVEL) -> Judgement:
    """Judge one figure, the only one that is looked at."""
    return judge_all([question], margin, level)[0]


def judge_all(
    questions: Sequence[Question], margin: float = MARGIN, level: float = planning.LEVEL
) -> list[Judgement]:
    """Judge all figures that are looked at together.

    `margin` is a share: 0.05 makes "no difference" mean a ratio between 1/1.05 and 1.05. A figure with so
    few values that nothing could ever be claimed of it does not make claims of the others harder (R. E.
    Tarone, Biometrics 46, 1990). Raises ValueError for a value that is not above 0, and for paired values of
    unequal number.
    """
    shifts = [_shift(one) for one in questions]
    bound = math.log1p(margin)
    told = [s for s in shifts if s is not None and s.least <= level]
    count = max(len(told), 1)
    adjusted = _adjusted(shifts, told, [s.p() for s in told])
    # To claim no difference of k figures is to look k times too.
    within = _adjusted(shifts, told, [max(s.p_above(-bound), s.p_below(bound)) for s in told])
    return [
        _judgement(question, shift, p, p_within, margin, level, count)
        for question, shift, p, p_within in zip(questions, shifts, adjusted, within, strict=True)
    ]


def _adjusted(
    shifts: Sequence[permutation.Shift | None], told: Sequence[permutation.Shift], ps: Sequence[float]
) -> list[float]:
    """Holm's probabilities of those that can tell something, and for the others their own."""
    by_shift = {id(shift): p for shift, p in zip(told, permutation.holm(ps), strict=True)}
    return [by_shift.get(id(s), s.p()) if s is not None else 1.0 for s in shifts]


def _shift(one: Question) -> permutation.Shift | None:
    if any(value <= 0 for value in (*one.a, *one.b)):
        raise ValueError(f"{one.what}: a ratio needs values above 0")
    a, b = ([math.log(value) for value in side] for side in (one.a, one.b))
    if not a or not b:
        return None
    if one.paired:
        return permutation.paired([y - x for x, y in zip(a, b, strict=True)])
    return permutation.unpaired(a, b)


def _judgement(
    one: Question,
    shift: permutation.Shift | None,
    p: float,
    p_within: float,
    margin: float,
    level: float,
    count: int,
) -> Judgement:
    ratio = math.exp(shift.estimate) if shift else None
    interval = shift.interval(level) if shift else None
    lo, hi = (math.exp(end) for end in interval) if interval else (None, None)
    beyond_floor = ratio is not None and max(ratio, 1 / ratio) - 1 > (one.floor or 0.0)
    word: Word = "unresolved"
    more = None
    if p <= level and beyond_floor and ratio is not None:
        up = ratio > 1
        good = up == one.higher
        word = ("faster" if good else "slower") if one.speed else ("better" if good else "worse")
    elif p_within <= level:
        word = "no difference"
    else:
        more = _more(one, margin, count)
    judgement = Judgement(
        word=word,
        ratio=ratio,
        lo=lo,
        hi=hi,
        p=shift.p() if shift else 1.0,
        p_adjusted=p,
        n_a=len(one.a),
        n_b=len(one.b),
        paired=one.paired,
        margin=margin,
        floor=one.floor,
        more=more,
        sentence="",
    )
    return attrs.evolve(judgement, sentence=_sentence(one, judgement, p <= level, count))


def _more(one: Question, margin: float, count: int) -> int:
    """How many more would settle a difference of `margin`, with the noise that was seen."""
    if one.paired:
        noise = planning.spread([math.log(y / x) for x, y in zip(one.a, one.b, strict=True)])
        if noise is None:
            return planning.least_blocks(count) - len(one.a)
        return max(1, planning.blocks_needed(noise, margin, count) - len(one.a))
    noise = _pooled(one.a, one.b)
    if noise is None:
        return planning.least_launches(count) - min(len(one.a), len(one.b))
    return max(1, planning.launches_needed(noise, margin, count) - min(len(one.a), len(one.b)))


def _pooled(*sides: Sequence[float]) -> float | None:
    """The standard deviation of the logs within the sides."""
    squares, freedom = 0.0, 0
    for side in sides:
        logs = [math.log(value) for value in side]
        mean = sum(logs) / max(len(logs), 1)
        squares += sum((x - mean) ** 2 for x in logs)
        freedom += max(len(logs) - 1, 0)
    return math.sqrt(squares / freedom) if freedom else None


def _sentence(one: Question, found: Judgement, shown: bool, count: int) -> str:
    if found.ratio is None:
        return f"{one.what}: unresolved, {one.name_a if not one.a else one.name_b} has no value"
    n = f"{found.n_a} blocks" if one.paired else f"{found.n_a} against {found.n_b} launches"
    chance = f"p = {_probability(found.p_adjusted)}" + (f" over {count} figures" if count > 1 else "")
    seen = signed(found.ratio)
    if found.lo is not None and found.hi is not None:
        seen += f" [{signed(found.lo)}, {signed(found.hi)}]"
    margin = f"{100 * found.margin:g}%"
    if found.word == "no difference":
        return (
            f"{one.what}: no difference beyond {margin} between {one.name_b} and {one.name_a} ({seen}, {n})"
        )
    if found.word != "unresolved":
        return f"{one.what}: {one.name_b} is {found.word} than {one.name_a}, {seen} ({n}, {chance})"
    if shown:
        why = f"launches of one and the same lane differ by {found.floor or 0:.1%} too"
    else:
        why = f"{_how_many(found)} would settle a difference of {margin}"
    return f"{one.what}: unresolved, {one.name_b} against {one.name_a} reads {seen} ({n}, {chance}); {why}"


_MANY = 100


def _how_many(found: Judgement) -> str:
    unit = "blocks" if found.paired else "launches of each"
    if found.more is not None and found.more > _MANY:
        return f"no fewer than {_MANY} more {unit}"
    # Of one value a lane nothing is known of the noise.
    known = (found.n_a > 1) if found.paired else (found.n_a + found.n_b > 2)
    return f"{'about' if known else 'at least'} {found.more} more {unit}"


def signed(ratio: float) -> str:
    """`+8.3%` for 1.083."""
    return f"{ratio - 1:+.1%}"


def _probability(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1g}"
