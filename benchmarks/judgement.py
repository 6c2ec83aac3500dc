"""How often the judgement is wrong, and how often it finds what is there, by simulation.

    python benchmarks/judgement.py [--comparisons 20000] [--blocks N] [--seed 1]

Launches are simulated as they were seen to be: each has a level of its own (restarts differ), its passes
scatter around that and now and then one stalls, the machine drifts over the hours, and now and then a whole
launch is slow. The unit that is judged is the launch (the median of its passes), in blocks of one launch of
each lane, in the order ABBA or BAAB.

Two lanes that are the same must be called faster or slower in at most 5% of the comparisons (the level; a
sampling error of 0.15 points over 20,000 is in the figure), a lane that is 10% faster must be found in at
least 80% with the number of blocks that the planner proposes for that noise, and lanes that differ by exactly
the margin must be called "no difference beyond" it in at most 5%. Exits with 1 when one fails.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator

from attrs import frozen
from lanes.comparing.judging import Question, judge, judge_all
from lanes.comparing.planning import blocks_needed

PASSES = 5


@frozen(kw_only=True)
class Noise:
    """What makes launches differ; all as shares of the figure."""

    name: str
    restart: float = 0.0
    """Standard deviation between launches."""
    within: float = 0.03
    """Standard deviation of passes within one launch."""
    stall: float = 0.05
    """How often a pass is slower by a third."""
    drift: float = 0.0
    """Growth over the whole comparison, in a line."""
    swing: float = 0.0
    """Height of a wave over it (day and night)."""
    outlier: float = 0.0
    """How often a launch is slower by a fifth."""


NOISES = (
    Noise(name="quiet", restart=0.02),
    Noise(name="restarts differ", restart=0.05),
    Noise(name="restarts differ, drift of 15%", restart=0.05, drift=0.15),
    Noise(name="restarts differ, a wave of 10%", restart=0.04, swing=0.10),
    Noise(name="one launch in twelve is slow", restart=0.03, outlier=1 / 12),
    Noise(name="all of it", restart=0.04, drift=0.10, swing=0.05, outlier=1 / 20),
)


def launch(noise: Noise, at: float, truth: float, dice: random.Random) -> float:
    """The figure of one launch: the median of its passes. `at` goes from 0 to 1 over the comparison."""
    level = truth * math.exp(
        dice.gauss(0, noise.restart) + noise.drift * at + noise.swing * math.sin(2 * math.pi * at)
    )
    if dice.random() < noise.outlier:
        level *= 0.8
    passes = [
        level * math.exp(dice.gauss(0, noise.within)) * (0.67 if dice.random() < noise.stall else 1.0)
        for _ in range(PASSES)
    ]
    return statistics.median(passes)


def comparison(
    noise: Noise, blocks: int, ratio: float, dice: random.Random
) -> tuple[list[float], list[float]]:
    """Both lanes' values, a value a block: launches in the order ABBA or BAAB, B `ratio` times as fast."""
    a, b = [], []
    first = dice.random() < 0.5
    for block in range(blocks):
        if block % 2 == 0:
            first = dice.random() < 0.5
        a_first = first == (block % 2 == 0)
        when = [(2 * block + turn) / (2 * blocks) for turn in (0, 1)]
        a.append(launch(noise, when[0 if a_first else 1], 100.0, dice))
        b.append(launch(noise, when[1 if a_first else 0], 100.0 * ratio, dice))
    return a, b


def words(
    noise: Noise, blocks: int, ratio: float, count: int, seed: int, margin: float = 0.10
) -> Counter[str]:
    """How often each word is said of `count` simulated comparisons."""
    dice = random.Random(f"{seed} {noise.name} {ratio}")
    said: Counter[str] = Counter()
    for _ in range(count):
        a, b = comparison(noise, blocks, ratio, dice)
        said[judge(Question(a=a, b=b, paired=True), margin).word] += 1
    return said


def planned(noise: Noise, seed: int, margin: float = 0.10) -> int:
    """The planner's blocks for the noise that 2,000 blocks show."""
    a, b = comparison(noise, 2000, 1.0, random.Random(f"{seed} {noise.name} plan"))
    return blocks_needed(statistics.stdev(math.log(y / x) for x, y in zip(a, b, strict=True)), margin)


def four_figures(count: int, seed: int) -> float:
    """The share of A/A comparisons of four figures in which any is called faster or slower."""
    noise, dice = NOISES[1], random.Random(f"{seed} four")
    wrong = 0
    for _ in range(count):
        pairs = [comparison(noise, 10, 1.0, dice) for _ in range(4)]
        found = judge_all([Question(a=a, b=b, paired=True) for a, b in pairs], 0.10)
        wrong += any(one.word in ("faster", "slower") for one in found)
    return wrong / count


def unpaired(count: int, seed: int) -> float:
    """The same of launches in no blocks, six against four."""
    noise, dice = NOISES[1], random.Random(f"{seed} unpaired")
    wrong = 0
    for _ in range(count):
        a, b = ([launch(noise, 0.5, 100.0, dice) for _ in range(n)] for n in (6, 4))
        wrong += judge(Question(a=a, b=b, paired=False), 0.10).word in ("faster", "slower")
    return wrong / count


def claims(said: Counter[str]) -> float:
    return (said["faster"] + said["slower"]) / said.total()


def rows(count: int, blocks: int | None, seed: int) -> Iterator[tuple[str, int, float, float, float, float]]:
    """A row a noise: name, blocks, false claims of A/A, found of 10%, "no difference" of A/A, and the same
    of a true difference of 10%, which is false."""
    for noise in NOISES:
        n = blocks or planned(noise, seed)
        same = words(noise, n, 1.0, count, seed)
        faster = words(noise, n, 1.1, count, seed)
        yield (
            noise.name,
            n,
            claims(same),
            faster["faster"] / count,
            same["no difference"] / count,
            faster["no difference"] / count,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=20_000)
    parser.add_argument("--blocks", type=int, help="instead of the planner's number")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    print(
        '| launches | blocks | A/A: false "faster" or "slower" | 10% faster: found | A/A: "no difference beyond 10%"'
        ' | 10% faster: false "no difference" |\n|---|---|---|---|---|---|'
    )
    bad = False
    for name, blocks, false, found, same, wrong in rows(given.comparisons, given.blocks, given.seed):
        print(f"| {name} | {blocks} | {false:.2%} | {found:.1%} | {same:.1%} | {wrong:.2%} |", flush=True)
        bad |= false > 0.05 or wrong > 0.05 or (given.blocks is None and found < 0.8)
    four = four_figures(given.comparisons // 4, given.seed)
    loose = unpaired(given.comparisons, given.seed)
    print(f"\nFour figures judged together, A/A: any false in {four:.2%} of {given.comparisons // 4:,}.")
    print(f"In no blocks, six launches against four, A/A: false in {loose:.2%}.")
    print(
        f"{given.comparisons:,} comparisons a figure, {time.perf_counter() - began:.0f} s.", file=sys.stderr
    )
    return int(bad or four > 0.05 or loose > 0.05)


if __name__ == "__main__":
    sys.exit(main())
