"""A median and its interval: the bounds are what the binomial distribution says."""

from __future__ import annotations

import random
import statistics

import pytest
from lanes.bench.statistics import coverage, median, median_interval


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


@pytest.mark.parametrize("count", [1, 2, 4095, 4096, 4097, 65_537, 100_000])
@pytest.mark.parametrize("kind", ["scattered", "equal", "two values", "sorted", "one far off", "in waves"])
def test_the_median_of_many_values_is_that_of_all_of_them_sorted(count: int, kind: str) -> None:
    dice = random.Random(count)
    values = {
        "scattered": [dice.lognormvariate(0, 2) for _ in range(count)],
        "equal": [1.5] * count,
        "two values": [dice.choice((1.0, 2.0)) for _ in range(count)],
        "sorted": [float(n) for n in range(count)],
        "one far off": [dice.random() for _ in range(count - 1)] + [1e9],
        # The sample takes each n-th: here it takes only large ones.
        "in waves": [100.0 if n % (max(count // 1024, 1)) == 0 else dice.random() for n in range(count)],
    }[kind]
    before = list(values)
    assert median(values) == statistics.median(values)
    assert values == before
