"""The conformance suite notices engines that do not keep to the contract: echo, with one fault each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import attrs
import lanes
import lanes_echo.engine
import pytest
from lanes import recipes
from lanes.errors import LanesError
from lanes.plugins import Plugins
from lanes.testing import EngineSuite
from lanes.types import (
    Cause,
    EngineInfo,
    Files,
    Finding,
    HttpRung,
    Kind,
    Ladder,
    LogRung,
    Process,
    StopPlan,
    Verdict,
)


class Suite(EngineSuite):
    """Not collected by pytest: its name does not start with Test."""

    engine = "echo"
    failures = {
        "echo: error: cannot listen on 127.0.0.1:8080: Address already in use": "port-in-use",
        "echo: fatal: died, as it was told to": "told-to-die",
    }


good = lanes_echo.engine


def with_argv(change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Callable[..., Any]:
    def lanes_launch(lane: Any, placement: Any, staged: Any) -> Any:
        launch = GOOD["lanes_launch"](lane, placement, staged)
        return attrs.evolve(
            launch, processes=(attrs.evolve(launch.processes[0], argv=change(launch.processes[0].argv)),)
        )

    return lanes_launch


def without_env(lane: Any, placement: Any, staged: Any) -> Any:
    launch = GOOD["lanes_launch"](lane, placement, staged)
    return attrs.evolve(launch, processes=(Process(rank=0, argv=launch.processes[0].argv),))


def env_in_argv(lane: Any, placement: Any, staged: Any) -> Any:
    launch = GOOD["lanes_launch"](lane, placement, staged)
    argv = (*launch.processes[0].argv, *(f"{k}={v}" for k, v in lane.recipe.env.items()))
    return attrs.evolve(launch, processes=(attrs.evolve(launch.processes[0], argv=argv),))


def port_as_number(lane: Any, placement: Any, staged: Any) -> Any:
    launch = GOOD["lanes_launch"](lane, placement, staged)
    url = f"http://127.0.0.1:{placement.http_port if placement.http_port.isdigit() else 8080}"
    return attrs.evolve(launch, endpoint=attrs.evolve(launch.endpoint, url=url))


def raises(lane: Any, nodes: Any) -> Any:
    return [lane.recipe.name]


def finding(**about: Any) -> Callable[..., Any]:
    def lanes_check(lane: Any, nodes: Any) -> Any:
        return [
            Finding(**{"question": "q", "verdict": Verdict.RUNNABLE, "reason": "r", "source": "s", **about})
        ]

    return lanes_check


@attrs.frozen
class Undocumented:
    """Says nothing."""

    speed: int = 1


GOOD = {name: getattr(good, name) for name in dir(good) if name.startswith("lanes_")}
CAUSE = Cause(name="trouble", meaning="m", advice="a")

FAULTS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "default recipe": (
        "lanes_engine",
        lambda: EngineInfo(summary="s", recipes="lanes_echo.recipes", default_recipes={1: ("none",)}),
        "test_introduces_itself",
    ),
    "undocumented option": ("lanes_options", lambda: Undocumented, "test_options_are_documented"),
    "option gone": ("lanes_options", lambda: Undocumented, "test_shipped_recipes_are_right"),
    "check raises": ("lanes_check", raises, "test_check_answers_for_any_hardware"),
    "check is silent": ("lanes_check", lambda lane, nodes: [], "test_check_answers_for_any_hardware"),
    "no reason": ("lanes_check", finding(reason=" "), "test_check_answers_for_any_hardware"),
    "no source": ("lanes_check", finding(source=""), "test_check_answers_for_any_hardware"),
    "a no without help": (
        "lanes_check",
        finding(kind=Kind.CONFIGURATION, verdict=Verdict.UNRUNNABLE),
        "test_check_answers_for_any_hardware",
    ),
    "yes for want of checks": ("lanes_check", finding(kind=Kind.SERVING), "test_runnable_rests_on_findings"),
    "one name twice": (
        "lanes_stage",
        lambda lane: [Files(name="a", parts=("x",)), Files(name="a", parts=("y",))],
        "test_stage_names_each_item_once",
    ),
    "a shell": (
        "lanes_launch",
        with_argv(lambda argv: ("/bin/bash", "-lc", " ".join(argv))),
        "test_launch_is_data",
    ),
    "a changing argv": (
        "lanes_launch",
        with_argv(lambda argv: (*argv, str(time.monotonic_ns()))),
        "test_launch_depends_on_its_arguments_alone",
    ),
    "a port made up": ("lanes_launch", port_as_number, "test_launch_depends_on_its_arguments_alone"),
    "env dropped": ("lanes_launch", without_env, "test_secrets_stay_in_the_environment"),
    "env in argv": ("lanes_launch", env_in_argv, "test_secrets_stay_in_the_environment"),
    "rank forgotten": (
        "lanes_stop",
        lambda lane, launch: StopPlan(order=()),
        "test_stop_covers_every_rank",
    ),
    "no such signal": (
        "lanes_stop",
        lambda lane, launch: StopPlan(order=(0,), signal="SIGSTOPPLEASE"),
        "test_stop_covers_every_rank",
    ),
    "no rung": ("lanes_healthcheck", lambda lane: Ladder(rungs=()), "test_ladder_can_be_climbed"),
    "bad pattern": (
        "lanes_healthcheck",
        lambda lane: Ladder(rungs=(HttpRung(name="h"), LogRung(name="l", pattern="("))),
        "test_ladder_can_be_climbed",
    ),
    "sees ghosts": ("lanes_diagnose", lambda lane, postmortem: [CAUSE], "test_noise_is_no_cause"),
    "knows nothing": ("lanes_diagnose", lambda lane, postmortem: [], "test_known_failures_are_named"),
    "last cause first": (
        "lanes_diagnose",
        lambda lane, postmortem: GOOD["lanes_diagnose"](lane, postmortem)[::-1],
        "test_the_first_cause_wins",
    ),
}


def run(test: str) -> None:
    """Run one test of the suite as pytest would."""
    plugins = Plugins()
    engine = plugins.engine("echo")

    def lanes_of_engine() -> list[Any]:
        found = recipes.listed(plugins, "echo")
        return [recipes.lane(entry.recipe, engine) for entry in found if entry.recipe]

    method = getattr(Suite(), test)
    wanted = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    method(**{name: engine if name == "plugin" else lanes_of_engine() for name in wanted})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hook, bad, test = FAULTS[fault]
    run(test)

    # A function of the right name and arguments: pluggy reads both.
    def faulty(*arguments: Any) -> Any:
        return bad(*arguments)

    names = ", ".join(GOOD[hook].__code__.co_varnames[: GOOD[hook].__code__.co_argcount])
    scope: dict[str, Any] = {"faulty": faulty}
    exec(f"def {hook}({names}): return faulty({names})", scope)
    monkeypatch.setattr(good, hook, lanes.hookimpl(scope[hook]))
    with pytest.raises((AssertionError, LanesError, re.error)):
        run(test)
