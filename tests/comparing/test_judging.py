"""Judgement: exact where it says so, wrong as seldom as it says, and never more than the launches carry."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
import statistics
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes.comparing import permutation, planning
from lanes.comparing.judging import Question, judge, judge_all

ROOT = Path(__file__).parent.parent.parent
LANES = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=7)


def simulation():
    spec = importlib.util.spec_from_file_location("judgement", ROOT / "benchmarks/judgement.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["judgement"] = module
    spec.loader.exec_module(module)
    return module


def sides(differences):
    """A and B whose blocks differ by these logs."""
    return [1.0] * len(differences), [math.exp(d) for d in differences]


# -- The tests are exact --------------------------------------------------------------------------


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8, unique_by=lambda x: round(abs(x), 6)))
def test_the_paired_test_counts_every_flip_of_signs(differences):
    ranks = {d: rank for rank, d in enumerate(sorted(differences, key=abs), 1)}
    observed = sum(rank for d, rank in ranks.items() if d > 0)
    sums = [
        sum(rank for flip, rank in zip(flips, ranks.values(), strict=True) if flip)
        for flips in itertools.product((0, 1), repeat=len(differences))
    ]
    if any(abs(d) < 1e-9 for d in differences):
        return
    low = sum(s <= observed for s in sums) / len(sums)
    high = sum(s >= observed for s in sums) / len(sums)
    assert permutation.paired(differences).p() == pytest.approx(min(1.0, 2 * min(low, high)))


@given(LANES, LANES)
def test_the_unpaired_test_counts_every_labelling(a, b):
    if len({round(x, 9) for x in (*a, *b)}) < len(a) + len(b):
        return

    def wins(first, second):
        return sum(y > x for x in first for y in second)

    pooled = [*a, *b]
    counts = []
    for chosen in itertools.combinations(range(len(pooled)), len(a)):
        first = [pooled[i] for i in chosen]
        counts.append(wins(first, [x for i, x in enumerate(pooled) if i not in chosen]))
    low = sum(c <= wins(a, b) for c in counts) / len(counts)
    high = sum(c >= wins(a, b) for c in counts) / len(counts)
    assert permutation.unpaired(a, b).p() == pytest.approx(min(1.0, 2 * min(low, high)))


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=12), st.sampled_from([0.05, 0.1, 0.2]))
def test_the_interval_holds_what_the_test_does_not_refuse(differences, level):
    interval = permutation.paired(differences).interval(level)
    assert interval is not None
    lo, hi = interval
    for shift in (lo - 1e-6, hi + 1e-6):
        assert permutation.paired([d - shift for d in differences]).p() <= level
    middle = permutation.paired([d - (lo + hi) / 2 for d in differences])
    assert hi - lo < 1e-5 or middle.p() > level


def test_few_values_have_no_interval_and_cannot_claim_anything():
    for n in range(1, 6):
        shift = permutation.paired([1.0] * n)
        assert shift.interval() is None
        assert shift.p() > 0.05
    assert permutation.paired([1.0] * 6).p() == 2 / 64


def test_ties_count_against_a_claim():
    assert permutation.paired([0.0] * 10).p() == 1.0
    assert permutation.unpaired([1.0] * 5, [1.0] * 5).p() == 1.0


def test_above_the_exact_sizes_the_probability_goes_on_where_it_was():
    dice = random.Random(1)
    for n in (58, 62):
        differences = [dice.gauss(0.3, 1) for _ in range(n)]
        shift = permutation.paired(differences)
        exact = permutation.signed_rank(n)[sum(step <= 0 for step in shift.steps)]
        assert shift.p_above(0.0) == pytest.approx(exact, rel=0.1)


def test_holm_is_the_one_of_his_paper():
    assert permutation.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert permutation.holm([]) == []


# -- The words ------------------------------------------------------------------------------------


def test_the_campaigns_ep_size_is_unresolved():
    ep4, ep2 = [37.8, 37.5], [41.7, 43.0, 38.8, 41.8]
    found = judge(Question(a=ep4, b=ep2, paired=False))
    assert found.p == pytest.approx(2 / 15)
    assert (found.word, found.lo, found.hi) == ("unresolved", None, None)
    assert found.more is not None and found.more > 0


def test_words_follow_the_way_that_is_better():
    up = [0.10, 0.11, 0.12, 0.09, 0.13, 0.08]
    a, b = sides(up)
    assert judge(Question(a=a, b=b, paired=True)).word == "faster"
    assert judge(Question(a=b, b=a, paired=True)).word == "slower"
    assert judge(Question(a=a, b=b, paired=True, higher=False)).word == "slower"
    assert judge(Question(a=a, b=b, paired=True, speed=False)).word == "better"
    assert judge(Question(a=a, b=b, paired=True, speed=False, higher=False)).word == "worse"


def test_no_difference_is_a_claim_of_its_own_and_says_beyond_what():
    a, b = sides([0.010, -0.012, 0.004, -0.006, 0.009, -0.003, 0.001])
    found = judge(Question(a=a, b=b, paired=True), margin=0.05)
    assert found.word == "no difference"
    assert "no difference beyond 5%" in found.sentence
    # Of the same lanes less can be said than that they differ by no more than half a percent.
    assert judge(Question(a=a, b=b, paired=True), margin=0.005).word == "unresolved"


def test_a_win_within_the_floor_is_none():
    a, b = sides([0.010, 0.011, 0.012, 0.009, 0.013, 0.008])
    won = Question(a=a, b=b, paired=True)
    assert judge(won, margin=0.005).word == "faster"
    floored = Question(a=a, b=b, paired=True, floor=0.02)
    found = judge(floored, margin=0.005)
    assert found.word == "unresolved"
    assert "launches of one and the same lane differ by 2.0% too" in found.sentence


def test_each_figure_that_is_looked_at_makes_a_claim_harder():
    a, b = sides([0.10, 0.11, 0.12, 0.09, 0.13, 0.08])
    noise = sides([0.1, -0.2, 0.3, -0.1, 0.2, -0.3])
    alone = Question(a=a, b=b, paired=True)
    other = Question(a=noise[0], b=noise[1], paired=True)
    assert judge(alone).word == "faster"
    assert judge_all([alone, other])[0].word == "unresolved"
    # A figure of which nothing could ever be claimed takes nothing from the others.
    single = Question(a=[1.0], b=[2.0], paired=True)
    assert judge_all([alone, single, single])[0].word == "faster"


@given(LANES, LANES, st.booleans())
def test_unresolved_is_never_told_as_equal(a, b, paired):
    if paired:
        a, b = a[: len(b)], b[: len(a)]
    found = judge(Question(a=a, b=b, paired=paired))
    if found.word != "unresolved":
        return
    said = found.sentence.lower()
    assert "unresolved" in said
    for word in ("equal", "same as", "no difference", "identical", "as fast", "noise"):
        assert word not in said
    assert found.more is not None and found.more >= 1
    assert "more blocks" in said or "more launches of each" in said


def test_nothing_to_compare_says_what_is_missing():
    found = judge(Question(a=[], b=[1.0], paired=False, name_a="x"))
    assert (found.word, found.ratio) == ("unresolved", None)
    assert "x has no value" in found.sentence
    with pytest.raises(ValueError, match="values above 0"):
        judge(Question(a=[0.0], b=[1.0], paired=False))


# -- The planner ----------------------------------------------------------------------------------


def test_the_fewest_blocks_are_those_with_which_anything_can_be_shown():
    for figures in range(1, 9):
        n = planning.least_blocks(figures)
        assert 2 / 2**n <= planning.LEVEL / figures < 2 / 2 ** (n - 1)
        m = planning.least_launches(figures)
        assert 2 / math.comb(2 * m, m) <= planning.LEVEL / figures < 2 / math.comb(2 * m - 2, m - 1)


def test_more_noise_smaller_differences_and_more_figures_need_more_blocks():
    assert planning.blocks_needed(0.0, 0.1) == 6
    for noise in (0.02, 0.05, 0.1, 0.2):
        n = planning.blocks_needed(noise, 0.1)
        assert planning.blocks_needed(noise * 1.5, 0.1) >= n
        assert planning.blocks_needed(noise, 0.05) >= n
        assert planning.blocks_needed(noise, 0.1, figures=4) > n


def test_the_price_of_the_campaign():
    price = planning.Price(blocks=6, boot_s=33 * 60, measure_s=0)
    assert price.total_s == pytest.approx(6.6 * 3600)
    assert price.sentence().endswith("6.6 h in all")


# -- The simulation -------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(6))
def test_2000_comparisons_of_a_lane_with_itself(index):
    judgement = simulation()
    noise = judgement.NOISES[index]
    n = judgement.planned(noise, seed=7)
    same = judgement.words(noise, n, 1.0, 2000, seed=7)
    assert judgement.claims(same) <= 0.06
    faster = judgement.words(noise, n, 1.1, 500, seed=7)
    assert faster["faster"] / 500 >= 0.8 - 0.036
    assert faster["no difference"] / 500 <= 0.05
    assert set(same) <= {"faster", "slower", "no difference", "unresolved"}


def test_the_simulation_is_no_quieter_than_it_says():
    """Its launches differ as the noise wants them to: a comparison of nothing would prove nothing."""
    judgement = simulation()
    dice = random.Random(3)
    launches = [judgement.launch(judgement.NOISES[1], 0.5, 100.0, dice) for _ in range(4000)]
    assert 0.05 <= statistics.stdev(map(math.log, launches)) <= 0.06


def test_one_figure_of_several_and_launches_in_no_blocks():
    judgement = simulation()
    assert judgement.four_figures(400, seed=7) <= 0.08
    assert judgement.unpaired(2000, seed=7) <= 0.06
