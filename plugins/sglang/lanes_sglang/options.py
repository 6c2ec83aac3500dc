"""What a recipe may set under `[options]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]

_ADDRESS = re.compile(r"\S+:\d{1,5}")


def _at_least(least: int) -> Validator:
    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and value < least:
            raise ValueError(f"should be at least {least}, not {value}")

    return check


def _chunk(_: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1 and value != -1:
        raise ValueError(f"should be at least 1, or -1 for no chunks, not {value}")


def _share(_: Any, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise ValueError(f"should be more than 0 and less than 1, not {value}")


def _address(_: Any, attribute: attrs.Attribute[Any], value: str) -> None:
    if value not in ("auto", "") and not _ADDRESS.fullmatch(value):
        raise ValueError(f'should be "auto", "" for none, or host:port, not {value!r}')


def _words(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError("should be the program and its first words, not an empty list")


@attrs.frozen(kw_only=True)
class SglangOptions:
    """How SGLang serves the model. An option is SGLang's flag of the same name (`tp_size` is `--tp-size`)
    and is left out where it is not set, so that SGLang chooses.

    `tp_size`, `pp_size`, `ep_size`, `dp_size`, `attn_dp_size`: over how many GPUs tensors, layers,
    experts, requests and attention are spread, in the whole lane.
    `context_length`: tokens that one request may use; default: the model's.
    `chunked_prefill_size`: tokens of a prompt taken at once, -1 for all; default: by the GPU's memory.
    `max_prefill_tokens`: tokens of all prompts taken at once.
    `max_running_requests`: requests served at the same time; default: as many as memory allows.
    `mem_fraction_static`: share of the GPU's memory for weights and KV cache.
    `page_size`: tokens in a page of the KV cache.
    `kv_cache_dtype`, `quantization`: how the cache and the weights are stored.
    `load_format`: the files that hold the weights (`safetensors`, `dummy`, ...).
    `weight_loader_prefetch_checkpoints`: read shards ahead, for network file systems.
    `weight_loader_disable_mmap`: read the shards instead of mapping them.
    `weight_loader_drop_cache_after_load`: give the page cache back once loaded.
    `attention_backend`, `moe_runner_backend`, `fp8_gemm_backend`: which kernels run.
    `speculative_algorithm`: how tokens are drafted (`DSPARK`, `EAGLE`, ...).
    `speculative_dspark_block_size`: tokens that DSPARK drafts at once; default: the checkpoint's.
    `enable_deepseek_v4_fp4_indexer`: the indexer of DeepSeek V4 in FP4.
    `reasoning_parser`, `tool_call_parser`: how thoughts and tool calls are told apart.
    `watchdog_timeout`: seconds that one batch may take before SGLang ends itself.
    `dist_timeout`: seconds that ranks wait for one another at the start.
    `trust_remote_code`: run the code that comes with the model.
    `skip_server_warmup`: be ready without having answered a first request.
    `enable_metrics`: answer /metrics; the benchmark reads it.
    `rendezvous`: where several nodes meet: "auto" (the head and a free port), "host:port", or "" for
    nowhere.
    `command`: the program, before its flags.
    `version`: the SGLang inside the image, where its tag does not tell.
    `extra_args`: more flags, as they are; they are held against those that SGLang has.
    """

    tp_size: int = attrs.field(default=1, validator=_at_least(1))
    pp_size: int = attrs.field(default=1, validator=_at_least(1))
    ep_size: int = attrs.field(default=1, validator=_at_least(1))
    dp_size: int = attrs.field(default=1, validator=_at_least(1))
    attn_dp_size: int = attrs.field(default=1, validator=_at_least(1))
    context_length: int | None = attrs.field(default=None, validator=_at_least(1))
    chunked_prefill_size: int | None = attrs.field(default=None, validator=_chunk)
    max_prefill_tokens: int | None = attrs.field(default=None, validator=_at_least(1))
    max_running_requests: int | None = attrs.field(default=None, validator=_at_least(1))
    mem_fraction_static: float | None = attrs.field(default=None, validator=_share)
    page_size: int | None = attrs.field(default=None, validator=_at_least(1))
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    weight_loader_prefetch_checkpoints: bool = False
    weight_loader_disable_mmap: bool = False
    weight_loader_drop_cache_after_load: bool = False
    attention_backend: str | None = None
    moe_runner_backend: str | None = None
    fp8_gemm_backend: str | None = None
    speculative_algorithm: str | None = None
    speculative_dspark_block_size: int | None = attrs.field(default=None, validator=_at_least(1))
    enable_deepseek_v4_fp4_indexer: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    watchdog_timeout: float | None = attrs.field(default=None, validator=_at_least(1))
    dist_timeout: int | None = attrs.field(default=None, validator=_at_least(1))
    trust_remote_code: bool = False
    skip_server_warmup: bool = False
    enable_metrics: bool = True
    rendezvous: str = attrs.field(default="auto", validator=_address)
    command: tuple[str, ...] = attrs.field(default=("sglang", "serve"), validator=_words)
    version: str | None = None
    extra_args: tuple[str, ...] = ()


NOT_FLAGS = frozenset({"rendezvous", "command", "version", "extra_args"})
"""Options that are ours, not SGLang's."""
