"""When to stop: passes go on until the headline figures are known well enough, or a budget is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lanes.bench.cells import Pass
from lanes.bench.plan import Plan
from lanes.bench.statistics import median_interval

_LEAST = 6
"""Fewer passes have no 95% interval at all."""
_HEADLINES = (("prefill_tps", "ttft_s"), ("decode_tps", "stream_decode_tps"))
"""Of each row the first figure that there is: prefill, or under an open load the time to the first token;
and decode."""
_WORDS = {
    "prefill_tps": "prefill",
    "ttft_s": "ttft",
    "decode_tps": "decode",
    "stream_decode_tps": "decode",
}


class Until:
    """Says after each measured pass of a cell whether it was the last, and in the end what ended it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.monotonic()
        self.note: str | None = None

    @property
    def least(self) -> int:
        """The fewest passes."""
        if self._plan.until is None:
            return self._plan.passes
        return max(self._plan.passes, min(_LEAST, self._plan.max_passes))

    def enough(self, passes: Sequence[Pass]) -> bool:
        """Whether to stop after these measured passes."""
        goal, budget_s = self._plan.until, self._plan.budget_s
        if goal is None:
            return len(passes) >= self._plan.passes
        if any(p.error for p in passes) and len(passes) >= self._plan.passes:
            return True  # no interval makes up for a request that failed
        wide = {name: off for name, off in widths(passes).items() if off > goal}
        spent_s = time.monotonic() - self._began
        made = f"{len(passes)} pass{'es' if len(passes) > 1 else ''}"
        if len(passes) >= self.least and not wide and passes[-1].figures:
            self.note = f"ended after {made}, for the intervals were within {_percent(goal)} of the medians"
            return True
        left = ", ".join(f"{_WORDS[name]} is still within {_percent(off)} only" for name, off in wide.items())
        still = f"; {left}" if left else "; too few passes for an interval"
        if budget_s is not None and spent_s >= budget_s:
            self.note = f"ended after {made}, for the budget of {budget_s:g} s was spent{still}"
            return True
        if len(passes) >= self._plan.max_passes:
            self.note = f"ended after {made}, the most that were allowed{still}"
            return True
        return False


def widths(passes: Sequence[Pass]) -> dict[str, float]:
    """Return how far the interval of each headline figure reaches from its median, as a share:
    max(hi - median, median - lo) / median."""
    found = {}
    for names in _HEADLINES:
        for name in names:
            values = [p.figures[name] for p in passes if name in p.figures]
            if values:
                one = median_interval(values)
                if one.median > 0:
                    found[name] = max(one.hi - one.median, one.median - one.lo) / one.median
                break
    return found


def _percent(value: float) -> str:
    return f"{value * 100:.2g}%"
