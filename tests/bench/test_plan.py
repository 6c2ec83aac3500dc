"""A plan that cannot be measured is refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from lanes.bench.plan import Cell, Plan


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"pp": (0,)}, "the prompt's length (pp) must be a whole number of at least 1, not 0"),
        ({"tg": ()}, "the answer's length (tg) is missing"),
        ({"depth": (-1,)}, "the depth must be a whole number of at least 0, not -1"),
        ({"concurrency": (2, 2)}, "the number of streams (concurrency) names a value twice"),
        ({"passes": 0}, "the number of passes must be a whole number of at least 1, not 0"),
        ({"warmups": 1.5}, "the number of warm-ups must be a whole number of at least 0, not 1.5"),
    ],
)
def test_what_cannot_be_measured(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan(**given)
    assert str(error.value) == sentence


def test_each_combination_is_a_cell_and_one_number_will_do() -> None:
    plan = Plan(pp=512, tg=[16, 32], concurrency=(1, 2))
    assert plan.cells == tuple(Cell(pp=512, tg=tg, concurrency=c) for tg in (16, 32) for c in (1, 2))


def test_plans_that_name_no_comparison_do_not_share_prompts() -> None:
    assert Plan().comparison != Plan().comparison
