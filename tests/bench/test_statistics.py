"""A median and its interval: the bounds are what the binomial distribution says."""

from __future__ import annotations

import pytest
from lanes.bench.statistics import coverage, median_interval


def test_five_values_give_the_smallest_and_the_largest() -> None:
    got = median_interval([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (got.median, got.lo, got.hi, got.n) == (3.0, 1.0, 5.0, 5)
    assert coverage(5, 1) == 0.9375


@pytest.mark.parametrize(
    ("n", "rank"),
    # Tabulated in David and Nagaraja and in most textbooks: the rank of the lower bound at 95%.
    [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (17, 5), (20, 6), (25, 8), (30, 10)],
)
def test_more_values_give_the_innermost_pair_that_covers_95_percent(n: int, rank: int) -> None:
    got = median_interval([float(i) for i in range(1, n + 1)])
    assert (got.lo, got.hi) == (rank, n + 1 - rank)
    assert coverage(n, rank) >= 0.95 > coverage(n, rank + 1)


def test_one_value_is_its_own_interval_and_none_is_an_error() -> None:
    assert median_interval([7.0]).lo == median_interval([7.0]).hi == 7.0
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])
