"""How many blocks an A/B needs, and what they cost, before the first is started."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attrs import evolve, frozen

from lanes.comparing.permutation import EXACT, signed_rank

LEVEL = 0.045
"""The probability up to which something is claimed: with it false claims stay below 5% also where blocks owe
each other a little."""
POWER = 0.8
_SMALL = 0.7
"""A correction of the normal formula for few values, as W. C. Guenther's of the t-test, which is 0.5 (The American
Statistician 35, 1981); found by simulation."""
ASSUMED_NOISE = 0.05
"""Standard deviation of the log of a figure from launch to launch, where no launches have shown any: 5%."""
NESTED = 4
"""Visits to a launch that both sides share: A B B A."""


@frozen(kw_only=True)
class Price:
    """What an A/B costs: `blocks` of two launches, each of which boots and is measured; or, `nested`, of one
    launch in which each side is measured twice."""

    blocks: int
    boot_s: float
    measure_s: float
    nested: bool = False

    @property
    def launches(self) -> int:
        return self.blocks if self.nested else 2 * self.blocks

    @property
    def total_s(self) -> float:
        visits = NESTED if self.nested else 1
        return self.launches * (self.boot_s + visits * self.measure_s)

    def sentence(self) -> str:
        if self.nested:
            apart = evolve(self, nested=False)
            return (
                f"nested: {self.launches} launches, each {duration(self.boot_s)} to boot and {NESTED} times "
                f"{duration(self.measure_s)} to measure: {duration(self.total_s)} in all; --apart: "
                f"{apart.launches} launches, {duration(apart.total_s)}"
            )
        each = f"{duration(self.boot_s)} to boot and {duration(self.measure_s)} to measure"
        return (
            f"{self.blocks} blocks are {self.launches} launches, each {each}: {duration(self.total_s)} in all"
        )


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of values, or None of fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else None


def least_blocks(figures: int = 1, level: float = LEVEL) -> int:
    """The fewest blocks with which the paired test can say anything at all of `figures` figures: all blocks
    on one side have the probability 2 / 2^n."""
    return math.ceil(math.log2(2 * figures / level) - 1e-9)


def least_launches(figures: int = 1, level: float = LEVEL) -> int:
    """The same of launches of each lane that are in no blocks: 2 / C(2n, n)."""
    n = 1
    while 2 / math.comb(2 * n, n) > level / figures:
        n += 1
    return n


def blocks_needed(
    noise: float, margin: float, figures: int = 1, power: float = POWER, level: float = LEVEL
) -> int:
    """How many blocks find a difference of `margin` (0.1: 10%) with this power, and show with the same power
    that there is none beyond it where there is none at all.

    `noise` is the standard deviation of a block's log ratio, which is sqrt(2) times that of a launch. The
    level is divided by the number of `figures` that are judged together.

    The normal formula (G. E. Noether, Sample size determination for some common nonparametric tests, JASA
    82 (1987); efficiency 3/pi of the signed ranks) at the level that so many blocks really have, whose
    probabilities come in steps; benchmarks/judgement.py shows that the power is reached.
    """
    normal = statistics.NormalDist()
    least = least_blocks(figures, level)
    effect = math.log1p(margin)
    if not noise or normal.cdf(effect / noise) ** least >= power:
        # So few must all lie on one side.
        return least
    blocks = least + 1
    while blocks < _needed(noise / effect, power, *_attained(blocks, level / figures)):
        blocks += 1
    return blocks


def _needed(noise: float, power: float, two_sided: float, one_sided: float) -> float:
    """Blocks for a noise in units of the effect, to find it and to exclude it at these levels."""
    z = statistics.NormalDist().inv_cdf
    find = (z(1 - two_sided / 2) + z(power)) ** 2
    exclude = (z(1 - one_sided) + z((1 + power) / 2)) ** 2
    return math.pi / 3 * max(find, exclude) * noise**2 + _SMALL * z(1 - two_sided / 2) ** 2


def _attained(blocks: int, level: float) -> tuple[float, float]:
    """The largest probabilities up to `level` that so many blocks can have, two-sided and one-sided."""
    if blocks > EXACT:
        return level, level
    tails = signed_rank(blocks)
    return 2 * max(t for t in tails if 2 * t <= level), max(t for t in tails if t <= level)


def launches_needed(noise: float, margin: float, figures: int = 1) -> int:
    """How many launches of each lane do so when they are in no blocks; `noise` is that of a launch."""
    paired = blocks_needed(noise * math.sqrt(2), margin, figures)
    least = least_launches(figures)
    return max(least, paired - least_blocks(figures) + least)


def duration(seconds: float) -> str:
    """`40 s`, `33 min`, `6.6 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"
