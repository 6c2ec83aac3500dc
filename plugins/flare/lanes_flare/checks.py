"""Can this lane run here? Findings about the hardware, the server, the command and the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from lanes import gates
from lanes.types import Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

from lanes_flare import observed, processes, template
from lanes_flare.options import FlareOptions

_PACKAGES = "FLARE's packages, of which there is one for GB10 and one for GB202"
_SERVER = "FLARE's description: an OpenAI-compatible server"
_NEXT = (
    "take them from your package's documentation: command is the program and its words, with {port} and "
    "{rank} and such where only a launch knows them"
)


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """All findings about a lane, with or without a recipe, on real or hypothetical nodes."""
    options, recipe = processes.options_of(lane), lane.recipe
    here = lane.cluster == "local" and not any(node.hypothetical for node in nodes)
    yield from _gpus(nodes)
    yield gates.serving(available=True, reason="FLARE serves OpenAI's API", source=_SERVER)
    yield from observed.check(lane, nodes)
    if recipe is None:
        return
    yield _command(recipe, options)
    if here and options.command and recipe.image is None:
        step = "correct the option command, or give the recipe an image"
        yield gates.program(options.command[0], next_step=step)
    yield from _ranks(recipe, options)
    yield from _model(recipe, options, here)


def _gpus(nodes: Sequence[Node]) -> Iterator[Finding]:
    for finding in (
        gates.sm_only(
            nodes,
            ("12.0", "12.1"),
            source=_PACKAGES,
            why="its kernels are made for those two",
            recheck_when="FLARE is published for another GPU",
        ),
        gates.gpu_count(nodes, 1, source="a rank on each node"),
    ):
        if finding is not None:
            yield finding


def _command(recipe: Recipe, options: FlareOptions) -> Finding:
    """FLARE's flags, port and health path are not known here: the recipe says them, or nobody does."""
    missing = " and ".join(options.missing)
    return Finding(
        question="command",
        kind=Kind.CONFIGURATION,
        verdict=Verdict.UNRUNNABLE if missing else Verdict.RUNNABLE,
        reason=f"the recipe does not set {missing}, FLARE's own are not published, and lanes does not guess"
        if missing
        else "the recipe says how FLARE is started, and where it answers",
        source=recipe.origin or recipe.name,
        next_step=_NEXT if missing else None,
        recheck_when="FLARE's command line is published" if missing else None,
    )


def _ranks(recipe: Recipe, options: FlareOptions) -> Iterator[Finding]:
    own = template.names((*options.command, *options.rank_env.values())) & {"rank", "address"}
    if recipe.nodes > 1 and options.command and not own:
        yield Finding(
            question="ranks",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNKNOWN,
            reason=f"all {recipe.nodes} processes get the same command, so whether each learns which rank it is "
            "is not known",
            source=recipe.origin or recipe.name,
            next_step="put {rank} into the option command or rank_env",
        )


def _model(recipe: Recipe, options: FlareOptions, here: bool) -> Iterator[Finding]:
    path = recipe.model.path
    if "model" in template.names((*options.command, *options.rank_env.values())):
        if path is None and recipe.model.repo is None:
            yield _no_model(
                "the command asks for {model}, and the recipe does not say where that is",
                recipe,
                "set model.path, a folder on the nodes, or model.repo",
            )
        elif path is not None and recipe.image is not None and not _mounted(path, recipe):
            yield _no_model(
                f"{path} lies under no mount of the recipe, so the container does not see it",
                recipe,
                "add a mount with that target, or the folder above it",
            )
    if path is not None and recipe.image is None and here and not Path(path).exists():
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
