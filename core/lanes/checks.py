"""Examine a lane: the engine's findings, those of extensions, and what core can say of any lane."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import attrs

from lanes.errors import LanesError
from lanes.plugins import Engine
from lanes.settings import how_to_allow
from lanes.types import Artifact, Evidence, Finding, Kind, Lane, Node, Recipe, Verdict

SM = "sm"
"""The question that GPU code answers; gates and scans use the same name, so that the stronger evidence wins."""


def examine(
    engine: Engine, lane: Lane, nodes: Sequence[Node], allowed: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Ask the engine and all extensions whether a lane can run on these nodes, and look ourselves.

    `allowed` are the names of host scripts that the user lets run. A check that raises or returns the
    wrong type becomes an UNKNOWN finding.
    """
    findings: list[Finding] = []
    for title, result in engine.collect("lanes_check", lane=lane, nodes=tuple(nodes)):
        if isinstance(result, Exception):
            findings.append(_failed(title, result))
        else:
            findings.extend(result)
    if lane.recipe is not None:
        findings += _cluster(lane.recipe, nodes)
        findings += _executor(lane.recipe, nodes)
        findings += _scripts(lane.recipe, nodes, allowed)
        findings += _artifacts(lane.recipe, nodes, findings)
    return tuple(findings)


def _failed(title: str, error: Exception) -> Finding:
    return Finding(
        question="check",
        verdict=Verdict.UNKNOWN,
        kind=Kind.CONFIGURATION,
        reason=f"the check of {title} failed: {error}",
        source=title,
        evidence=Evidence.OBSERVED,
    )


def _cluster(recipe: Recipe, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Are there as many nodes as the recipe asks for?"""
    if len(nodes) != recipe.nodes:
        yield Finding(
            question="cluster",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"the recipe is for {_count(recipe.nodes, 'node')}, and here {'is' if len(nodes) == 1 else 'are'} {len(nodes)}",
            source=recipe.origin or recipe.name,
            next_step="name a cluster of that size with --cluster, or hardware to ask about with --arch",
        )


def _executor(recipe: Recipe, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Is there a Docker engine where the recipe wants containers?"""
    missing = [node.name for node in nodes if not node.hypothetical and node.docker is None]
    if recipe.image is not None and missing:
        yield Finding(
            question="executor",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"the recipe names an image, and there is no Docker on {', '.join(missing)}",
            source=recipe.origin or recipe.name,
            evidence=Evidence.PROBED,
            next_step="install Docker there, or leave the image out",
        )


def _scripts(recipe: Recipe, nodes: Sequence[Node], allowed: Collection[str]) -> Iterator[Finding]:
    """Has the user allowed what the recipe wants run on the nodes themselves?"""
    refused = [script for script in recipe.scripts if script.name not in allowed]
    if refused and not all(node.hypothetical for node in nodes):
        wanted = " and ".join(f"{script.name} ({script.reason})" for script in refused)
        yield Finding(
            question="scripts",
            kind=Kind.CONFIGURATION,
            verdict=Verdict.UNRUNNABLE,
            reason=f"the recipe wants scripts run on its nodes, which nobody has allowed: {wanted}",
            source=recipe.origin or recipe.name,
            next_step=how_to_allow(script.name for script in refused),
        )


def _artifacts(recipe: Recipe, nodes: Sequence[Node], declared: Sequence[Finding]) -> Iterator[Finding]:
    """What the files that the recipe names really hold, for the GPUs of the nodes: PROBED."""
    for artifact in recipe.artifacts:
        try:
            yield from _scanned(artifact, nodes, declared)
        except LanesError as error:
            yield Finding(
                question="artifacts",
                kind=Kind.CONFIGURATION,
                verdict=Verdict.UNKNOWN,
                reason=f"what {artifact.path} holds is not known: {error.message}",
                source=recipe.origin or recipe.name,
                evidence=Evidence.PROBED,
                next_step=error.next_step,
            )


def _scanned(artifact: Artifact, nodes: Sequence[Node], declared: Sequence[Finding]) -> Iterator[Finding]:
    from lanes.hardware.scan import scan
    from lanes.hardware.targets import gpu_named, of_capability
    from lanes.hardware.verdict import verdict

    # By name first: GPUs of one capability differ, and only the name tells a GB10 from others.
    targets = {
        gpu.name: gpu_named(gpu.name) or of_capability(gpu.target)
        for node in nodes
        for gpu in node.gpus or ()
        if gpu.target
    }
    if not targets:
        return
    found = scan([artifact.path])
    for target in targets.values():
        for finding in verdict(found, target, artifact.decides or None).findings:
            table = next((f for f in declared if f.question == finding.question), None)
            if table is not None and table.verdict is not finding.verdict:
                told = f"{finding.reason}; the table declares {table.verdict.value}: {table.reason}"
                finding = attrs.evolve(finding, reason=told)
            yield finding


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
