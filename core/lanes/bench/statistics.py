"""A median with an interval that assumes nothing about the distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attrs import frozen


@frozen(kw_only=True)
class Interval:
    """A median and the interval around it, in the unit of the figure; `n` values went in."""

    median: float
    lo: float
    hi: float
    n: int


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
