"""What a cluster's file says of its nodes' containers, over what engines ask for: some hosts refuse some limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from lanes.types import Container, Launch

ULIMITS = (
    "core", "cpu", "data", "fsize", "locks", "msgqueue", "nice", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack",
)  # fmt: skip
"""Docker's names of limits that have no key of their own here."""

HOST = "host"
"""Asks for nothing: the limit stays what the host's engine gives every container."""


def _at_least(least: float) -> Any:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, int | float) and value < least:
            raise ValueError(f"should be at least {least:,}, not {value:,}")

    return check


def _devices(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...] | None) -> None:
    for one in value or ():
        if not one.startswith("/dev/"):
            raise ValueError(f"should be paths below /dev, not {one!r}")


def _ulimits(_: Any, attribute: attrs.Attribute[Any], value: Mapping[str, int]) -> None:
    for name, limit in value.items():
        if name not in ULIMITS:
            own = f"; {name} has a key of its own" if name in ("memlock", "nofile") else ""
            raise ValueError(f"there is no {name!r} here, but {', '.join(ULIMITS)}{own}")
        if limit < -1:
            raise ValueError(f"{name} should be -1 (no limit) or more, not {limit}")


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of a node's containers; those that are not given are as the engine asks.

    `memlock_bytes` (-1: no limit), `nofile`, `shm_bytes`, `memory_bytes` and `cpus` (a number of them) may be "host", which
    asks for nothing; `ulimits` are further ones by Docker's names; `gpus` is a number, or "all"; `devices` are instead of
    the engine's.
    """

    memlock_bytes: int | Literal["host"] | None = attrs.field(default=None, validator=_at_least(-1))
    nofile: int | Literal["host"] | None = attrs.field(default=None, validator=_at_least(1))
    shm_bytes: int | Literal["host"] | None = attrs.field(default=None, validator=_at_least(1))
    # The Docker engine takes no less.
    memory_bytes: int | Literal["host"] | None = attrs.field(default=None, validator=_at_least(6 << 20))
    cpus: float | Literal["host"] | None = attrs.field(default=None, validator=_at_least(0.01))
    gpus: int | Literal["all"] | None = attrs.field(default=None, validator=_at_least(0))
    devices: tuple[str, ...] | None = attrs.field(default=None, validator=_devices)
    ulimits: Mapping[str, int] = attrs.field(factory=dict, validator=_ulimits)

    def over(self, other: Limits) -> Limits:
        """These, and of the other those that these do not name."""
        own = {key: value for key, value in _given(self).items() if key != "ulimits"}
        return attrs.evolve(other, **own, ulimits={**other.ulimits, **self.ulimits})


def _given(limits: Limits) -> dict[str, Any]:
    values = attrs.asdict(limits, recurse=False)
    return {key: value for key, value in values.items() if value is not None}


def applied(launch: Launch, limits: Sequence[Limits], names: Sequence[str]) -> tuple[Launch, tuple[str, ...]]:
    """The launch with its containers limited as the nodes of its ranks say (`limits` and the nodes' `names` by rank), and
    a sentence for each limit that is another one now."""
    processes, said = [], []
    for process in launch.processes:
        if process.container is not None and process.rank < len(limits):
            container = _limited(process.container, limits[process.rank])
            said += _changes(process.container, container, process.rank, names[process.rank])
            process = attrs.evolve(process, container=container)
        processes.append(process)
    return attrs.evolve(launch, processes=tuple(processes)), tuple(said)


def _limited(container: Container, limits: Limits) -> Container:
    given: dict[str, Any] = {key: None if value == HOST else value for key, value in _given(limits).items()}
    given["ulimits"] = {**container.ulimits, **limits.ulimits}
    return attrs.evolve(container, **given)


def _changes(before: Container, after: Container, rank: int, node: str) -> list[str]:
    said = []
    for field in attrs.fields(Limits):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            said.append(f"{field.name} of rank {rank} on {node}: {_shown(new)} instead of {_shown(old)}")
    return said


def _shown(value: Any) -> str:
    if value is None:
        return "the host's own"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={limit}" for name, limit in value.items()) or "none"
    return (", ".join(value) or "none") if isinstance(value, tuple) else str(value)
