"""What is sent: the fields of a chat request in the endpoint's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from lanes.types import Endpoint


@frozen(kw_only=True)
class Form:
    """Writes the requests for one endpoint.

    `plain` leaves out what a strict server may refuse: the seed, the fields that fix the answer's
    length, and continuous usage.
    """

    endpoint: Endpoint
    seed: int
    plain: bool = False

    def body(self, content: str, max_tokens: int) -> dict[str, Any]:
        """Return the JSON of a streamed chat with one user message."""
        dialect = self.endpoint.dialect
        limit = "max_completion_tokens" if "max_tokens" in dialect.forbidden else "max_tokens"
        options: dict[str, Any] = {"include_usage": True}
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            limit: max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        if not self.plain:
            options["continuous_usage_stats"] = True
            body["seed"] = self.seed
        body |= dialect.extra
        if not self.plain:
            body |= dialect.fixed_length
        return {
            key: _without(value, key, dialect.forbidden)
            for key, value in body.items()
            if key not in dialect.forbidden
        }

    @property
    def optional(self) -> tuple[str, ...]:
        """The fields that a plain form leaves out, by name."""
        names = ("seed", *self.endpoint.dialect.fixed_length, "stream_options.continuous_usage_stats")
        return tuple(name for name in names if name not in self.endpoint.dialect.forbidden)

    @property
    def fixes_length(self) -> bool:
        """Whether the server is made to give exactly `max_tokens` tokens."""
        fixing = set(self.endpoint.dialect.fixed_length) - self.endpoint.dialect.forbidden
        return bool(fixing) and not self.plain


def _without(value: Any, path: str, forbidden: frozenset[str]) -> Any:
    """Return `value` without the keys that `forbidden` names as `path.key`."""
    if not isinstance(value, Mapping):
        return value
    return {key: inner for key, inner in value.items() if f"{path}.{key}" not in forbidden}
