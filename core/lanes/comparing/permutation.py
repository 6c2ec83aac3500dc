"""Exact permutation tests of a shift, and the intervals that invert them, for few values.

Paired values: Wilcoxon's signed-rank test, which flips the sign of each block. Unpaired: the rank-sum test
of Wilcoxon, Mann and Whitney, which permutes the labels. Both go by ranks, so one wild launch counts as one
launch; both assume nothing of the distribution but that blocks (launches) are independent, and, paired,
that without a difference a block is as likely to read +d as -d, which a random order of its launches
brings about.

Source: M. Hollander, D. A. Wolfe and E. Chicken, Nonparametric Statistical Methods, 3rd edition (2014):
3.1 and 4.1 (tests), 3.2 and 4.2 (Hodges-Lehmann estimates), 3.3 and 4.3 (intervals).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from attrs import frozen

EXACT = 60
"""Values up to which the distribution is counted out; above, it is normal to many digits."""


@frozen(kw_only=True)
class Shift:
    """By how much B differs from A. `steps` are, sorted, the Walsh averages of the differences (paired) or
    all differences of a value of B and one of A: the test counts how many of them lie above a shift."""

    steps: tuple[float, ...]
    n: int
    """Blocks when paired, else the values of A."""
    m: int | None = None
    """The values of B; None when paired."""

    @property
    def estimate(self) -> float:
        """The Hodges-Lehmann estimate: the median of the steps."""
        return statistics.median(self.steps)

    def p(self) -> float:
        """The exact two-sided probability of a shift as far from 0 as this one, where there is none. Steps
        of 0 count against it."""
        return min(1.0, 2 * min(self.p_above(0.0), self.p_below(0.0)))

    def p_above(self, bound: float) -> float:
        """The one-sided probability of the data when the shift is not above `bound`."""
        return self._tail(sum(step <= bound for step in self.steps))

    def p_below(self, bound: float) -> float:
        """The one-sided probability of the data when the shift is not below `bound`."""
        return self._tail(sum(step >= bound for step in self.steps))

    def interval(self, level: float = 0.05) -> tuple[float, float] | None:
        """All shifts that the two-sided test does not refuse at this level; None where it can refuse none."""
        count = len(self.steps)
        k = 0
        while 2 * self._tail(k) <= level and k < count:
            k += 1
        return (self.steps[k - 1], self.steps[count - k]) if k else None

    @property
    def least(self) -> float:
        """The smallest two-sided probability that so many values can have, whatever they are."""
        return min(1.0, 2 * self._tail(0))

    def _tail(self, count: int) -> float:
        """P(as few steps lie on one side), without a shift."""
        if self.n + (self.m or 0) > EXACT:
            return _normal(count, self.n, self.m)
        tails = signed_rank(self.n) if self.m is None else _rank_sum(self.n, self.m)
        return tails[min(count, len(tails) - 1)]


def paired(differences: Sequence[float]) -> Shift:
    """The shift that differences within blocks show. Raises ValueError when there is none."""
    if not differences:
        raise ValueError("a shift needs at least one difference")
    steps = [(x + y) / 2 for i, x in enumerate(differences) for y in differences[i:]]
    return Shift(steps=tuple(sorted(steps)), n=len(differences))


def unpaired(a: Sequence[float], b: Sequence[float]) -> Shift:
    """The shift from the values `a` to the values `b`. Raises ValueError when either has none."""
    if not a or not b:
        raise ValueError("a shift needs at least one value of each")
    return Shift(steps=tuple(sorted(y - x for x in a for y in b)), n=len(a), m=len(b))


def holm(ps: Sequence[float]) -> list[float]:
    """Probabilities adjusted for having looked at all of them, in the same order.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted = [0.0] * len(ps)
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, ps[index] * (len(ps) - rank)))
        adjusted[index] = worst
    return adjusted


@cache
def signed_rank(n: int) -> tuple[float, ...]:
    """P(W <= w) for w = 0, 1, ...: subsets of the ranks 1 to n by their sum."""
    counts = [1]
    for rank in range(1, n + 1):
        longer = counts + [0] * rank
        for index, count in enumerate(counts):
            longer[index + rank] += count
        counts = longer
    return tuple(total / 2**n for total in accumulate(counts))


@cache
def _rank_sum(n: int, m: int) -> tuple[float, ...]:
    """P(U <= u) for u = 0, 1, ...: the coefficients of the Gaussian binomial of n + m over n."""
    counts = [1] + [0] * (n * m)
    for k in range(1, n + 1):
        for index in range(n * m, m + k - 1, -1):
            counts[index] -= counts[index - m - k]
        for index in range(k, n * m + 1):
            counts[index] += counts[index - k]
    return tuple(total / math.comb(n + m, n) for total in accumulate(counts))


def _normal(count: int, n: int, m: int | None) -> float:
    if m is None:
        mean, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
    else:
        mean, variance = n * m / 2, n * m * (n + m + 1) / 12
    return statistics.NormalDist(mean, math.sqrt(variance)).cdf(count + 0.5)
