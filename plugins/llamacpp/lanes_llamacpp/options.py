"""What a recipe may set under `[options]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


def _at_least(least: int) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, int) and value < least:
            raise ValueError(f"should be at least {least}, not {value}")

    return check


@attrs.frozen(kw_only=True)
class LlamaOptions:
    """How llama.cpp serves the model.

    `context`: tokens that one request may use, prompt and answer together. llama.cpp itself is told
    the whole of its KV cache (`-c`) and splits that among the slots, so it is given `context` times
    `parallel`.
    `parallel`: requests served at the same time (`-np`).
    `threads`: CPU threads (`-t`); default: llama.cpp's own choice.
    `batch`, `ubatch`: tokens of a prompt taken at once, logically and physically (`-b`, `-ub`).
    `gpu_layers`: layers kept on GPUs (`-ngl`): a number, "auto" (as many as fit) or "all".
    `flash_attention`: "on", "off", or "auto" (`-fa`).
    `cache_type_k`, `cache_type_v`: how keys and values are stored (`-ctk`, `-ctv`).
    `server`: a `llama-server`, by path or by its name on PATH; default: `llama-server` where PATH has
    one, else the Python package xllamacpp.
    `extra_args`: more arguments for `llama-server`, as they are; xllamacpp takes none.
    """

    context: int = attrs.field(default=8192, validator=_at_least(1))
    parallel: int = attrs.field(default=1, validator=_at_least(1))
    threads: int | None = attrs.field(default=None, validator=_at_least(1))
    batch: int = attrs.field(default=2048, validator=_at_least(1))
    ubatch: int = attrs.field(default=512, validator=_at_least(1))
    gpu_layers: int | Literal["auto", "all"] = attrs.field(default="auto", validator=_at_least(0))
    flash_attention: Literal["auto", "on", "off"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    server: str | None = None
    extra_args: tuple[str, ...] = ()

    @property
    def total_context(self) -> int:
        """Tokens in the whole KV cache: what llama.cpp calls `-c`."""
        return self.context * self.parallel
