"""A median with an interval that assumes nothing about the distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attrs import frozen

_MANY = 4096
"""Values from which on they are not all sorted for their median."""
_SAMPLE, _MARGIN = 1024, 48
"""How many of them are looked at first, and how far from its middle, in ranks, the median is looked for:
three standard deviations of the median's rank in a sample of so many."""


@frozen(kw_only=True)
class Interval:
    """A median and the interval around it, in the unit of the figure; `n` values went in."""

    median: float
    lo: float
    hi: float
    n: int


def median(values: Sequence[float]) -> float:
    """Return the median: the middle value, or the mean of the two in the middle.

    Of many values only those are sorted among which a sample says that it lies. Raises StatisticsError
    when there is no value.
    """
    count = len(values)
    if count >= _MANY:
        sample = sorted(values[:: count // _SAMPLE])
        middle = len(sample) // 2
        lo, hi = sample[middle - _MARGIN], sample[middle + _MARGIN]
        below = sum([value < lo for value in values])
        near = sorted([value for value in values if lo <= value <= hi])
        at = count // 2 - below
        if 1 <= at < len(near):
            return near[at] if count % 2 else (near[at - 1] + near[at]) / 2
    return statistics.median(values)


def coverage(n: int, rank: int) -> float:
    """Return the probability that the interval from the `rank`-th smallest to the `rank`-th largest
    of `n` values holds the true median: 1 - 2 P(B < rank), B ~ Binomial(n, 1/2).

    Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition (2003), section 7.1.
    """
    return 1.0 - 2.0 * sum(math.comb(n, i) for i in range(rank)) / 2.0**n


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the median of `values` with its distribution-free confidence interval.

    The bounds are the innermost pair of order statistics whose `coverage` is at least `confidence`.
    Fewer than 6 values cannot reach 95%: the bounds are then the smallest and the largest value,
    which hold the median with a probability of 93.75% at n = 5, 87.5% at 4, 75% at 3, 50% at 2 and
    none at 1. The values are taken as independent; passes within one launch of an engine are not
    quite, so the interval understates what a restart would show.

    Raises ValueError when there is no value.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ordered = sorted(values)
    n = len(ordered)
    rank = 1
    while rank < (n + 1) // 2 and coverage(n, rank + 1) >= confidence:
        rank += 1
    return Interval(median=statistics.median(ordered), lo=ordered[rank - 1], hi=ordered[n - rank], n=n)
