"""What a recipe may set under `[options]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from lanes_flare import template


def _words(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if value and not value[0].strip():
        raise ValueError("should begin with the program's name, not with an empty word")
    if (problem := template.unknown(value)) is not None:
        raise ValueError(problem)


def _environment(_: Any, attribute: attrs.Attribute[Any], value: Mapping[str, str]) -> None:
    if (problem := template.unknown(value.values())) is not None:
        raise ValueError(problem)


def _port(_: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and not 1 <= value <= 65535:
        raise ValueError(f"should be from 1 to 65535, not {value}")


def _path(_: Any, attribute: attrs.Attribute[Any], value: str | None) -> None:
    if value is not None and not value.startswith("/"):
        raise ValueError(f"should be a path that begins with /, not {value!r}")


@attrs.frozen(kw_only=True)
class FlareOptions:
    """How FLARE is started. Its flags, its port and its health path are published nowhere that `lanes`
    knows of, so there is no default for any of them: take them from the documentation of your package.

    `command`: the program and its arguments, one word each, with placeholders for what only a launch
    knows: {host}, {port}, {head}, {rendezvous_port}, {rank}, {nnodes}, {address}, {interface}, {model},
    {name}.
    `rank_env`: environment that differs from rank to rank, with the same placeholders; what is the same
    for all belongs under `[env]`.
    `port`: the port on which rank 0 answers; needed where the command does not hold {port}.
    `health_path`: the path that answers 200 once the model is served.
    """

    command: tuple[str, ...] = attrs.field(default=(), validator=_words)
    rank_env: Mapping[str, str] = attrs.field(factory=dict, validator=_environment)
    port: int | None = attrs.field(default=None, validator=_port)
    health_path: str | None = attrs.field(default=None, validator=_path)

    @property
    def missing(self) -> tuple[str, ...]:
        """The options without which nobody can start FLARE and know when it is ready."""
        port = self.port is not None or "port" in template.names(self.command)
        said = {
            "command": bool(self.command),
            "port": port or not self.command,
            "health_path": self.health_path is not None,
        }
        return tuple(name for name, is_said in said.items() if not is_said)
