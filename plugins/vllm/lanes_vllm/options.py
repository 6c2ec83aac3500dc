"""What a recipe may set under `[options]`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

import attrs

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]

_ADDRESS = re.compile(r"\S+:\d{1,5}")


def _at_least(least: int) -> Validator:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and value < least:
            raise ValueError(f"should be at least {least}, not {value}")

    return check


def _share(_: Any, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value <= 1:
        raise ValueError(f"should be more than 0 and at most 1, not {value}")


def _json(_: Any, attribute: attrs.Attribute[Any], value: str | None) -> None:
    try:
        made = {} if value is None else json.loads(value)
    except ValueError as error:
        raise ValueError(f"should be JSON, and {error}") from None
    if not isinstance(made, dict):
        raise ValueError(f"should be a JSON object, not {value}")


def _address(_: Any, attribute: attrs.Attribute[Any], value: str) -> None:
    if value not in ("auto", "") and not _ADDRESS.fullmatch(value):
        raise ValueError(f'should be "auto", "" for none, or host:port, not {value!r}')


def _words(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError("should be the program and its first words, not an empty list")


@attrs.frozen(kw_only=True)
class VllmOptions:
    """How vLLM serves the model. An option is vLLM's flag of the same name (`max_model_len` is
    `--max-model-len`) and is left out where it is not set, so that vLLM chooses.

    `tensor_parallel_size`, `pipeline_parallel_size`, `data_parallel_size`: over how many GPUs tensors,
    layers and requests are spread, in the whole lane.
    `enable_expert_parallel`: spread a mixture's experts too.
    `max_model_len`: tokens that one request may use; default: the model's.
    `gpu_memory_utilization`: share of the GPU's memory that vLLM takes.
    `max_num_seqs`: requests served at the same time.
    `max_num_batched_tokens`: tokens in one batch.
    `kv_cache_dtype`, `quantization`: how the cache and the weights are stored.
    `load_format`: the files that hold the weights.
    `safetensors_load_strategy`: how they are read; "prefetch" is for network file systems.
    `enforce_eager`: no CUDA graphs.
    `speculative_config`: how tokens are drafted, as JSON.
    `reasoning_parser`, `tool_call_parser`: how thoughts and tool calls are told apart.
    `enable_auto_tool_choice`: let the model choose tools; needs `tool_call_parser`.
    `distributed_executor_backend`: "mp" (each node starts its own processes) or "ray".
    `trust_remote_code`: run the code that comes with the model.
    `rendezvous`: where several nodes meet: "auto" (the head and a free port), "host:port", or "" for
    nowhere.
    `command`: the program, before the model and its flags.
    `version`: the vLLM inside the image, where its tag does not tell.
    `extra_args`: more flags, as they are; they are held against those that vLLM has.
    """

    tensor_parallel_size: int = attrs.field(default=1, validator=_at_least(1))
    pipeline_parallel_size: int = attrs.field(default=1, validator=_at_least(1))
    data_parallel_size: int = attrs.field(default=1, validator=_at_least(1))
    enable_expert_parallel: bool = False
    max_model_len: int | None = attrs.field(default=None, validator=_at_least(1))
    gpu_memory_utilization: float | None = attrs.field(default=None, validator=_share)
    max_num_seqs: int | None = attrs.field(default=None, validator=_at_least(1))
    max_num_batched_tokens: int | None = attrs.field(default=None, validator=_at_least(1))
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    safetensors_load_strategy: Literal["lazy", "eager", "prefetch", "torchao"] | None = None
    enforce_eager: bool = False
    speculative_config: str | None = attrs.field(default=None, validator=_json)
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    enable_auto_tool_choice: bool = False
    distributed_executor_backend: Literal["mp", "ray"] | None = None
    trust_remote_code: bool = False
    rendezvous: str = attrs.field(default="auto", validator=_address)
    command: tuple[str, ...] = attrs.field(default=("vllm", "serve"), validator=_words)
    version: str | None = None
    extra_args: tuple[str, ...] = ()


NOT_FLAGS = frozenset({"rendezvous", "command", "version", "extra_args"})
"""Options that are ours, not vLLM's."""
