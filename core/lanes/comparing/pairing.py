"""Which figures of which lanes are judged against each other, and which value is the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from lanes.comparing import factors, metrics, planning
from lanes.comparing.comparison import Side, Verdict
from lanes.comparing.grouping import Launch
from lanes.comparing.judging import Question, judge_all
from lanes.comparing.summarising import Summary

Floors = Mapping[tuple[str, str, str], float]
"""(instrument, point, metric) -> the share by which launches of one and the same lane were seen to differ."""


@frozen(kw_only=True)
class _Pair:
    a: Side
    b: Side
    where: tuple[str, str, str]
    question: Question


def verdicts(
    summaries: Sequence[Summary], margin: float, floors: Floors, figures: Collection[str] = ()
) -> tuple[Verdict, ...]:
    """Judge every two lanes by every figure that both have (of `figures`, where some are named), all of them
    together.

    Of more than two lanes only those figures are judged of which something can be claimed at all.
    What a document only quotes is not judged, nor what versions of an instrument do not count alike.
    """
    measured = [one for one in summaries if not one.side.quoted]
    everything = len(measured) == 2
    pairs = [
        pair
        for a, b in itertools.combinations(measured, 2)
        for pair in _pairs(a, b, floors)
        if (everything or _can_tell(pair.question)) and (not figures or pair.where[2] in figures)
    ]
    found = judge_all([pair.question for pair in pairs], margin)
    made = []
    for pair, judgement in zip(pairs, found, strict=True):
        resolved = judgement.word not in ("unresolved", "no difference")
        made.append(
            Verdict(
                a=pair.a.name,
                b=pair.b.name,
                instrument=pair.where[0],
                point=pair.where[1],
                metric=pair.where[2],
                judgement=judgement,
                cause=factors.cause(pair.a.factors, pair.b.factors) if resolved else None,
            )
        )
    return tuple(made)


def _pairs(a: Summary, b: Summary, floors: Floors) -> Iterator[_Pair]:
    for point in a.side.points:
        other = b.side.point(point.instrument, point.name)
        if other is None or other.version != point.version:
            continue
        for metric in metrics.judged(point.figures.keys() & other.figures.keys()):
            where = (point.instrument, point.name, metric.name)
            values_a, values_b, paired = _values(a.values[where], b.values[where])
            if any(value <= 0 for value in (*values_a, *values_b)):
                continue
            question = Question(
                a=values_a,
                b=values_b,
                paired=paired,
                name_a=a.side.name,
                name_b=b.side.name,
                what=f"{point.name}, {metric.title}",
                higher=metric.higher,
                speed=metric.speed,
                floor=floors.get(where),
            )
            yield _Pair(a=a.side, b=b.side, where=where, question=question)


def _values(
    a: Sequence[tuple[Launch, float]], b: Sequence[tuple[Launch, float]]
) -> tuple[list[float], list[float], bool]:
    """The values of both lanes: by block, where `lanes ab` launched them all; else all of each.

    Launches outside of blocks have no partner, and blocks drift with time: the two are not mixed.
    """
    blocks_a, blocks_b = _by_block(a), _by_block(b)
    shared = [block for block in blocks_a if block in blocks_b]
    outside = any(launch.block is None for launch, _ in (*a, *b))
    if shared and (not outside or len(shared) >= planning.least_blocks()):
        return [blocks_a[block] for block in shared], [blocks_b[block] for block in shared], True
    return [value for _, value in a], [value for _, value in b], False


def _by_block(values: Sequence[tuple[Launch, float]]) -> dict[tuple[str, int], float]:
    return {
        launch.block[:2]: value for launch, value in values if launch.block is not None and not launch.torn
    }


def _can_tell(question: Question) -> bool:
    n, m = len(question.a), len(question.b)
    if question.paired:
        return n >= planning.least_blocks()
    return 2 / math.comb(n + m, n) <= planning.LEVEL


def with_best(side: Side, sides: Sequence[Side], found: Sequence[Verdict]) -> Side:
    """The lane with those of its figures marked that were shown to beat every other lane's."""
    rivals: dict[tuple[str, str, str], set[str]] = {}
    for other in sides:
        if other.name != side.name and not other.quoted:
            for point in other.points:
                for metric in point.figures:
                    rivals.setdefault((point.instrument, point.name, metric), set()).add(other.name)
    beaten: dict[tuple[str, str, str], set[str]] = {}
    for verdict in found:
        where = (verdict.instrument, verdict.point, verdict.metric)
        if verdict.judgement.word in ("faster", "better") and verdict.b == side.name:
            beaten.setdefault(where, set()).add(verdict.a)
        elif verdict.judgement.word in ("slower", "worse") and verdict.a == side.name:
            beaten.setdefault(where, set()).add(verdict.b)
    points = []
    for point in side.points:
        figures = {
            name: evolve(figure, best=bool(others) and others <= beaten.get(where, set()))
            for name, figure in point.figures.items()
            for where in [(point.instrument, point.name, name)]
            for others in [rivals.get(where, set())]
        }
        points.append(evolve(point, figures=figures))
    return evolve(side, points=tuple(points))
