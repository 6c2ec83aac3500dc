"""The hooks: what `lanes` asks of llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import lanes
from lanes.errors import StagingError
from lanes.types import (
    CanaryRung,
    Cause,
    Dialect,
    Endpoint,
    EngineInfo,
    Files,
    Finding,
    HttpRung,
    Ladder,
    Lane,
    Launch,
    Node,
    Phase,
    Placement,
    Postmortem,
    Process,
    Rehearsal,
    Staged,
    StageItem,
    StopPlan,
    Trial,
)

from lanes_llamacpp import causes, checks, models, servers
from lanes_llamacpp.options import LlamaOptions

LANES_CONTRACT = 1

_DIALECT = Dialect(
    name="llama.cpp",
    tokenize_path="/tokenize",
    tokenize_field="content",
    metrics_path="/metrics",
    metrics={
        "running": "llamacpp:requests_processing",
        "queued": "llamacpp:requests_deferred",
        "generated": "llamacpp:tokens_predicted_total",
    },
    fixed_length={"ignore_eos": True},
)


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    """The version is xllamacpp's; that of a llama-server is not known before it runs."""
    return EngineInfo(
        version=servers.xllamacpp_version(),
        summary="llama.cpp: serves GGUF models on CPUs and GPUs, through llama-server or xllamacpp",
        homepage="https://github.com/ggml-org/llama.cpp",
        recipes="lanes_llamacpp.recipes",
        default_recipes={1: ("gemma3-270m",)},
    )


@lanes.hookimpl
def lanes_options() -> type[LlamaOptions]:
    return LlamaOptions


@lanes.hookimpl
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:
    return tuple(checks.check(lane, nodes))


@lanes.hookimpl
def lanes_stage(lane: Lane) -> Sequence[StageItem]:
    """The model's files; the first is `model`, and llama.cpp finds the others of a split one beside it."""
    if lane.recipe is None:
        return ()
    try:
        found = models.find(lane.recipe.model)
    except models.NotFound as error:
        raise StagingError(str(error), error.next_step) from None
    return tuple(
        Files(
            name="model" if number == 1 else f"model-{number}",
            parts=tuple(str(part) for part in file.parts),
            target=file.name,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            in_place=file.whole,
        )
        for number, file in enumerate(found, 1)
    )


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    options = lane.options if isinstance(lane.options, LlamaOptions) else LlamaOptions()
    server = servers.find(options) or servers.bundled()
    recipe = lane.recipe
    model = recipe.model.name if recipe else lane.name
    argv = [*server.argv, "-m", staged.paths.get("model", "MODEL"), "--alias", model]
    argv += ["--host", placement.http_host, "--port", placement.http_port]
    argv += ["-c", str(options.total_context), "-np", str(options.parallel)]
    argv += ["-b", str(options.batch), "-ub", str(options.ubatch)]
    defaults = LlamaOptions()
    # What is left at its default is left out, so that older builds start too.
    for flag, name in (
        ("-t", "threads"),
        ("-ngl", "gpu_layers"),
        ("-fa", "flash_attention"),
        ("-ctk", "cache_type_k"),
        ("-ctv", "cache_type_v"),
    ):
        value = getattr(options, name)
        if value != getattr(defaults, name):
            argv += [flag, str(value)]
    argv += ["--metrics", "--jinja", *options.extra_args]
    everywhere = placement.http_host in ("0.0.0.0", "::")
    host = placement.head.address if everywhere else placement.http_host
    return Launch(
        processes=(Process(rank=0, argv=tuple(argv), env=dict(recipe.env) if recipe else {}),),
        endpoint=Endpoint(url=f"http://{host}:{placement.http_port}", model=model, dialect=_DIALECT),
    )


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    """While the model loads, the port is open and /health answers 503. llama.cpp logs nothing meanwhile,
    so that silence is no sign of trouble."""
    return Ladder(
        rungs=(HttpRung(name="loaded", path="/health", loading=frozenset({503})), CanaryRung()),
        deadline_s=1800.0,
        phases=(
            Phase(name="loading the model", pattern=r"loading model"),
            Phase(name="making the slots", pattern=r"initializing, n_slots|initializing slots"),
            Phase(name="model loaded", pattern=r"model loaded"),
            Phase(name="listening", pattern=r"listening on http"),
        ),
    )


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    return causes.diagnose(postmortem)


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    return StopPlan(order=(0,), signal="SIGTERM", patience_s=10.0)


_FLAGS = """
import sys
from lanes_llamacpp.server import check_flags
check_flags(sys.argv[1:])
print('the flags are understood')
"""


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """Our own server has its parser asked; llama.cpp makes no weights up."""
    (process,) = launch.processes
    own = servers.bundled().argv
    bundled = process.argv[: len(own)] == own
    trial = Trial(argv=(own[0], "-P", "-c", _FLAGS, *process.argv[len(own) :]), deadline_s=60.0)
    return Rehearsal(
        flags=(trial,) if bundled else "llama-server reads its flags only when it starts",
        kernels="llama.cpp has no small check of its kernels",
        dummy="llama.cpp has no dummy weights: `lanes serve` tries it with its own",
    )
