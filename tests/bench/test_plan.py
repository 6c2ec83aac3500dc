"""A plan that cannot be measured is refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from lanes.bench.plan import PRESETS, Cell, Plan


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"pp": (0,)}, "the prompt's length (pp) must be a whole number of at least 1, not 0"),
        ({"tg": ()}, "the answer's length (tg) is missing"),
        ({"depth": (-1,)}, "the depth must be a whole number of at least 0, not -1"),
        ({"depth_shape": ("ctx", "wide")}, "the depth's shape must be suffix or ctx, not 'wide'"),
        ({"concurrency": (2, 2)}, "the number of streams (concurrency) names a value twice"),
        ({"passes": 0}, "the number of passes must be a whole number of at least 1, not 0"),
        ({"warmups": 1.5}, "the number of warm-ups must be a whole number of at least 0, not 1.5"),
        ({"load": "wavy"}, "the load must be burst, closed or open, not 'wavy'"),
        ({"load": "open"}, "an open load needs a rate, in requests a second"),
        ({"rate": 2.0, "load": "closed"}, "a rate makes an open load, and the load is to be closed"),
        ({"rate": -1.0, "load": "open"}, "the rate must be a number of requests a second above 0, not -1.0"),
        (
            {"rate": 2.0, "load": "open", "concurrency": 4},
            "a load at a rate has no number of streams: as many are open as it takes",
        ),
        ({"requests": 9}, "a burst has as many requests as streams: their number goes with other loads"),
        (
            {"requests": 9, "load": "closed", "concurrency": (2, 4)},
            "9 requests are too few for 4 streams: the first and the last of each are not counted, "
            "so 12 are needed",
        ),
        ({"until": 1.5}, "passes cannot go on until 150%: give a share such as 3%"),
        (
            {"budget_s": 60.0},
            "a budget ends passes that go on until an interval is narrow: say which",
        ),
    ],
)
def test_what_cannot_be_measured(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan(**given)
    assert str(error.value) == sentence


def test_each_combination_is_a_cell_and_one_number_will_do() -> None:
    plan = Plan(pp=512, tg=[16, 32], concurrency=(1, 2))
    assert plan.cells == tuple(Cell(pp=512, tg=tg, concurrency=c) for tg in (16, 32) for c in (1, 2))


def test_each_load_has_its_requests() -> None:
    closed = Plan(load="closed", concurrency=(1, 8)).cells
    assert [(c.concurrency, c.requests) for c in closed] == [(1, 10), (8, 80)]
    opened = Plan(load="open", rate=(0.5, 2), requests=7).cells
    assert [(c.concurrency, c.rate, c.requests) for c in opened] == [(0, 0.5, 7), (0, 2, 7)]
    assert [str(c) for c in (closed[1], opened[0])] == [
        "pp2048 tg128, 8 streams kept busy",
        "pp2048 tg128, 0.5 requests/s",
    ]


def test_the_two_shapes_of_depth_are_cells_of_their_own_and_never_one() -> None:
    cells = Plan(pp=(64, 128), depth=(0, 512), depth_shape=("ctx", "suffix")).cells
    assert [str(c) for c in cells] == [
        "pp64 tg128",
        "pp128 tg128",
        "ctx512 tg128",  # all of it is the prompt: the other lengths do not apply
        "pp64 tg128 at depth 512",
        "pp128 tg128 at depth 512",
    ]
    assert [(c.prompt_tokens, c.warm_tokens) for c in cells] == [
        (64, 0), (128, 0), (512, 0), (576, 512), (640, 512),
    ]  # fmt: skip


def test_the_depth_sweep_of_the_seed_is_a_preset() -> None:
    cells = Plan(**PRESETS["seed-depth"]).cells
    assert len(cells) == 4 * 2 * 2
    assert str(cells[-1]) == "pp2048 tg128 at depth 262144, 2 streams"
    assert str(cells[-4]) == "ctx262144 tg128"


def test_plans_that_name_no_comparison_do_not_share_prompts() -> None:
    assert Plan().comparison != Plan().comparison
