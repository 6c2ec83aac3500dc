"""Whatever kills `lanes`: the next command says what happened, nothing runs on, nothing measured is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

SLOW_STAGE = """
import os
import lanes

LANES_CONTRACT = 1

@lanes.hookimpl(wrapper=True)
def lanes_stage():
    # A named pipe that nobody writes to: a copy that does not end.
    items = yield
    return [*items, lanes.Files(name="model", parts=(os.environ["SLOW_FILE"],))]
"""

PHASES = {
    "staging": ((), "staging"),
    "loading": (("--set", "load_seconds=30"), "loading"),
    "measuring": (("--set", "tokens_per_second=100"), "measuring"),
}
GRID = ("--pp", "64", "--tg", "16", "--passes", "200", "--warmups", "1")


def begin(echo, site, tmp_path, wait_for, phase):
    """Start a run and wait until it is in this phase."""
    if phase == "staging":
        os.mkfifo(tmp_path / "pipe")
        echo.env["SLOW_FILE"] = str(tmp_path / "pipe")
        site("slow", "slow_plugin", SLOW_STAGE, {"slow": "lanes.extensions"})
    settings, wanted = PHASES[phase]
    run = echo.start("run", "--engine", "echo", *settings, *GRID)
    wait_for(lambda: any(r["phase"] == wanted for r in echo.records()), f"{wanted} to begin")
    if phase == "measuring":
        wait_for(lambda: echo.passes() >= 3, "passes to end")
    else:
        time.sleep(0.3)
    return run


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_while(phase, echo, site, tmp_path, wait_for):
    run = begin(echo, site, tmp_path, wait_for, phase)
    run.kill()
    run.wait()
    wait_for(lambda: not echo.processes(), "the keeper to stop the engine")

    (status,) = echo("status", "--json").json
    assert status["state"] == "interrupted"
    assert status["sentence"] == f"lanes (pid {run.pid}) was killed while {phase}; its processes were stopped"

    (past,) = echo("history", "--json").json
    assert past["status"] == "interrupted"
    (lane,) = past["lanes"]
    assert lane["status"] == "interrupted"
    assert lane["reason"] == f"lanes was killed while {phase}"
    if phase == "measuring":
        (cell,) = lane["instruments"][0]["cells"]
        assert len(cell["passes"]) >= 3
        assert all(p["figures"]["decode_tps"] > 0 for p in cell["passes"])
        assert "measured passes had ended" in cell["reason"]

    assert "cleaned up after echo-" in echo("stop").out
    assert echo("status", "--json").json == []
    assert echo("stop").out == "nothing to stop\n"


def test_kill_9_in_the_warm_up(echo, wait_for):
    run = echo.start("run", "--engine", "echo", "--set", "tokens_per_second=20", "--pp", "64", "--tg", "64")
    wait_for(lambda: any(r["phase"] == "measuring" for r in echo.records()), "the warm-up")
    time.sleep(0.5)
    run.kill()
    run.wait()
    wait_for(lambda: not echo.processes(), "the keeper to stop the engine")
    assert "was killed while measuring" in echo("status").said
    assert echo("stop").code == 0


@pytest.mark.parametrize(
    ("number", "phase"),
    [
        *((signal.SIGINT, phase) for phase in PHASES),
        (signal.SIGTERM, "loading"),
        (signal.SIGHUP, "measuring"),
    ],
)
def test_ctrl_c_or_a_closed_terminal_cleans_up_and_exits_130(number, phase, echo, site, tmp_path, wait_for):
    run = begin(echo, site, tmp_path, wait_for, phase)
    run.send_signal(number)
    ran = echo.finish(run)
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert not echo.processes()
    assert echo("status", "--json").json == []
    (past,) = echo("history", "--json").json
    assert (past["status"], past["exit_code"]) == ("done", 130)
    assert past["lanes"][0]["status"] == "interrupted"
    assert past["lanes"][0]["reason"] == "interrupted by the user"
    if phase == "measuring":
        assert len(past["lanes"][0]["instruments"][0]["cells"][0]["passes"]) >= 3


def test_ctrl_c_twice_hurries_and_still_leaves_nothing(echo, wait_for):
    run = echo.start(
        "run", "--engine", "echo", "--set", "tokens_per_second=100", "--set", "ignore_stop=true", *GRID
    )  # fmt: skip
    wait_for(lambda: any(r["phase"] == "measuring" for r in echo.records()), "measuring")
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    assert echo.finish(run).code == 130
    assert not echo.processes()


def test_kill_9_of_lanes_and_of_its_keeper_leaves_an_orphan_that_stop_ends(echo, wait_for):
    run = begin(echo, None, None, wait_for, "measuring")
    keepers = [p for p in echo.processes() if any("keeper.py" in part for part in p.cmdline())]
    for process in (*keepers, psutil.Process(run.pid)):
        process.kill()
    run.wait()
    (status,) = echo("status", "--json").json
    assert status["state"] == "orphaned"
    assert "its processes still run" in status["sentence"]
    assert "cleaned up after" in echo("stop").out
    assert not echo.processes()


@pytest.mark.parametrize("command", ["run", "serve"])
def test_the_next_run_mends_an_orphan_first(command, echo, wait_for):
    run = begin(echo, None, None, wait_for, "measuring")
    for process in [p for p in echo.processes() if any("keeper.py" in part for part in p.cmdline())]:
        process.kill()
    run.kill()
    run.wait()
    orphan = echo.records()[0]["id"]
    measure = ("--pp", "64", "--tg", "8", "--passes", "1", "--warmups", "0") if command == "run" else ()
    ran = echo(command, "--engine", "echo", *measure)
    assert ran.code == 0
    assert f"cleaned up after {orphan}" in ran.err
    echo("stop")


def test_a_child_that_leaves_its_group_and_hides_its_environment_is_ended_too(
    lanes, site, wait_for, tmp_path, sleepy
):
    hidden = tmp_path / "hidden.pid"
    program = (
        "import os, sys, time, subprocess\n"
        f"child = subprocess.Popen(['env', '-i', 'sleep', '300'], start_new_session=True)\n"
        f"open({str(hidden)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(300)\n"
    )
    source = sleepy.replace('"import time; time.sleep(99)"', repr(program)).replace(
        "Ladder(rungs=())", 'Ladder(rungs=(LogRung(name="never", pattern="never"),))'
    )
    site("stray", "stray_plugin", source, {"stray": "lanes.engines"})
    run = lanes.start("run", "--engine", "stray", "--model", "/")
    wait_for(lambda: hidden.exists() and hidden.read_text(), "the child")
    run.send_signal(signal.SIGINT)
    assert lanes.finish(run).code == 130
    pid = int(hidden.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_who_asks_to_end_in_the_middle_of_a_destructor_is_heard(name):
    """Python drops what is raised there; it would be a Ctrl-C that does nothing."""
    program = f"""
import os, signal, time
from lanes import interrupts

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.05)

interrupts.install()
try:
    del_me = Held()
    del del_me
    time.sleep(60)
except KeyboardInterrupt:
    print("heard")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=40)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("heard\n", "", 0)
