"""What to measure: a grid of cells, how often, and how long to wait for an answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Literal

from attrs import Attribute, field, frozen

from lanes.bench.slo import Slo

Load = Literal["burst", "closed", "open"]
"""How requests come: all streams at once; each stream anew as soon as its answer ended; or at a rate,
whether answers come or not."""
Shape = Literal["suffix", "ctx"]
"""What a depth means: a cached prefix before the prompt, or a cold prompt of that length."""

_OPEN_REQUESTS = 100
_STREAM_REQUESTS = 10
_LEAST_PER_STREAM = 3
"""The first and the last request of a stream are ramp; one at least should remain."""


@frozen(kw_only=True)
class Limits:
    """How long to wait, in seconds: for a connection, for the first token of an answer (the first byte
    where it is no stream), for the next one after it."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    stall_s: float = 120.0


@frozen(kw_only=True)
class Cell:
    """One point of the grid.

    `pp` tokens of prompt (the whole message as the server counts it, with its chat template), `tg`
    tokens of answer. With `shape` "suffix" the prompt comes after a cached prefix of `depth` tokens;
    with "ctx" the prompt is the depth, all of it cold, and `pp` is 0.

    A "burst" sends `concurrency` requests at once; a "closed" load keeps as many streams busy until
    `requests` were sent; an "open" one sends `requests` at `rate` a second, and its `concurrency` is
    0: as many as it takes.
    """

    pp: int
    tg: int
    depth: int = 0
    concurrency: int = 1
    shape: Shape = "suffix"
    load: Load = "burst"
    rate: float | None = None
    requests: int | None = None

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt, cached ones included."""
        return self.pp + self.depth

    @property
    def warm_tokens(self) -> int:
        """Those that the server should have in its cache."""
        return self.depth if self.shape == "suffix" else 0

    def __str__(self) -> str:
        prompt = f"ctx{self.depth}" if self.shape == "ctx" else f"pp{self.pp}"
        depth = f" at depth {self.depth}" if self.warm_tokens else ""
        streams = f", {self.concurrency} streams" if self.concurrency > 1 else ""
        if self.load == "closed":
            streams = f", {self.concurrency} stream{'s' if self.concurrency > 1 else ''} kept busy"
        elif self.load == "open":
            streams = f", {self.rate:g} requests/s"
        return f"{prompt} tg{self.tg}{depth}{streams}"


def _values(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, int | float | str) else tuple(value)


_NAMES = {
    "pp": "the prompt's length (pp)",
    "tg": "the answer's length (tg)",
    "depth": "the depth",
    "depth_shape": "the depth's shape",
    "concurrency": "the number of streams (concurrency)",
    "rate": "the rate",
    "requests": "the number of requests",
    "passes": "the number of passes",
    "warmups": "the number of warm-ups",
    "max_passes": "the most passes",
}


def _distinct(name: str, values: tuple[Any, ...]) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{name} names a value twice")


def _at_least(least: int) -> Any:
    def check(_: Plan, attribute: Attribute[Any], value: Any) -> None:
        name = _NAMES[attribute.name]
        values = value if isinstance(value, tuple) else (value,)
        if not values:
            raise ValueError(f"{name} is missing")
        for one in values:
            if isinstance(one, bool) or not isinstance(one, int) or one < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {one!r}")
        _distinct(name, values)

    return check


def _optional(check: Any) -> Any:
    def unless_none(plan: Plan, attribute: Attribute[Any], value: Any) -> None:
        if value is not None:
            check(plan, attribute, value)

    return unless_none


def _one_of(*allowed: str) -> Any:
    def check(_: Plan, attribute: Attribute[Any], value: tuple[str, ...]) -> None:
        name = _NAMES[attribute.name]
        if not value:
            raise ValueError(f"{name} is missing")
        for one in value:
            if one not in allowed:
                raise ValueError(f"{name} must be {' or '.join(allowed)}, not {one!r}")
        _distinct(name, value)

    return check


def _rates(_: Plan, attribute: Attribute[Any], value: tuple[float, ...]) -> None:
    for one in value:
        if isinstance(one, bool) or not 0 < one < float("inf"):
            raise ValueError(f"the rate must be a number of requests a second above 0, not {one!r}")
    _distinct("the rate", value)


@frozen(kw_only=True)
class Plan:
    """The grid and its passes.

    Each combination of `pp`, `tg`, `depth`, `depth_shape` and `concurrency` is a cell; with `rate`,
    an open load, each rate stands for a number of streams. `requests` is the length of a pass of a
    closed or an open load: 10 a stream, or 100, where it is not given.

    `passes` are measured after `warmups`. With `until`, a share such as 0.03, passes go on until the
    intervals of the headline figures reach no further than that from their medians, or until
    `budget_s` seconds or `max_passes` are spent on the cell. `slo` is what a request should meet.

    `comparison` and `block` make the prompts: the same for every lane of one block of a comparison,
    fresh in each block. A server that has seen them once may answer from its cache, so use a new
    block for each launch or run. `seed` is sent to the server.

    Raises ValueError, with one sentence, for what cannot be measured.
    """

    pp: tuple[int, ...] = field(default=(2048,), converter=_values, validator=_at_least(1))
    tg: tuple[int, ...] = field(default=(128,), converter=_values, validator=_at_least(1))
    depth: tuple[int, ...] = field(default=(0,), converter=_values, validator=_at_least(0))
    depth_shape: tuple[Shape, ...] = field(
        default=("suffix",), converter=_values, validator=_one_of("suffix", "ctx")
    )
    concurrency: tuple[int, ...] = field(default=(1,), converter=_values, validator=_at_least(1))
    load: Load = field(default="burst")
    rate: tuple[float, ...] = field(default=(), converter=_values, validator=_rates)
    requests: int | None = field(default=None, validator=_optional(_at_least(1)))
    passes: int = field(default=5, validator=_at_least(1))
    warmups: int = field(default=2, validator=_at_least(0))
    until: float | None = None
    budget_s: float | None = None
    max_passes: int = field(default=100, validator=_at_least(1))
    slo: Slo | None = None
    comparison: str = field(factory=lambda: secrets.token_hex(8))
    block: int = 0
    seed: int = 42
    limits: Limits = field(factory=Limits)

    def __attrs_post_init__(self) -> None:
        if self.load not in ("burst", "closed", "open"):
            raise ValueError(f"the load must be burst, closed or open, not {self.load!r}")
        if self.load == "open" and not self.rate:
            raise ValueError("an open load needs a rate, in requests a second")
        if self.rate and self.load != "open":
            raise ValueError(f"a rate makes an open load, and the load is to be {self.load}")
        if self.rate and self.concurrency != (1,):
            raise ValueError("a load at a rate has no number of streams: as many are open as it takes")
        if self.requests is not None:
            if self.load == "burst":
                raise ValueError(
                    "a burst has as many requests as streams: their number goes with other loads"
                )
            most = max(self.concurrency)
            if self.load == "closed" and self.requests < _LEAST_PER_STREAM * most:
                raise ValueError(
                    f"{self.requests} requests are too few for {most} streams: the first and the last of "
                    f"each are not counted, so {_LEAST_PER_STREAM * most} are needed"
                )
        if self.until is not None and not 0 < self.until < 1:
            raise ValueError(f"passes cannot go on until {self.until:.0%}: give a share such as 3%")
        if self.budget_s is not None and self.until is None:
            raise ValueError("a budget ends passes that go on until an interval is narrow: say which")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells in the order in which they are measured."""
        return tuple(
            Cell(pp=pp, tg=tg, depth=depth, shape=shape, **load)
            for depth in self.depth
            for shape in (self.depth_shape if depth else ("suffix",))
            for pp in (self.pp if shape == "suffix" else (0,))
            for tg in self.tg
            for load in self._loads()
        )

    def _loads(self) -> Iterable[dict[str, Any]]:
        if self.load == "open":
            requests = self.requests or _OPEN_REQUESTS
            return [{"load": "open", "concurrency": 0, "rate": r, "requests": requests} for r in self.rate]
        if self.load == "burst":
            return [{"concurrency": streams} for streams in self.concurrency]
        return [
            {"load": "closed", "concurrency": c, "requests": self.requests or _STREAM_REQUESTS * c}
            for c in self.concurrency
        ]


PRESETS: dict[str, dict[str, Any]] = {
    "seed-depth": {
        "pp": (2048,),
        "tg": (128,),
        "depth": (16384, 65536, 131072, 262144),
        "depth_shape": ("ctx", "suffix"),
        "concurrency": (1, 2),
        "passes": 2,
        "warmups": 0,
    },
}
"""Plans by name. `seed-depth`: a long context read whole, and a short prompt after it, for one stream and
for two, to 262,144 tokens."""
