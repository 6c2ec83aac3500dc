"""Can this lane run here? Findings about the hardware, the server, the model, the flags and their
couplings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from lanes import gates
from lanes.types import Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

from lanes_sglang import arguments, couplings, flags, installed, observed
from lanes_sglang.flags import VERSION, Fault, Settings

_KERNELS = {
    "x86_64": ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_120a"),
    "aarch64": ("sm_90", "sm_100f", "sm_110a", "sm_120a", "sm_121a"),
}
_KERNELS_SOURCE = "sglang-kernel 0.4.10, read in its wheels"
_PACKAGE = f"the package sglang {VERSION}"
_CUDA = "13.0"
_TAG = re.compile(r":v?(\d+\.\d+\.\d+)\b")


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """All findings about a lane, with or without a recipe, on real or hypothetical nodes."""
    here = lane.cluster == "local" and not any(node.hypothetical for node in nodes)
    yield from _hardware(nodes)
    yield from _server(lane, here)
    if lane.recipe is None:
        return
    settings = flags.read(
        arguments.flags(
            lane, rank=0, ranks=lane.recipe.nodes, port="30000", rendezvous="head:20000", host="0.0.0.0"
        )
    )
    version = _version(lane, here)
    yield from _flags(settings, version)
    yield _release(lane.recipe, version)
    yield from _model(lane.recipe, here)
    yield from _room(lane.recipe, settings, nodes)
    yield from couplings.check(lane.recipe, settings, nodes)
    yield from observed.check(lane.recipe, settings, nodes)


def _hardware(nodes: Sequence[Node]) -> Iterator[Finding]:
    amd = [node for node in nodes if _is_amd(node)]
    nvidia = [node for node in nodes if not _is_amd(node)]
    found = [gates.host_arch(nodes, tuple(_KERNELS), source=_PACKAGE)]
    if nvidia:
        found += (
            gates.sm(nvidia, _KERNELS, source=_KERNELS_SOURCE, engine_version=VERSION, what="sglang-kernel"),
            gates.cuda(nvidia, _CUDA, source=_PACKAGE),
        )
    yield from (finding for finding in found if finding is not None)
    for node in amd:
        yield Finding(
            question="sm",
            verdict=Verdict.UNKNOWN,
            reason=f"SGLang has builds of its own for AMD GPUs, and what those hold for {node.name} is not known",
            source=_PACKAGE,
            engine_version=VERSION,
            recheck_when="a build for ROCm was read, or run",
        )


def _is_amd(node: Node) -> bool:
    return bool(node.gpus) and all((gpu.target or "").startswith("gfx") for gpu in node.gpus or ())


def _room(recipe: Recipe, settings: Settings, nodes: Sequence[Node]) -> Iterator[Finding]:
    """GPUs, memory and disks against what the recipe asks for."""
    gpus = couplings.size(settings, "tp_size") * couplings.size(settings, "pp_size")
    per_node = -(-gpus // couplings.ranks(settings))
    found = [
        gates.gpu_count(nodes, per_node, source=f"tp_size x pp_size = {gpus}"),
    ]
    if recipe.model.size_bytes is not None:
        found.append(
            gates.memory(
                nodes,
                # The KV cache takes what is left, however much that is.
                weights_bytes=recipe.model.size_bytes // gpus,
                gpus_used=per_node,
                source=f"{recipe.name}, model.size_bytes over {gpus} GPUs",
            )
        )
    found += (
        gates.disk(
            nodes,
            needed_bytes=copy.size_bytes,
            path=copy.target,
            source=f"{recipe.name}, staging {copy.name}",
        )
        for copy in recipe.staging
        if copy.size_bytes is not None
    )
    yield from (finding for finding in found if finding is not None)


def _server(lane: Lane, here: bool) -> Iterator[Finding]:
    reason = "SGLang serves OpenAI's API"
    yield gates.serving(available=True, reason=reason, source=_PACKAGE, engine_version=VERSION)
    if here and lane.recipe is not None and lane.recipe.image is None:
        command = arguments.options_of(lane).command[0]
        step = "pip install sglang, or give the recipe an image"
        yield gates.program(command, engine_version=installed.version(), next_step=step)


def _version(lane: Lane, here: bool) -> str | None:
    """The SGLang that will run, as far as that can be told."""
    options, image = arguments.options_of(lane), lane.recipe.image if lane.recipe else None
    if options.version is not None:
        return options.version.removeprefix("v")
    if image is not None:
        tag = _TAG.search(image)
        return tag[1] if tag else None
    return installed.version() if here else None


def _release(recipe: Recipe, version: str | None) -> Finding:
    where = recipe.image or "its environment"
    if version == VERSION:
        verdict, reason = Verdict.RUNNABLE, f"{where} holds SGLang {version}, whose flags are known here"
    elif version is None:
        verdict = Verdict.UNKNOWN
        reason = f"which SGLang {where} holds is not known, and the flags were held against {VERSION}"
    else:
        verdict = Verdict.UNKNOWN
        reason = f"{where} holds SGLang {version}, and the flags were held against {VERSION}"
    return Finding(
        question="version",
        kind=Kind.CONFIGURATION,
        verdict=verdict,
        reason=reason,
        source=f"the parser of SGLang {VERSION}",
        engine_version=version,
        next_step='say what it holds with the option version, such as "0.5.23"' if version is None else None,
    )


def _flags(settings: Settings, version: str | None) -> Iterator[Finding]:
    for problem in settings.problems:
        verdict = _gravity(problem.fault, version)
        yield Finding(
            question="flags",
            kind=Kind.CONFIGURATION,
            verdict=verdict,
            reason=problem.reason,
            source=f"the parser of SGLang {VERSION}",
            engine_version=version,
            next_step=problem.next_step,
            recheck_when="the flags of that version are known" if verdict is Verdict.UNKNOWN else None,
        )
    if not settings.problems:
        yield Finding(
            question="flags",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.RUNNABLE,
            reason=f"SGLang {VERSION} takes all {len(settings.values)} flags of this lane",
            source=f"the parser of SGLang {VERSION}",
            engine_version=version,
        )


def _gravity(fault: Fault, version: str | None) -> Verdict:
    """Another version may have the flag, or the choice: then nobody knows."""
    if fault is Fault.REPEATED:
        return Verdict.DEGRADED
    if fault is Fault.UNKNOWN and version != VERSION:
        return Verdict.UNKNOWN
    if fault is Fault.CHOICE and version not in (VERSION, None):
        return Verdict.UNKNOWN
    return Verdict.UNRUNNABLE


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
    return Finding(
        question="model",
        kind=Kind.CONFIGURATION,
        verdict=Verdict.UNRUNNABLE,
        reason=reason,
        source=recipe.origin or recipe.name,
        evidence=evidence,
        next_step=next_step,
    )
