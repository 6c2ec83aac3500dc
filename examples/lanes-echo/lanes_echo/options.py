"""What a recipe may set under `[options]`."""

from __future__ import annotations

from typing import Any

import attrs


def _positive(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if value <= 0:
        raise ValueError(f"should be more than 0, not {value}")


def _not_negative(_: Any, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"should not be negative, but is {value}")


@attrs.frozen(kw_only=True)
class EchoOptions:
    """How the echo server behaves; its tokens are words.

    `tokens_per_second`: the rate at which each stream is answered.
    `prefill_tokens_per_second`: the rate at which a prompt is read before the first token.
    `load_seconds`: how long it pretends to load; it answers 503 until then.
    `parallel`: streams served at the same time; further requests wait.
    `dummy`: pretend to load nothing, as engines with dummy weights do.
    `extra_args`: more flags for the server, as they are.

    And how it fails, for tests of what is around it:
    `die_while_loading`: exit with code 3 in the middle of loading.
    `die_once`: exit with code 4 in the middle of loading, for a cause that passes, unless this file is there;
    it is then made.
    `never_healthy`: load for ever.
    `die_after_tokens`: exit with code 7 when this many tokens were sent, counted over all answers.
    `die_above_tokens`: exit with code 8 when a prompt is longer than that.
    `leak_above_tokens`: an answer to a longer prompt never gives back its place.
    `cut_stream_after`: close each stream's connection after this many tokens.
    `stall_stream_after`: send no more after this many tokens, and keep the connection open.
    `status_500_after`: answer 500 after this many answers (0: always).
    `ignore_stop`: take no notice of SIGTERM.
    `fail_kernels`: in a rehearsal, have no kernel for the device.
    """

    tokens_per_second: float = attrs.field(default=500.0, validator=_positive)
    prefill_tokens_per_second: float = attrs.field(default=50_000.0, validator=_positive)
    load_seconds: float = attrs.field(default=0.1, validator=_not_negative)
    parallel: int = attrs.field(default=4, validator=_positive)
    dummy: bool = False
    extra_args: tuple[str, ...] = ()
    die_while_loading: bool = False
    die_once: str | None = None
    never_healthy: bool = False
    die_after_tokens: int | None = attrs.field(default=None, validator=_not_negative)
    die_above_tokens: int | None = attrs.field(default=None, validator=_not_negative)
    leak_above_tokens: int | None = attrs.field(default=None, validator=_not_negative)
    cut_stream_after: int | None = attrs.field(default=None, validator=_not_negative)
    stall_stream_after: int | None = attrs.field(default=None, validator=_not_negative)
    status_500_after: int | None = attrs.field(default=None, validator=_not_negative)
    ignore_stop: bool = False
    fail_kernels: bool = False
