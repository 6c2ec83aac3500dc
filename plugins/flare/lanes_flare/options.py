"""What a recipe may set under `[options]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from lanes_flare import template


def _template(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for word in value:
        if (wrong := template.problem(word)) is not None:
            raise ValueError(wrong)


def _port(_: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and not 0 < value < 65536:
        raise ValueError(f"should be a port from 1 to 65535, not {value}")


def _path(_: Any, attribute: attrs.Attribute[Any], value: str | None) -> None:
    if value is not None and not value.startswith("/"):
        raise ValueError(f"should be a path that begins with a slash, not {value!r}")


@attrs.frozen(kw_only=True)
class FlareOptions:
    """How FLARE is started. Its flags, its port and its health path are published nowhere, so there is no
    default for any of them: the recipe says what its package needs.

    `command`: the words of the command, with placeholders that each rank fills in: {model}, {name}, {host},
    {port}, {rank}, {nnodes}, {address}, {head}, {rendezvous_port}. A brace that is meant is doubled.
    `port`: the port on which rank 0 listens, where the command does not say {port}.
    `health`: the path on rank 0 that answers 200 when the lane is ready.
    """

    command: tuple[str, ...] = attrs.field(default=(), validator=_template)
    port: int | None = attrs.field(default=None, validator=_port)
    health: str | None = attrs.field(default=None, validator=_path)

    def missing(self) -> Iterator[tuple[str, str]]:
        """What nobody but the recipe can say, and does not: the option, and what to set."""
        if not self.command:
            yield "command", "the words that start FLARE, with placeholders such as {model} and {port}"
        elif self.port is None and "port" not in template.names(self.command):
            yield "port", "the port that FLARE listens on, or pass {port} in command"
        if self.health is None:
            yield "health", "the path that answers 200 when FLARE is ready"
