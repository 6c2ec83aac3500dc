"""The hooks: what `lanes` asks of an engine, answered with data."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import attrs
import lanes
from lanes.types import (
    CanaryRung,
    Cause,
    Dialect,
    Endpoint,
    EngineInfo,
    Evidence,
    Finding,
    HttpRung,
    Kind,
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
    Verdict,
)

import lanes_echo
from lanes_echo.options import EchoOptions

LANES_CONTRACT = 1


@lanes.hookimpl
def lanes_engine() -> EngineInfo:
    return EngineInfo(
        version=lanes_echo.__version__,
        summary="echoes the words of the prompt at a set pace, for tests and to learn from",
        recipes="lanes_echo.recipes",
        default_recipes={1: ("echo",)},
    )


@lanes.hookimpl
def lanes_options() -> type[EchoOptions]:
    return EchoOptions


@lanes.hookimpl
def lanes_check(lane: Lane, nodes: Sequence[Node]) -> Sequence[Finding]:
    """A server it has; hardware it needs none, but of a node that nobody described it does not say yes."""
    findings = [
        Finding(
            question="server",
            kind=Kind.SERVING,
            verdict=Verdict.RUNNABLE,
            reason="the plugin carries a server that speaks OpenAI's chat completions",
            source="lanes_echo.server",
        )
    ]
    for node in nodes:
        known = node.arch is not None
        findings.append(
            Finding(
                question="cpu",
                kind=Kind.HARDWARE,
                verdict=Verdict.RUNNABLE if known else Verdict.UNKNOWN,
                reason="it runs wherever Python does" if known else f"nothing is known of {node.name}",
                source="lanes_echo.server",
            )
        )
    if len(nodes) > 1:
        findings.append(
            Finding(
                question="nodes",
                kind=Kind.CONFIGURATION,
                verdict=Verdict.UNRUNNABLE,
                reason=f"echo runs on one node, and the lane has {len(nodes)}",
                source="lanes-echo",
                evidence=Evidence.DECLARED,
                next_step="use a cluster of one node",
            )
        )
    return findings


@lanes.hookimpl
def lanes_stage(lane: Lane) -> Sequence[StageItem]:
    """There is no model, so nothing needs to be brought to the node."""
    return ()


@lanes.hookimpl
def lanes_launch(lane: Lane, placement: Placement, staged: Staged) -> Launch:
    options = lane.options or EchoOptions()
    model = lane.recipe.model.name if lane.recipe else lane.name
    # -P: the folder that a person happens to stand in must not supply modules.
    argv = [sys.executable, "-P", "-m", "lanes_echo.server", "--alias", model]
    argv += ["--host", placement.http_host, "--port", placement.http_port]
    for name, value in attrs.asdict(options).items():
        flag = f"--{name.replace('_', '-')}"
        if name == "extra_args":
            argv += value
        elif value is True:
            argv.append(flag)
        elif value is not None and value is not False:
            argv += [flag, str(value)]
    return Launch(
        processes=(Process(rank=0, argv=tuple(argv), env=dict(lane.recipe.env) if lane.recipe else {}),),
        endpoint=Endpoint(
            url=f"http://{placement.http_host}:{placement.http_port}",
            model=model,
            dialect=Dialect(
                name="echo",
                tokenize_path="/tokenize",
                metrics_path="/metrics",
                metrics={"running": "echo:running", "queued": "echo:waiting"},
                fixed_length={"ignore_eos": True},
            ),
        ),
    )


@lanes.hookimpl
def lanes_healthcheck(lane: Lane) -> Ladder:
    return Ladder(
        rungs=(HttpRung(name="loaded", path="/health"), CanaryRung()),
        deadline_s=60.0,
        phases=(
            Phase(name="listening", pattern=r"listening on http"),
            Phase(name="loading", pattern=r"loaded (?P<percent>\d+)%"),
            Phase(name="ready", pattern=r"echo: ready"),
        ),
    )


CAUSES = (
    (
        re.compile(r"pretended memory does not suffice"),
        Cause(
            name="out-of-memory",
            meaning="echo ran out of the memory that it pretends to need",
            advice="set die_while_loading = false",
        ),
    ),
    (
        re.compile(r"no kernel image is available for this device"),
        Cause(
            name="no-kernels",
            meaning="echo was told to have no kernel for the device",
            advice="set fail_kernels = false",
        ),
    ),
    (
        re.compile(r"cannot listen on"),
        Cause(
            name="port-in-use",
            meaning="echo could not listen on its port",
            advice="stop the process that has the port, or let lanes choose one",
            transient=True,
        ),
    ),
    (
        re.compile(r"kernel timed out, as it was told to"),
        Cause(
            name="told-to-die-of-long-prompts",
            meaning="echo died of a prompt longer than die_above_tokens",
            advice="remove die_above_tokens from the recipe",
        ),
    ),
    (
        re.compile(r"a neighbour is in the way"),
        Cause(
            name="neighbour",
            meaning="echo made way for a neighbour that it pretends to have",
            advice="remove die_once from the recipe",
            transient=True,
        ),
    ),
    (
        re.compile(r"fatal: died, as it was told to"),
        Cause(
            name="told-to-die",
            meaning="echo died because die_after_tokens told it to",
            advice="remove die_after_tokens from the recipe",
        ),
    ),
)


@lanes.hookimpl
def lanes_diagnose(lane: Lane, postmortem: Postmortem) -> Sequence[Cause]:
    """Go through the log in order, so that the first cause comes first."""
    found = [
        attrs.evolve(cause, rank=rank, lines=(line,))
        for rank, lines in postmortem.logs.items()
        for line in lines
        for pattern, cause in CAUSES
        if pattern.search(line)
    ]
    return tuple({cause.name: cause for cause in reversed(found)}.values())[::-1]


@lanes.hookimpl
def lanes_stop(lane: Lane, launch: Launch) -> StopPlan:
    return StopPlan(order=(0,), signal="SIGTERM", patience_s=2.0)


@lanes.hookimpl
def lanes_rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """The server reads its flags and ends; it has a kernel that multiplies; and it can pretend to load nothing."""
    options = lane.options or EchoOptions()
    return Rehearsal(
        flags=tuple(
            Trial(rank=process.rank, argv=(*process.argv, "--check-flags"), deadline_s=60.0)
            for process in launch.processes
        ),
        kernels=Trial(argv=_kernels(options), deadline_s=60.0),
        dummy=attrs.evolve(lane, options=attrs.evolve(options, dummy=True)),
        spared=("model",),
    )


def _kernels(options: EchoOptions) -> tuple[str, ...]:
    fail = ("--fail-kernels",) if options.fail_kernels else ()
    return (sys.executable, "-P", "-m", "lanes_echo.server", "--check-kernels", *fail)
