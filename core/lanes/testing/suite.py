"""What every engine plugin must keep to, as tests that its author subclasses."""

from __future__ import annotations

import json
import re
import signal
import string
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, ClassVar

import attrs
import pytest

from lanes import nodes, recipes, verdicts
from lanes.errors import LanesError
from lanes.lifecycle import Bound
from lanes.plugins import Engine, Plugins
from lanes.testing.cases import NODES, NOISE, UNKNOWN_NODE, WORDS, launched
from lanes.testing.serving import ServingTests
from lanes.types import (
    CanaryRung,
    Files,
    Finding,
    HttpRung,
    Kind,
    Lane,
    LogRung,
    Node,
    Postmortem,
    Verdict,
)

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"})
_SECRET = "a-secret-of-the-lane-7f3a9"


class EngineSuite(ServingTests):
    """Subclass it, name the engine, and pytest runs the rest.

    `engine` is the entry point's name. `recipe` is a recipe (by name or file) that can run on the
    machine of the tests; with None only that is tested which needs no run. `overrides` are set in that
    recipe, as `--set` would. `needed` is what a person has to set before the shipped recipes can be
    launched at all (a command that is published nowhere). `failures` maps log lines of the engine to the name of the cause that
    `lanes_diagnose` must find in them.
    """

    engine: ClassVar[str]
    recipe: ClassVar[str | None] = None
    overrides: ClassVar[Mapping[str, str]] = {}
    needed: ClassVar[Mapping[str, str]] = {}
    failures: ClassVar[Mapping[str, str]] = {}

    # -- what the tests stand on -----------------------------------------------------------------

    @pytest.fixture
    def plugin(self) -> Engine:
        """The engine, found through its entry point."""
        return Plugins().engine(self.engine)

    @pytest.fixture
    def bound(self, plugin: Engine) -> Bound:
        """The lane of `recipe`."""
        if self.recipe is None:
            pytest.skip("the suite names no recipe that can run here")
        recipe = recipes.find(self.recipe, Plugins(), self.overrides)
        return Bound(lane=recipes.lane(recipe, plugin), engine=plugin)

    @pytest.fixture
    def lanes(self, plugin: Engine) -> list[Lane]:
        """A lane for every recipe that the plugin ships, and for `recipe`."""
        names = [entry.name for entry in recipes.listed(Plugins(), self.engine) if entry.recipe]
        found = [recipes.find(name, Plugins(), self.needed) for name in names]
        if self.recipe is not None:
            found.append(recipes.find(self.recipe, Plugins(), self.overrides))
        return [recipes.lane(recipe, plugin) for recipe in found]

    # -- the plugin ------------------------------------------------------------------------------

    def test_entry_point_loads(self) -> None:
        """The plugin can be used at all: it imports, speaks this contract, keeps its rules."""
        [plugin] = [p for p in Plugins().engines if p.name == self.engine]
        assert plugin.problem is None

    def test_introduces_itself(self, plugin: Engine) -> None:
        """`lanes engines` has a sentence about it, and its default recipes exist."""
        info = plugin.ask("lanes_engine")
        assert info.summary.strip(), "EngineInfo.summary is empty"
        shipped = {entry.name: entry.recipe for entry in recipes.listed(Plugins(), self.engine)}
        for count, names in info.default_recipes.items():
            for name in names:
                assert name in shipped, f"the default recipe {name!r} for {count} node(s) is not shipped"
                recipe = shipped[name]
                assert recipe is None or recipe.nodes == count, f"{name!r} is not for {count} node(s)"

    def test_options_are_documented(self, plugin: Engine) -> None:
        """Every option has a default, a type, and a word in the class's docstring in backticks."""
        options = plugin.ask("lanes_options")
        if options is None:
            pytest.skip("the engine has no options")
        text = options.__doc__ or ""
        for field in attrs.fields(options):
            assert field.default is not attrs.NOTHING, f"option {field.name} has no default"
            assert field.type is not None, f"option {field.name} has no type"
            assert f"`{field.name}`" in text, f"{options.__name__}'s docstring lacks `{field.name}`"
        assert attrs.fields(options) == () or options(), "the defaults do not pass their own validators"

    def test_shipped_recipes_are_right(self, plugin: Engine) -> None:
        """Recipes that come with the plugin parse, name this engine, and say where their facts are from."""
        for entry in recipes.listed(Plugins(), self.engine):
            assert entry.problem is None, entry.problem
            assert entry.recipe is not None
            assert entry.recipe.engine == self.engine, f"{entry.origin} is for {entry.recipe.engine!r}"
            assert entry.recipe.name == entry.name, f"{entry.origin} is named {entry.recipe.name!r} inside"
            assert entry.recipe.description and entry.recipe.source, (
                f"{entry.origin} lacks description or source"
            )
            recipes.lane(entry.recipe, plugin)

    # -- can it run? -----------------------------------------------------------------------------

    def _findings(self, plugin: Engine, lane: Lane, node: Node) -> tuple[Finding, ...]:
        found: list[Finding] = []
        for title, result in plugin.collect("lanes_check", lane=lane, nodes=(node,)):
            assert not isinstance(result, Exception), (
                f"{title} raised for {lane.name} on {node.name}: {result}"
            )
            found += result
        return tuple(found)

    def _cases(self, lanes: list[Lane]) -> Iterator[tuple[Lane, Node]]:
        for lane in (Lane(name=self.engine, engine=self.engine), *lanes):
            for node in (*NODES, UNKNOWN_NODE, nodes.local()):
                yield lane, node

    def test_check_answers_for_any_hardware(self, plugin: Engine, lanes: list[Lane]) -> None:
        """Reports ask about hardware that nobody has, with and without a recipe: an answer, never an
        exception, and each finding says what, why, and where that is from."""
        for lane, node in self._cases(lanes):
            findings = self._findings(plugin, lane, node)
            assert findings, f"nothing is said about {lane.name} on {node.name}"
            for finding in findings:
                assert finding.question and finding.question == finding.question.lower(), finding
                assert finding.reason.strip() and "\n" not in finding.reason, finding
                assert finding.source.strip(), finding
                if finding.kind is Kind.CONFIGURATION and finding.verdict is Verdict.UNRUNNABLE:
                    assert finding.next_step, f"the person is not told what to do: {finding}"

    def test_runnable_rests_on_findings(self, plugin: Engine, lanes: list[Lane]) -> None:
        """Nothing is RUNNABLE because nobody looked: a yes needs a finding about the hardware and one
        about the server, and there is no yes for hardware of which nothing is known."""
        for lane, node in self._cases(lanes):
            findings = self._findings(plugin, lane, node)
            if verdicts.fold(findings)[0] is Verdict.RUNNABLE:
                kinds = {finding.kind for finding in findings}
                assert {Kind.HARDWARE, Kind.SERVING} <= kinds, f"{lane.name} on {node.name}: {findings}"
            if node is UNKNOWN_NODE:
                assert verdicts.fold(findings, Kind.HARDWARE)[0] is not Verdict.RUNNABLE, findings

    # -- staging and launching -------------------------------------------------------------------

    def test_stage_names_each_item_once(self, plugin: Engine, lanes: list[Lane]) -> None:
        """The launch finds staged files by name; what cannot be had is refused with a next step."""
        for lane in lanes:
            try:
                items = plugin.ask("lanes_stage", lane=lane)
            except LanesError as error:
                assert error.next_step, f"{lane.name}: {error}"
                continue
            names = [item.name for item in items]
            assert len(names) == len(set(names)), f"{lane.name}: {names}"
            for item in items:
                if isinstance(item, Files):
                    assert item.parts, f"{lane.name}: {item.name} has no parts"
                    assert not item.in_place or len(item.parts) == 1, f"{lane.name}: {item.name}"

    def test_launch_is_data(self, plugin: Engine, lanes: list[Lane]) -> None:
        """Every rank has one process: an argv of words, without a shell in between."""
        for lane in lanes:
            launch = launched(plugin, lane, WORDS)
            ranks = [process.rank for process in launch.processes]
            wanted = list(range(lane.recipe.nodes if lane.recipe else 1))
            assert sorted(ranks) == wanted, f"{lane.name}: ranks {ranks} of {wanted}"
            assert not launch.start_order or sorted(launch.start_order) == wanted, lane.name
            for process in launch.processes:
                words = (*process.argv, *process.env, *process.env.values())
                assert process.argv and all(isinstance(word, str) and "\0" not in word for word in words), (
                    process
                )
                shell = PurePath(process.argv[0]).name in _SHELLS
                assert not (shell and any(re.match(r"-\w*c$", word) for word in process.argv)), process.argv

    def test_launch_depends_on_its_arguments_alone(self, plugin: Engine, lanes: list[Lane]) -> None:
        """A dry run shows what a run does: the same arguments give the same launch, and symbolic ones
        the same with other words."""
        for lane in lanes:
            symbolic = launched(plugin, lane, {word: word for word in WORDS})
            assert symbolic == launched(plugin, lane, {word: word for word in WORDS}), lane.name
            text = json.dumps(attrs.asdict(symbolic), default=sorted)
            for word, value in WORDS.items():
                text = text.replace(word, value)
            real = json.dumps(attrs.asdict(launched(plugin, lane, WORDS)), default=sorted)
            assert text == real, lane.name

    def test_secrets_stay_in_the_environment(self, plugin: Engine, lanes: list[Lane]) -> None:
        """Every user of a machine can read argv: what the recipe puts into the environment reaches the
        processes there, and appears nowhere else."""
        for lane in lanes:
            if lane.recipe is None:
                continue
            env = {**lane.recipe.env, "LANES_TEST_KEY": _SECRET}
            secret = attrs.evolve(lane, recipe=attrs.evolve(lane.recipe, env=env))
            launch = launched(plugin, secret, WORDS)
            for process in launch.processes:
                assert process.env.get("LANES_TEST_KEY") == _SECRET, (
                    f"rank {process.rank} lacks the recipe's env"
                )
                assert all(_SECRET not in word for word in process.argv), process.argv
            assert _SECRET not in repr(launch.endpoint)

    def test_stop_covers_every_rank(self, plugin: Engine, lanes: list[Lane]) -> None:
        """Nothing is left running: each rank is asked to stop, with a signal that exists, and in time."""
        for lane in lanes:
            launch = launched(plugin, lane, WORDS)
            plan = plugin.ask("lanes_stop", lane=lane, launch=launch)
            assert sorted(plan.order) == sorted(process.rank for process in launch.processes), lane.name
            assert hasattr(signal, plan.signal) and plan.signal.startswith("SIG"), plan
            assert plan.patience_s > 0, plan

    def test_ladder_can_be_climbed(self, plugin: Engine, lanes: list[Lane]) -> None:
        """Ready is told apart from not yet: rungs exist, their patterns compile, their ranks are there."""
        for lane in lanes:
            launch = launched(plugin, lane, WORDS)
            ladder = plugin.ask("lanes_healthcheck", lane=lane)
            assert ladder.rungs, f"{lane.name}: without a rung it is ready before it started"
            assert ladder.deadline_s > 0 and (ladder.quiet_s is None or ladder.quiet_s > 0), ladder
            ranks = {process.rank for process in launch.processes}
            for step in (*ladder.rungs, *ladder.phases):
                assert getattr(step, "rank", 0) in ranks, step
                re.compile(getattr(step, "pattern", ""))
                assert not isinstance(step, LogRung) or step.pattern, step
                assert launch.endpoint or not isinstance(step, HttpRung | CanaryRung), (
                    f"{step} needs a server"
                )

    def test_rehearsal_is_data(self, plugin: Engine, lanes: list[Lane]) -> None:
        """What is tried in minutes is programs of words and a lane that launches; what an engine lacks is said in words."""
        for lane in lanes:
            launch = launched(plugin, lane, WORDS)
            found = plugin.ask("lanes_rehearsal", lane=lane, launch=launch)
            if found is None:
                pytest.skip("the engine does not say how it is rehearsed")
            for said in (found.flags, found.kernels, found.dummy):
                assert not isinstance(said, str) or (said.strip() and not said.endswith(".")), said
            flags = () if isinstance(found.flags, str) else found.flags
            ranks = {process.rank for process in launch.processes}
            assert not flags or sorted(trial.rank for trial in flags) == sorted(ranks), (
                f"{lane.name}: the flags of each rank are tried once"
            )
            for trial in (*flags, *(() if isinstance(found.kernels, str) else (found.kernels,))):
                assert trial.argv and all(isinstance(word, str) and word for word in trial.argv), trial
                assert PurePath(trial.argv[0]).name not in _SHELLS, trial.argv
                assert trial.deadline_s > 0, trial
            if isinstance(found.dummy, Lane):
                assert (found.dummy.name, found.dummy.recipe) == (lane.name, lane.recipe), lane.name
                dummy = launched(plugin, found.dummy, WORDS)
                assert {process.rank for process in dummy.processes} == ranks, lane.name

    # -- diagnosis -------------------------------------------------------------------------------

    def _causes(self, plugin: Engine, *log: str) -> list[Any]:
        lane = Lane(name=self.engine, engine=self.engine)
        postmortem = Postmortem(phase="loading", logs={0: log})
        found: list[Any] = []
        for title, result in plugin.collect("lanes_diagnose", lane=lane, postmortem=postmortem):
            assert not isinstance(result, Exception), f"{title} raised: {result}"
            found += result
        return found

    def test_noise_is_no_cause(self, plugin: Engine) -> None:
        """A wrong reason is worse than none: nothing is found in an empty log, or in a harmless one."""
        for log in ((), ("",), NOISE, tuple(string.punctuation)):
            assert self._causes(plugin, *log) == [], log

    def test_known_failures_are_named(self, plugin: Engine) -> None:
        """Each of `failures` is found among other lines, and says what it means and what to do."""
        if not self.failures:
            pytest.skip("the suite declares no failures")
        for line, name in self.failures.items():
            causes = self._causes(plugin, *NOISE, line, *NOISE)
            assert [cause.name for cause in causes][:1] == [name], line
            assert causes[0].meaning and causes[0].advice and line in causes[0].lines, causes[0]

    def test_the_first_cause_wins(self, plugin: Engine) -> None:
        """What happened first is the cause, what follows is its echo."""
        if len(self.failures) < 2:
            pytest.skip("the suite declares fewer than two failures")
        for first, name in self.failures.items():
            for then in self.failures:
                causes = self._causes(plugin, *NOISE, first, *NOISE, then, *NOISE)
                assert causes[0].name == name, f"{first!r} before {then!r}"
