"""Can this lane run here? Findings about the hardware, the server, the model and the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import attrs
from lanes import gates
from lanes.types import Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

from lanes_tensorfold import observed, processes
from lanes_tensorfold.models import is_deepseek_v41

VERSION = "0.6.0"
_README = f"TensorFold {VERSION}, README"
_PARSER = f"TensorFold {VERSION}, the parser of `tensorfold serve`"
_PATCHES = "jayleaton/deepseek-v41-tensorfold-spark"

# 8.9 to 10.x and 12.x are compiled.
_CODES = ("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
_NEVER_RUN = frozenset({"8.9", "9.0", "10.0"})

_FREE_BYTES = 104 * gates.GIB


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """All findings about a lane, with or without a recipe, on real or hypothetical nodes."""
    here = lane.cluster == "local" and not any(node.hypothetical for node in nodes)
    yield from _gpus(lane, nodes)
    yield from _nodes(lane, nodes)
    yield from _server(lane, here)
    if lane.recipe is not None:
        yield from _configuration(lane, lane.recipe)
        yield from _model(lane.recipe, here)


def _gpus(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    if processes.options_of(lane).backend == "mlx":
        yield from map(_apple, nodes)
        return
    code = gates.sm(
        nodes,
        _CODES,
        source=_README,
        engine_version=VERSION,
        what=f"TensorFold {VERSION}",
        next_step="use NVIDIA GPUs of compute capability 8.9 to 10.x or 12.x, best 12.1 (DGX Spark)",
    )
    if code is not None:
        yield _tried(code, nodes)
    yield from observed.check(lane, nodes)


def _tried(code: Finding, nodes: Sequence[Node]) -> Finding:
    """That code is compiled for a GPU is no proof where nobody has run it."""
    untried = sorted({gpu.target for node in nodes for gpu in node.gpus or () if gpu.target in _NEVER_RUN})
    if code.verdict is not Verdict.RUNNABLE or not untried:
        return code
    return attrs.evolve(
        code,
        verdict=Verdict.UNKNOWN,
        reason=f"TensorFold {VERSION} is compiled for compute capability {' and '.join(untried)}, "
        "and was never run there",
        recheck_when="somebody has run it there",
    )


def _apple(node: Node) -> Finding:
    other = node.os is not None and node.os.lower() not in ("darwin", "macos")
    return Finding(
        question="sm",
        verdict=Verdict.UNRUNNABLE if other else Verdict.UNKNOWN,
        reason=f"the backend mlx needs an Apple GPU, and {node.name} "
        + (f"runs {node.os}" if other else "was not asked whether it has one"),
        source=_README,
        engine_version=VERSION,
        next_step='set backend to "cuda", or leave it out' if other else None,
    )


def _nodes(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    found = []
    if is_deepseek_v41(lane.recipe):
        found.append(gates.node_count(nodes, (2,), source=_PATCHES, engine_version=VERSION))
        found.append(
            gates.free_memory(
                nodes,
                _FREE_BYTES,
                source=f"{_PATCHES}: MemFree of 104 GiB on both nodes, without the page cache",
                engine_version=VERSION,
                next_step="stop what else uses memory on both nodes and drop the page cache, which is GPU "
                "memory on a DGX Spark",
            )
        )
    elif lane.recipe is not None:
        found.append(gates.node_count(nodes, (1, 2), source=_PARSER, engine_version=VERSION))
    yield from (finding for finding in found if finding is not None)


def _server(lane: Lane, here: bool) -> Iterator[Finding]:
    yield gates.serving(
        available=True,
        reason="TensorFold serves OpenAI's API, on rank 0",
        source=_PARSER,
        engine_version=VERSION,
    )
    if here and lane.recipe is not None and lane.recipe.image is None:
        step = "install TensorFold from its repository (it is not on PyPI), or give the recipe an image"
        yield gates.program(processes.options_of(lane).command[0], next_step=step)


def _configuration(lane: Lane, recipe: Recipe) -> Iterator[Finding]:
    options = processes.options_of(lane)
    v41 = is_deepseek_v41(recipe)
    if v41 and recipe.image is None:
        yield _no(
            "patches",
            f"stock TensorFold {VERSION} has no CUDA engine for DeepSeek V4.1, and the recipe names no image "
            "that is patched",
            _PATCHES,
            f"name an image with the patches of {_PATCHES} in the recipe",
        )
    if options.tp is not None and options.tp != recipe.nodes:
        yield _no(
            "tp",
            f"tp is {options.tp} and nodes is {recipe.nodes}: TensorFold splits a model over one GPU a machine",
            _PARSER,
            "leave tp out, it follows nodes",
        )
    if options.kv_dtype == "fp8" and not v41:
        yield _no(
            "kv-dtype",
            f"stock TensorFold {VERSION} has no KV cache in fp8, that came with the patches for DeepSeek V4.1",
            _PARSER,
            'choose "bf16", "int8" or "int4"',
        )


def _model(recipe: Recipe, here: bool) -> Iterator[Finding]:
    path, step = recipe.model.path, "set model.path, a folder on the nodes, or model.repo"
    if path is None and recipe.model.repo is None:
        yield _no_model(f"the recipe does not say where the model {recipe.model.name!r} is", recipe, step)
    elif path is not None and recipe.image is not None and not _mounted(path, recipe):
        yield _no_model(
            f"{path} lies under no mount of the recipe, so the container does not see it",
            recipe,
            "add a mount with that target, or the folder above it",
        )
    elif path is not None and recipe.image is None and here and not Path(path).exists():
        yield _no_model(f"there is no {path}", recipe, "correct model.path", Evidence.PROBED)


def _mounted(path: str, recipe: Recipe) -> bool:
    return any(PurePosixPath(path).is_relative_to(mount.target) for mount in recipe.mounts)


def _no_model(reason: str, recipe: Recipe, next_step: str, evidence: Evidence = Evidence.DECLARED) -> Finding:
    return attrs.evolve(_no("model", reason, recipe.origin or recipe.name, next_step), evidence=evidence)


def _no(question: str, reason: str, source: str, next_step: str) -> Finding:
    return Finding(
        question=question,
        kind=Kind.CONFIGURATION,
        verdict=Verdict.UNRUNNABLE,
        reason=reason,
        source=source,
        engine_version=VERSION,
        next_step=next_step,
    )
