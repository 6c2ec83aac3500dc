"""A service-level objective: what one request should meet, and the share of those that did."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from lanes.bench.units import seconds

_FIGURES = {"ttft": "ttft_s", "itl": "itl_mean_s", "e2e": "e2e_s"}


@frozen(kw_only=True)
class Slo:
    """Upper bounds in seconds; None is no bound.

    `ttft_s` bounds the first token, counted from the schedule under an open load; `itl_s` the mean
    time of a token after the first delta, 1 / decode_tps, so that a stall within the answer counts;
    `e2e_s` the last token.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def met(self, figures: Mapping[str, float]) -> bool:
        """Whether a request with these figures met every bound; a figure that is missing met none."""
        bounds = {"ttft_s": self.ttft_s, "itl_mean_s": self.itl_s, "e2e_s": self.e2e_s}
        return all(
            bound is None or figures.get(name, float("inf")) <= bound for name, bound in bounds.items()
        )

    def __str__(self) -> str:
        bounds = {"ttft": self.ttft_s, "itl": self.itl_s, "e2e": self.e2e_s}
        return ",".join(f"{name}={_time(bound)}" for name, bound in bounds.items() if bound is not None)


def parse(text: str) -> Slo:
    """Return the objective in `ttft=2s,itl=50ms`. Raises ValueError, with one sentence."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, time = (piece.strip() for piece in part.partition("="))
        if not sign or name not in _FIGURES:
            raise ValueError(
                f"{part.strip()!r} is no objective: write ttft, itl or e2e, such as ttft=2s,itl=50ms"
            )
        if f"{name}_s" in found:
            raise ValueError(f"the objective names {name} twice")
        found[f"{name}_s"] = seconds(time)
    return Slo(**found)


def _time(value: float) -> str:
    return f"{value * 1e3:g}ms" if value < 1 else f"{value:g}s"
