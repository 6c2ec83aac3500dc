"""What `lanes rehearse` tries of SGLang: its parser, a kernel, and the lane with dummy weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import attrs
import pytest
from lanes import recipes
from lanes.plugins import Plugins
from lanes.testing.cases import WORDS, launched
from lanes_sglang import flags

STAND_IN = """
import json
import pathlib


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        for flag, nargs in json.loads((pathlib.Path(__file__).parents[2] / "flags.json").read_text()).items():
            if flag in ("-h", "--help"):
                continue
            parser.add_argument(flag, **({"action": "store_true"} if nargs == 0 else {"nargs": nargs}))
"""


@pytest.fixture
def lane():
    plugins = Plugins()
    found = recipes.find("dsv41-flash-1017-4x-sglang", plugins)
    return recipes.lane(found, plugins.engine("sglang"))


def rehearsed(lane):
    engine = Plugins().engine("sglang")
    launch = launched(engine, lane, WORDS)
    return launch, engine.ask("lanes_rehearsal", lane=lane, launch=launch)


@pytest.fixture
def run(tmp_path):
    """Run a trial where a package `sglang` has the option strings of SGLang's own parser, at the usual place."""
    known = {name: flag.nargs for name, flag in flags.known().items()}
    (tmp_path / "flags.json").write_text(json.dumps(known))
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "srt" / "server_args.py").write_text(STAND_IN)

    def run(trial):
        assert trial.argv[0] == "python3", "the image's own"
        return subprocess.run(
            [sys.executable, *trial.argv[1:]],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip

    run.parser = tmp_path / "sglang/srt/server_args.py"
    return run


def test_each_ranks_own_flags_go_to_the_parser_and_no_further(lane, run):
    launch, plan = rehearsed(lane)
    assert [trial.rank for trial in plan.flags] == [process.rank for process in launch.processes]
    for trial in plan.flags:
        ran = run(trial)
        assert ran.returncode == 0, ran.stderr
        assert "understood" in ran.stdout


def test_a_flag_that_the_parser_does_not_know_is_refused_in_its_own_words(lane, run):
    wrong = attrs.evolve(lane, options=attrs.evolve(lane.options, extra_args=("--frobnicate",)))
    _, plan = rehearsed(wrong)
    ran = run(plan.flags[0])
    assert ran.returncode == 2
    assert "--frobnicate" in ran.stderr


def test_a_parser_that_is_elsewhere_in_another_version_is_no_failure(lane, run):
    run.parser.write_text("")
    _, plan = rehearsed(lane)
    ran = run(plan.flags[0])
    assert ran.returncode == 69
    assert "cannot be asked" in ran.stdout


def test_kernels_that_are_not_there_cannot_be_tried(lane, run):
    _, plan = rehearsed(lane)
    assert run(plan.kernels).returncode == 69


def test_the_dummy_makes_its_weights_up_in_a_small_context(lane):
    given = attrs.evolve(
        lane, options=attrs.evolve(lane.options, extra_args=("--load-format", "auto", "--enable-metrics"))
    )
    _, plan = rehearsed(given)
    launch = launched(Plugins().engine("sglang"), plan.dummy, WORDS)
    for process in launch.processes:
        words = list(process.argv)
        assert words[words.index("--load-format") + 1] == "dummy" and words.count("--load-format") == 1
        assert words[words.index("--context-length") + 1] == "4096" and words.count("--context-length") == 1
        assert "--enable-metrics" in words


def test_a_command_of_the_recipes_own_is_not_guessed_at(lane):
    own = attrs.evolve(lane, options=attrs.evolve(lane.options, command=("/opt/start.sh",)))
    _, plan = rehearsed(own)
    assert "/opt/start.sh" in plan.flags and "/opt/start.sh" in plan.kernels
    assert not isinstance(plan.dummy, str)
