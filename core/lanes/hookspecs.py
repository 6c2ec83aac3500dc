"""The contract between core and plugins: eleven hooks.

Engines register under the entry-point group `lanes.engines` (the entry's name is the value of
`--engine`), everything else under `lanes.extensions`. A plugin is a module (or any object) that
carries `LANES_CONTRACT = 1` and functions marked with `@lanes.hookimpl`. An implementation may take
fewer arguments than its specification, so the specifications can grow without breaking it.

The hooks of a lane (`lanes_engine`, `lanes_options`, `lanes_stage`, `lanes_launch`,
`lanes_healthcheck`, `lanes_stop`, `lanes_rehearsal`) are asked of the lane's one engine. An extension may wrap them
(`@lanes.hookimpl(wrapper=True)`), never implement them plainly. `lanes_check` and `lanes_diagnose`
are collected from the engine and all extensions; `lanes_instruments` and `lanes_executors` from
extensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from lanes.instruments.base import Instrument
    from lanes.types import (
        Cause,
        EngineInfo,
        Finding,
        Ladder,
        Lane,
        Launch,
        Node,
        Placement,
        Postmortem,
        Rehearsal,
        Staged,
        StageItem,
        StopPlan,
    )

CONTRACT = 1
"""The contract's version. A plugin made for another one is refused at load, with the reason."""

PROJECT = "lanes"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def lanes_engine() -> EngineInfo:  # type: ignore[empty-body]
    """Introduce the engine.

    Called whenever engines are listed; must be quick and import nothing heavy.
    """


@hookspec(firstresult=True)
def lanes_options() -> type[Any]:  # type: ignore[empty-body]
    """Return the attrs class of the options that a recipe may set under `[options]`.

    Called before a recipe is read. Types and defaults are the documentation: unknown keys and wrong
    types are refused by core with the key's path. None means that there are no options.
    """


@hookspec
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:  # type: ignore[empty-body]
    """Say whether this lane can run on these nodes, before anything is downloaded.

    Called first in every run, and by reports for hypothetical nodes and for a lane without a recipe.
    Results of the engine and of all extensions are collected. An empty list means that nothing is
    known. A check that raises becomes an UNKNOWN finding.
    """


@hookspec(firstresult=True)
def lanes_stage(lane: Lane) -> Sequence[StageItem]:  # type: ignore[empty-body]
    """Return the files, images, builds and host scripts that the lane needs on its nodes.

    Called once after the check. An empty list means that nothing is needed.
    """


@hookspec(firstresult=True)
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:  # type: ignore[empty-body]
    """Return the process of every rank, and the endpoint where the lane will answer.

    Called after staging, and with symbolic values by dry runs; the result depends on the arguments
    alone.
    """


@hookspec(firstresult=True)
def lanes_healthcheck(lane: Lane) -> Ladder:  # type: ignore[empty-body]
    """Return what ready looks like, as data. Called once, after the launch."""


@hookspec
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:  # type: ignore[empty-body]
    """Name the causes of a failure, the first cause first.

    Called when a process of the lane died, or when the lane never became ready, or stopped
    answering. Collected from the engine and all extensions. An empty list means that nothing known
    was found: core then shows the log's last telling lines.
    """


@hookspec(firstresult=True)
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:  # type: ignore[empty-body]
    """Return how to stop the lane.

    Called at launch and kept with the running lane, so that `lanes stop` works when the plugin was
    upgraded, broken or uninstalled since.
    """


@hookspec(firstresult=True)
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:  # type: ignore[empty-body]
    """Return how the lane is rehearsed: its flags, its kernels, and itself with dummy weights.

    Called by `lanes rehearse` with the launch that is rehearsed, before anything is started, and with symbolic values by
    dry runs. An engine that does not implement it can only be rehearsed as far as its image and its network.
    """


@hookspec
def lanes_instruments() -> Sequence[Instrument]:  # type: ignore[empty-body]
    """Return further ways to measure a lane that serves (`lanes.Instrument`).

    Called when a command that measures reads its `--instrument`; must be quick and import nothing
    heavy. Collected from all extensions. A name that is taken is refused.
    """


@hookspec
def lanes_executors() -> Sequence[Any]:  # type: ignore[empty-body]
    """Return further ways to start and stop processes on nodes. Collected from all extensions."""
