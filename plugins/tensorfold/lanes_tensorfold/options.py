"""What a recipe may set under `[options]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _at_least_1(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, int) and value < 1:
        raise ValueError(f"should be at least 1, not {value}")


def _one_or_two(_: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value not in (1, 2):
        raise ValueError(f"should be 1 or 2, the only ways in which TensorFold splits a model, not {value}")


def _words(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError("should be the program and its first words, not an empty list")


def _no_key(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if any(word.split("=")[0] == "--api-key" for word in value):
        raise ValueError("should not hold --api-key: every user of the machine can read a command line")


@attrs.frozen(kw_only=True)
class TensorFoldOptions:
    """How TensorFold serves the model. An option is TensorFold's flag of the same name (`kv_dtype` is
    `--kv-dtype`) and is left out where it is not set, so that TensorFold chooses.

    `tp`: GPUs that the model is split over, one a node; default: the recipe's number of nodes.
    `context`: tokens that one request may use.
    `max_tokens`: tokens of a reply where the request names no limit; default: 4096.
    `reasoning_effort`: how much the model thinks where the request does not say.
    `parallel`: requests served at the same time; default: "auto", which is one at a time with CUDA.
    `kv_dtype`: how the KV cache is stored; "fp8" with the patches for DeepSeek V4.1 only.
    `precision`: in which precision the model computes.
    `backend`: "cuda", "mlx" (Apple), or "auto" for what the machine has.
    `drafts`: draft tokens ahead and verify them.
    `metrics_open`: answer /metrics without the key that the other paths ask for.
    `command`: the program, before the model and its flags.
    `extra_args`: more flags, as they are.
    """

    tp: int | None = attrs.field(default=None, validator=_one_or_two)
    context: int | None = attrs.field(default=None, validator=_at_least_1)
    max_tokens: int | None = attrs.field(default=None, validator=_at_least_1)
    reasoning_effort: str | None = None
    parallel: int | Literal["auto"] | None = attrs.field(default=None, validator=_at_least_1)
    kv_dtype: Literal["bf16", "int8", "int4", "fp8"] | None = None
    precision: str | None = None
    backend: Literal["auto", "mlx", "cuda"] = "auto"
    drafts: bool = True
    metrics_open: bool = False
    command: tuple[str, ...] = attrs.field(default=("tensorfold", "serve"), validator=_words)
    extra_args: tuple[str, ...] = attrs.field(default=(), validator=_no_key)
