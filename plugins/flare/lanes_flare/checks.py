"""Can this lane run here? Findings about the hardware, the server, and what the recipe has to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import attrs
from lanes import gates
from lanes.types import Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

from lanes_flare import observed, processes, template

_DOCUMENTATION = "NVIDIA's documentation of flare-local-inference and spark-local-inference"


def check(lane: Lane, nodes: Sequence[Node]) -> Iterator[Finding]:
    """All findings about a lane, with or without a recipe, on real or hypothetical nodes."""
    here = lane.cluster == "local" and not any(node.hypothetical for node in nodes)
    code = gates.sm_only(
        nodes,
        ("12.0", "12.1"),
        source=_DOCUMENTATION,
        why="its packages are for gb202 and gb10 alone",
        next_step="use GPUs of compute capability 12.0 or 12.1 (RTX 5090, RTX PRO 6000, DGX Spark)",
    )
    if code is not None:
        yield code
    yield gates.serving(available=True, reason="FLARE serves OpenAI's API", source=_DOCUMENTATION)
    yield from observed.check(lane, nodes)
    if lane.recipe is not None:
        yield from _command(lane, lane.recipe, here)
        yield from _model(lane, lane.recipe, here)


def _command(lane: Lane, recipe: Recipe, here: bool) -> Iterator[Finding]:
    """What nobody publishes the recipe has to say; nothing is guessed."""
    options = processes.options_of(lane)
    lacking = dict(options.missing())
    if lacking:
        yield _no(
            "command",
            f"the recipe does not set {' and '.join(lacking)}, and {processes.UNPUBLISHED}",
            recipe,
            "set under [options] " + "; ".join(f"{name}: {what}" for name, what in lacking.items()),
        )
    if not options.command:
        return
    if recipe.nodes > 1 and "rank" not in template.names(options.command):
        unlike = _no(
            "rank",
            "the command says nothing of {rank}, so every node starts the same",
            recipe,
            "pass {rank}, unless FLARE learns its rank in another way",
        )
        yield attrs.evolve(unlike, verdict=Verdict.UNKNOWN)
    program = options.command[0]
    if here and recipe.image is None and not template.names((program,)):
        yield gates.program(program, next_step="install FLARE, correct command, or give the recipe an image")


def _model(lane: Lane, recipe: Recipe, here: bool) -> Iterator[Finding]:
    """Where the model is matters to a command that asks for it."""
    if "model" not in template.names(processes.options_of(lane).command):
        return
    path, step = recipe.model.path, "set model.path, a folder on the nodes, or model.repo"
    if path is None and recipe.model.repo is None:
        yield _no("model", f"the recipe does not say where the model {recipe.model.name!r} is", recipe, step)
    elif path is not None and recipe.image is not None and not _mounted(path, recipe):
        yield _no(
            "model",
            f"{path} lies under no mount of the recipe, so the container does not see it",
            recipe,
            "add a mount with that target, or the folder above it",
        )
    elif path is not None and recipe.image is None and here and not Path(path).exists():
        missing = _no("model", f"there is no {path}", recipe, "correct model.path")
        yield attrs.evolve(missing, evidence=Evidence.PROBED)


def _mounted(path: str, recipe: Recipe) -> bool:
    return any(PurePosixPath(path).is_relative_to(mount.target) for mount in recipe.mounts)


def _no(question: str, reason: str, recipe: Recipe, next_step: str) -> Finding:
    return Finding(
        question=question,
        kind=Kind.CONFIGURATION,
        verdict=Verdict.UNRUNNABLE,
        reason=reason,
        source=recipe.origin or recipe.name,
        next_step=next_step,
    )
