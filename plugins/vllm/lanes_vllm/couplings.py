"""Settings that exclude each other: what vLLM would refuse once every node has started, and what it does
not check at all."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lanes.types import Finding, Kind, Recipe, Verdict

from lanes_vllm.flags import VERSION, Settings

_CHECKED = f"vLLM {VERSION} checks it when it starts"
_UNCHECKED = f"vLLM {VERSION} does not check it"
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
READY_TIMEOUT_S = 600


_PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)


def check(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    """Findings about the lane's settings, as its whole command line says them."""
    for rule in (_spread, _rendezvous, _tools, _ready_timeout, _allocator):
        yield from rule(recipe, settings)


def size(settings: Settings, dest: str) -> int:
    """A size of parallelism: 1 where it is not set, or not a number (which is another finding)."""
    return max(settings.number(dest) or 1, 1)


def ranks(settings: Settings) -> int:
    """How many nodes the command line speaks of."""
    return size(settings, "nnodes")


def world(settings: Settings) -> int:
    """GPUs that the lane uses, on all nodes."""
    return math.prod(size(settings, dest) for dest in _PARALLEL)


def _spread(_: Recipe, settings: Settings) -> Iterator[Finding]:
    gpus, nnodes = world(settings), ranks(settings)
    if gpus % nnodes:
        yield _finding(
            "spread",
            Verdict.UNRUNNABLE,
            f"{gpus} GPUs (tensor x pipeline x data parallel) cannot be split over {nnodes} nodes",
            _CHECKED,
            f"choose a multiple of {nnodes}",
        )


def _rendezvous(_: Recipe, settings: Settings) -> Iterator[Finding]:
    if ranks(settings) == 1:
        return
    if settings.text("distributed_executor_backend") == "ray":
        yield _finding(
            "rendezvous",
            Verdict.UNRUNNABLE,
            "with ray the nodes meet in a Ray cluster, which this plugin does not start",
            "lanes-vllm",
            'set distributed_executor_backend to "mp"',
        )
    elif settings.text("master_addr") is None:
        yield _finding(
            "rendezvous",
            Verdict.UNRUNNABLE,
            f"the lane has {ranks(settings)} nodes and no --master-addr, so each would wait for itself",
            _UNCHECKED,
            'set rendezvous to "auto", or to the head\'s host:port',
        )


def _tools(_: Recipe, settings: Settings) -> Iterator[Finding]:
    parser, chooses = settings.text("tool_call_parser"), settings.on("enable_auto_tool_choice")
    if chooses and parser is None:
        yield _finding(
            "tools",
            Verdict.UNRUNNABLE,
            "enable_auto_tool_choice needs a tool_call_parser",
            _CHECKED,
            "name the model's parser",
        )
    elif parser is not None and not chooses:
        yield _finding(
            "tools",
            Verdict.DEGRADED,
            f"tool_call_parser {parser} is not used for tools that the model chooses itself",
            f"vLLM {VERSION}: --tool-call-parser is for --enable-auto-tool-choice",
            "set enable_auto_tool_choice",
        )


def _ready_timeout(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    """A recipe that has patience for a long boot must give it to vLLM too."""
    said = recipe.env.get(READY_TIMEOUT, str(READY_TIMEOUT_S))
    if recipe.patience_s is None or not said.isdecimal() or int(said) >= recipe.patience_s:
        return
    yield _finding(
        "ready-timeout",
        Verdict.DEGRADED,
        f"the recipe has patience for {recipe.patience_s:g} s, and vLLM gives up after {said} s ({READY_TIMEOUT})",
        f"vLLM {VERSION}: {READY_TIMEOUT}",
        f'set {READY_TIMEOUT} = "{recipe.patience_s:.0f}" under [env]',
    )


def _allocator(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    expandable = "expandable_segments:true" in recipe.env.get("PYTORCH_CUDA_ALLOC_CONF", "").lower()
    if expandable and settings.text("quantization") == "exl3":
        yield _finding(
            "expandable-segments",
            Verdict.RUNNABLE,
            "expandable_segments:True goes well with EXL3 weights on vLLM (on SGLang it gives NaN)",
            "documentation of aidendle94/sparkrun-recipes",
        )


def _finding(
    question: str, verdict: Verdict, reason: str, source: str, next_step: str | None = None
) -> Finding:
    return Finding(
        question=question,
        kind=Kind.CONFIGURATION,
        verdict=verdict,
        reason=reason,
        source=source,
        engine_version=VERSION,
        next_step=next_step,
    )
