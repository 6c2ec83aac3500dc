"""The command line as a person and a program meet it: help, results on stdout, progress on stderr, exit
codes, and no surprise in a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest
from lanes import errors
from lanes.cli import COMMANDS

QUICK = ("--pp", "64", "--tg", "8", "--passes", "1", "--warmups", "0")
HEAVY = ("docker", "httpx2", "rich", "cattrs", "psutil", "hypothesis", "sqlite3", "asyncio")
JSON = sorted(COMMANDS.keys() - {"logs"})
"""The commands that have a result; a log is what the engine printed, to the byte."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, lanes):
    ran = lanes(command, "--help")
    assert ran.code == 0
    usage, _, text = ran.out.partition("\n\n")
    assert usage.startswith(f"Usage: lanes {command} ")
    assert text.split()[0] == COMMANDS[command].split()[0], "the help begins as the table of commands says"
    assert ("--json" in ran.out) == (command in JSON)
    assert lanes(command, "-h").out == ran.out


def test_the_table_of_commands_has_them_all(lanes):
    ran = lanes("--help")
    assert ran.code == 0
    for name, line in COMMANDS.items():
        assert re.search(rf"^  {name} +{line.split()[0]}", ran.out, re.MULTILINE)
        assert line in ran.said
    assert lanes("--version").out.startswith("lanes, version ")


def test_without_a_command_the_help_is_shown(lanes):
    ran = lanes()
    assert ran.code == 2
    assert "Commands:" in ran.out + ran.err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("histroy",), "there is no command 'histroy'. Did you mean 'history'?"),
        (("xyzzy",), "there is no command 'xyzzy'. `lanes --help` lists the commands."),
        (("run", "--recipee", "x"), "'--recipee'"),
        (("run", "--engine", "echo", "--pp", "many"), "'many' is not a list of whole numbers such as 1,2,4"),
        (("run", "--engine", "echo", "--set", "threads"), "'threads' should be KEY=VALUE, such as threads=2"),
        (("run", "--engine", "echo", "--port", "70000"), "70000"),
        (("run",), "say what to run: --engine E or --recipe R"),
        (("bench", "x", "--url", "y"), "name a lane or a --url, not both"),
        (("logs",), "no lane is running. `lanes status --all` lists them"),
        (("logs", "x"), "no lane 'x' is there"),
        (("stop", "x"), "no lane 'x' is there"),
        (("recipes", "x"), "there is no recipe 'x'. `lanes recipes` lists them"),
        (("history", "-n", "0"), "0"),
    ],
)
def test_a_mistyped_command_line_ends_with_2_and_says_what_would_be_right(typed, told, echo):
    ran = echo(*typed)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert not echo.records()


def test_exit_codes_are_those_of_the_help():
    codes = {
        errors.LanesError: 1,
        errors.LaneError: 1,
        errors.StagingError: 1,
        errors.StartError: 1,
        errors.UsageError: 2,
        errors.RecipeError: 2,
        errors.PluginError: 2,
        errors.Unrunnable: 3,
        errors.Claimed: 4,
    }
    assert {error: error.exit_code for error in codes} == codes


def test_help_and_version_load_nothing_heavy():
    program = (
        "import sys\nfrom lanes.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        f"print('loaded:', [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    for argument in ("--help", "--version"):
        ran = subprocess.run(
            [sys.executable, "-c", program, argument], capture_output=True, text=True, check=True
        )
        assert ran.stderr == "loaded: []\n"


# -- Results --------------------------------------------------------------------------------------

EMPTY = {
    ("status",): [],
    ("history",): [],
    ("stop",): {"stopped": [], "cleaned_up": [], "stuck": {}},
}


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_where_there_is_nothing_json_says_so_and_people_read_a_sentence(words, lanes):
    ran = lanes(*words, "--json")
    assert (ran.code, ran.json, ran.err) == (0, EMPTY[words], "")
    ran = lanes(*words)
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 1


def test_without_any_engine_the_lists_say_how_to_get_one(lanes):
    program = (
        "import importlib.metadata as m; m.entry_points = lambda **_: (); from lanes.cli import main; main()"
    )
    for command, told in (("engines", "pip install"), ("recipes", "name a recipe's file")):
        ran = subprocess.run(
            [sys.executable, "-c", program, command], env=lanes.env, capture_output=True, text=True
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert told in ran.stdout


def test_every_result_is_json_alone_on_stdout(echo):
    served = echo("serve", "--engine", "echo", "--json")
    lane = served.json["id"]
    results = {
        ("run", "--engine", "echo", *QUICK): "schema",
        ("run", "--engine", "echo", "--dry-run"): "launch",
        ("serve", "--engine", "echo", "--dry-run"): "launch",
        ("bench", lane, *QUICK): "schema",
        ("status",): "sentence",
        ("engines",): "problem",
        ("recipes",): "origin",
        ("history",): "schema",
        ("history", "show", served.json["run"]): "schema",
        ("stop",): "stopped",
    }
    for words, key in results.items():
        ran = echo(*words, "--json")
        assert ran.code == 0, ran.said
        result = ran.json
        assert key in (result[0] if isinstance(result, list) else result), words


def test_progress_is_on_stderr_and_the_result_still_json(echo):
    """Where stderr is a terminal and stdout is a pipe, as in `lanes run --json | jq`."""
    master, slave = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "lanes", "run", "--engine", "echo", "--set", "load_seconds=0.6", *QUICK, "--json"],
        env=echo.env | {"PYTHONPATH": os.pathsep.join(map(str, echo.path)), "TERM": "xterm"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while True:
        try:
            block = os.read(master, 65536)
        except OSError:  # how a terminal ends on Linux
            break
        if not block:
            break
        shown += block
    os.close(master)
    out = run.stdout.read()
    run.stdout.close()
    assert run.wait(30) == 0
    assert json.loads(out)["lanes"][0]["status"] == "measured"
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "echo: loading" in said
    assert "pass 1: ttft s" in said
    assert "echo: measured" in said


def test_a_failed_lane_is_json_too_and_ends_with_1(echo):
    ran = echo("run", "--engine", "echo", "--set", "die_while_loading=true", *QUICK, "--json")
    assert ran.code == 1
    assert ran.json["lanes"][0]["status"] == "crashed"
    assert ran.json["exit_code"] == 1


# -- Pipes, terminals, encodings ------------------------------------------------------------------

COLOURFUL = """
import sys
import lanes
from lanes import *

LANES_CONTRACT = 1
PROGRAM = (
    "import sys; sys.stdout.buffer.write("
    "'\\x1b[1;31mfatal:\\x1b[0m [/red] caf\\xe9 \\u2713 :smile:'.encode()); sys.exit(3)"
)

@lanes.hookimpl
def lanes_engine():
    return EngineInfo(summary="[bold]caf\\xe9[/bold] [/red] \\u2713")

@lanes.hookimpl
def lanes_check(lane, nodes):
    return [Finding(question="cpu", verdict=Verdict.RUNNABLE, reason="[/red] \\u2713", source="[here]")]

@lanes.hookimpl
def lanes_stage(lane):
    return []

@lanes.hookimpl
def lanes_launch(lane, placement, staged):
    argv = (sys.executable, "-c", PROGRAM)
    return Launch(processes=(Process(rank=0, argv=argv),))

@lanes.hookimpl
def lanes_healthcheck(lane):
    return Ladder(rungs=(LogRung(name="never", pattern="never"),))

@lanes.hookimpl
def lanes_stop(lane, launch):
    return StopPlan()
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_others_say_is_shown_as_it_is_without_colours_in_any_encoding(encoding, lanes, site):
    site("gaudy", "gaudy_plugin", COLOURFUL, {"gaudy": "lanes.engines"})
    lanes.env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONIOENCODING": encoding}
    lanes.env.pop("NO_COLOR", None)
    ran = lanes("run", "--engine", "gaudy", "--model", "/")
    assert ran.code == 1
    for words in ("its log ends:", "fatal:", "[/red]", ":smile:"):
        assert words in ran.said
    for words in (("engines",), ("history",), ("status", "--all"), ("history", "--json")):
        more = lanes(*words)
        assert more.code == 0, more.said
        assert "\x1b" not in more.out + more.err
    assert "\x1b" not in ran.out + ran.err
    assert "[bold]caf" in lanes("engines").out
    if encoding == "utf-8":
        assert "[/red]" in lanes("run", "--engine", "gaudy", "--model", "/", "--dry-run").out


def test_bytes_that_are_no_text_do_not_break_the_output(echo):
    odd = os.fsdecode(b"caf\xe9")
    ran = echo("run", "--engine", "echo", "--set", f"description={odd}", "--dry-run", "--json")
    assert ran.code == 0
    assert ran.json[0]["recipe"]["description"] == odd
    ran = echo("run", "--recipe", f"{odd}.toml", "--dry-run")
    assert ran.code == 2
    assert "there is no recipe file" in ran.err


def test_a_log_is_printed_to_the_byte(echo, lanes, site, sleepy):
    program = (
        "import os; n = bytes([10]); os.write(1, bytes(range(256)) + n + b'x' * 300000 + n + b'end' + n)"
    )
    source = sleepy.replace("import time; time.sleep(99)", program).replace(
        "Ladder(rungs=())", 'Ladder(rungs=(LogRung(name="never", pattern="never"),))'
    )
    site("loud", "loud_plugin", source, {"loud": "lanes.engines"})
    assert lanes("run", "--engine", "loud", "--model", "/").code == 1
    env = lanes.env | {"PYTHONPATH": os.pathsep.join(map(str, lanes.path))}
    logs = subprocess.run([sys.executable, "-m", "lanes", "logs"], env=env, capture_output=True)
    assert logs.stdout == bytes(range(256)) + b"\n" + b"x" * 300000 + b"\nend\n"
    assert lanes("logs", "-n", "1").out == "end\n"
    head = subprocess.Popen(
        [sys.executable, "-m", "lanes", "logs"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert head.stdout.read(10)
    head.stdout.close()
    assert head.stderr.read() == b""
    head.stderr.close()
    head.wait(20)


def test_a_reason_is_a_sentence_though_the_engine_prints_without_end(lanes, site, sleepy):
    program = "import sys; print('fatal: ' + 'x' * 3000000); sys.exit(3)"
    source = sleepy.replace("import time; time.sleep(99)", program).replace(
        "Ladder(rungs=())", 'Ladder(rungs=(LogRung(name="never", pattern="never"),))'
    )
    site("loud", "loud_plugin", source, {"loud": "lanes.engines"})
    ran = lanes("run", "--engine", "loud", "--model", "/", "--json")
    assert len(ran.json["lanes"][0]["reason"]) < 1000
