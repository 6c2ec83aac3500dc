"""Can this lane run here? Findings about the hardware, the server, the model and the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lanes.types import Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

from lanes_llamacpp import gguf, models, servers
from lanes_llamacpp.options import LlamaOptions

_BUILD = "https://github.com/ggml-org/llama.cpp/blob/master/docs/build.md"
_WHEELS = "https://github.com/xorbitsai/xllamacpp"
_SERVER_README = "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"
_GIB = 2**30


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """All findings about a lane, with or without a recipe, on real or hypothetical nodes."""
    options = lane.options if isinstance(lane.options, LlamaOptions) else LlamaOptions()
    here = lane.cluster == "local" and not any(node.hypothetical for node in nodes)
    server = servers.find(options) if here else None
    if len(nodes) > 1:
        yield Finding(
            question="nodes",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"this plugin runs llama.cpp on one node, and the lane has {len(nodes)}",
            source="lanes-llamacpp",
            next_step="use a cluster of one node",
        )
    for node in nodes:
        yield _cpu(node)
        yield from _gpus(node, server, options)
    yield _server(server, options) if here else _declared_server()
    yield from _options(server, options)
    if lane.recipe is not None:
        yield from _model(lane.recipe, options, nodes, here)


def _cpu(node: Node) -> Finding:
    if node.arch is None:
        verdict, reason = Verdict.UNKNOWN, f"the processor's architecture of {node.name} is not known"
    elif node.arch.lower() in ("x86_64", "amd64", "aarch64", "arm64"):
        verdict, reason = Verdict.RUNNABLE, f"llama.cpp is built for {node.arch}"
    else:
        verdict, reason = Verdict.UNKNOWN, f"nothing is known of llama.cpp on {node.arch}"
    return Finding(question="cpu", verdict=verdict, reason=reason, source=_WHEELS)


def _gpus(node: Node, server: servers.Server | None, options: LlamaOptions) -> Iterator[Finding]:
    if not node.gpus or options.gpu_layers == 0:
        return
    names = ", ".join(sorted({gpu.name for gpu in node.gpus}))
    if server is not None and not server.native:
        yield Finding(
            question="gpu",
            verdict=Verdict.DEGRADED,
            reason=f"xllamacpp from PyPI has no GPU code, so {names} may stay unused",
            source=_WHEELS,
            evidence=Evidence.PROBED,
            engine_version=server.version,
            next_step="put a llama-server built for the GPU on PATH, or install a GPU build of xllamacpp",
        )
        return
    nvidia = all(gpu.target is not None and gpu.target[:1].isdigit() for gpu in node.gpus)
    yield Finding(
        question="gpu",
        verdict=Verdict.RUNNABLE if nvidia else Verdict.UNKNOWN,
        # Any capability: the build compiles for the one it is told, or carries PTX for later ones.
        reason=f"llama.cpp can be built for {names}"
        + ("" if nvidia else ", where its GPU target is supported"),
        source=_BUILD,
        recheck_when=None if nvidia else "a build for this GPU was run",
    )


def _server(server: servers.Server | None, options: LlamaOptions) -> Finding:
    if server is None:
        named = (
            f"there is no {options.server}"
            if options.server
            else "there is neither llama-server nor xllamacpp"
        )
        return Finding(
            question="program",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"{named} on this machine",
            source="PATH and the Python environment",
            evidence=Evidence.PROBED,
            next_step="correct the option server"
            if options.server
            else "pip install xllamacpp, or put llama-server on PATH",
        )
    return Finding(
        question="server",
        kind=Kind.SERVING,
        verdict=Verdict.RUNNABLE,
        reason=f"{server.title} serves OpenAI's API",
        source="PATH and the Python environment",
        evidence=Evidence.PROBED,
        engine_version=server.version,
    )


def _options(server: servers.Server | None, options: LlamaOptions) -> Iterator[Finding]:
    if server is not None and not server.native and options.extra_args:
        yield Finding(
            question="options",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"extra_args ({' '.join(options.extra_args)}) are for llama-server, and xllamacpp takes none",
            source="the recipe and this machine",
            evidence=Evidence.PROBED,
            next_step="put llama-server on PATH, name one with the option server, or remove extra_args",
        )
    if options.flash_attention == "off" and options.cache_type_v not in ("f32", "f16", "bf16"):
        yield Finding(
            question="flash-attention",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"a V cache of type {options.cache_type_v} needs flash attention, and that is off",
            source="llama.cpp: quantized V cache requires flash_attn to be enabled",
            next_step='set flash_attention = "auto", or cache_type_v = "f16"',
        )


def _declared_server() -> Finding:
    return Finding(
        question="server",
        kind=Kind.SERVING,
        verdict=Verdict.RUNNABLE,
        reason="llama.cpp's server speaks OpenAI's API",
        source=_SERVER_README,
    )


def _model(recipe: Recipe, options: LlamaOptions, nodes: Sequence[Node], here: bool) -> Iterator[Finding]:
    """Findings about the model's files, as far as they are on this machine.

    For a hypothetical or remote node a model that is not here says nothing.
    """
    where = recipe.model.path or recipe.model.package or recipe.origin
    try:
        files = models.find(recipe.model)
        headers = [_header(file) for file in files]
    except (models.NotFound, gguf.GgufError, OSError) as error:
        if here:
            yield _bad_model(where, error)
        return
    size = sum(file.size_bytes for file in files)
    yield Finding(
        question="model",
        kind=Kind.CONFIGURATION,
        verdict=Verdict.RUNNABLE,
        reason=f"{files[0].name} is a whole GGUF ({headers[0].architecture}, {size / _GIB:.2f} GiB)",
        source=where,
        evidence=Evidence.PROBED,
    )
    trained = headers[0].trained_context
    if trained is not None and options.context > trained:
        yield Finding(
            question="context",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.DEGRADED,
            reason=f"a context of {options.context} tokens is asked for, the model was trained for {trained}, and llama.cpp caps it there",
            source=f"{where}, {headers[0].architecture}.context_length",
            evidence=Evidence.PROBED,
            next_step=f"set context to {trained} or less",
        )
    for node in nodes:
        if (memory := _memory(node, size, headers[0], options, where)) is not None:
            yield memory


def _header(file: models.ModelFile) -> gguf.Gguf:
    try:
        return gguf.read(file.parts)
    except gguf.GgufError as error:
        raise gguf.GgufError(f"{file.name} cannot be served: {error}") from None


def _bad_model(where: str, error: Exception) -> Finding:
    if isinstance(error, models.NotFound):
        reason, step = str(error), error.next_step
    elif isinstance(error, gguf.GgufError):
        reason, step = str(error), "fetch the file again, or name another"
    else:
        reason, step = f"{where} cannot be read: {error}", "mend that, or name another file"
    return Finding(
        question="model",
        kind=Kind.CONFIGURATION,
        verdict=Verdict.UNRUNNABLE,
        reason=reason,
        source=where,
        evidence=Evidence.PROBED,
        next_step=step,
    )


def _memory(node: Node, weights: int, header: gguf.Gguf, options: LlamaOptions, where: str) -> Finding | None:
    """Hold weights and KV cache against the memory of the node and its GPUs; None where it is not known.

    Weights are mapped from the file, so that too little memory makes them slow, not impossible; the KV
    cache must be there as a whole.
    """
    if node.memory_bytes is None:
        return None
    have = node.memory_bytes + sum(gpu.memory_bytes or 0 for gpu in node.gpus or () if not gpu.unified)
    cache = header.kv_bytes(options.total_context, options.cache_type_k, options.cache_type_v) or 0
    sizes = (
        f"{weights / _GIB:.1f} GiB of weights and {'up to ' if header.sliding_window else ''}{cache / _GIB:.1f} GiB "
        f"of KV cache ({options.parallel} x {options.context} tokens), and {node.name} has {have / _GIB:.1f} GiB"
    )
    if cache > have and not header.sliding_window:
        verdict, step = Verdict.UNRUNNABLE, "lower context or parallel, or choose a smaller cache type"
    elif weights + cache > have:
        verdict, step = Verdict.DEGRADED, "lower context or parallel, or choose a smaller model"
    else:
        verdict, step = Verdict.RUNNABLE, None
    return Finding(
        question="memory",
        verdict=verdict,
        reason=f"the model needs {sizes}",
        source=where,
        evidence=Evidence.DECLARED if node.hypothetical else Evidence.PROBED,
        next_step=step,
    )
