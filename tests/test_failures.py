"""When a lane fails: one sentence with the cause and the next step, the right exit code, no traceback,
and nothing left behind (the `lanes` fixture looks)."""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest

QUICK = ("--pp", "96", "--tg", "24", "--passes", "3", "--warmups", "1")


def fail(echo, *settings, expect=1, measure=QUICK):
    """Run echo with a fault; return its lane."""
    sets = [part for setting in settings for part in ("--set", setting)]
    ran = echo("run", "--engine", "echo", *sets, *measure, "--json")
    assert ran.code == expect, ran.said
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "measured" or lane["next_step"], lane
    return lane


def test_a_server_that_dies_while_loading_is_told_at_once_with_its_cause(echo):
    began = time.monotonic()
    lane = fail(echo, "die_while_loading=true", "load_seconds=1")
    assert time.monotonic() - began < 60
    assert lane["status"] == "crashed"
    assert lane["reason"] == (
        "the process exited with code 3 while loading: echo ran out of the memory that it pretends to need"
    )
    assert lane["next_step"] == "set die_while_loading = false"
    assert lane["causes"][0]["name"] == "out-of-memory"


def test_a_server_that_is_never_healthy_is_given_up_after_the_recipes_patience(echo):
    lane = fail(echo, "never_healthy=true", "patience_s=1.5")
    assert lane["status"] == "failed"
    assert lane["reason"].startswith("not ready after 1.5 s: loaded: ")


def test_a_server_that_dies_in_a_pass_keeps_the_passes_that_had_ended(echo):
    lane = fail(echo, "die_after_tokens=90")
    assert lane["status"] == "crashed"
    assert "the process exited with code 7 while measuring" in lane["reason"]
    assert "die_after_tokens" in lane["reason"]
    (cell,) = lane["instruments"][0]["cells"]
    assert cell["status"] == "crashed"
    assert [p["error"] for p in cell["passes"]][:2] == [None, None]


def test_a_server_killed_in_a_pass_is_a_crash_by_that_signal(echo, wait_for):
    run = echo.start("run", "--engine", "echo", "--set", "tokens_per_second=20", *QUICK, "--json")
    wait_for(lambda: any(r["phase"] == "measuring" for r in echo.records()), "measuring")
    time.sleep(0.3)
    for process in echo.processes():
        if "lanes_echo.server" in process.cmdline():
            process.kill()
    ran = echo.finish(run)
    assert ran.code == 1
    assert "killed by SIGKILL while measuring" in ran.json["lanes"][0]["reason"]


def test_a_server_that_answers_500_is_quoted(echo):
    lane = fail(echo, "status_500_after=0")
    assert lane["status"] == "failed"
    assert "500" in lane["reason"]


def test_a_server_that_turns_to_500_makes_the_cell_invalid(echo):
    lane = fail(echo, "status_500_after=3")
    (cell,) = lane["instruments"][0]["cells"]
    assert cell["status"] == "invalid"
    assert "500" in cell["reason"]
    assert "no cell is valid" in lane["reason"]


def test_a_stream_that_is_cut_is_no_answer(echo):
    lane = fail(echo, "cut_stream_after=10")
    (cell,) = lane["instruments"][0]["cells"]
    assert cell["status"] == "invalid"
    assert "cut after 10 deltas" in cell["reason"]


def test_a_server_that_ignores_the_signal_is_killed(echo):
    lane = fail(echo, "ignore_stop=true", expect=0)
    assert lane["status"] == "measured"


def test_a_port_in_use_names_who_has_it_and_starts_nothing(echo):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = echo("run", "--engine", "echo", "--port", str(port), *QUICK)
    assert ran.code == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in ran.said
    assert f"(pid {os.getpid()})" in ran.said
    assert "choose another with --port" in ran.said


def test_a_port_taken_between_looking_and_binding_is_diagnosed_by_the_engine(echo, tmp_path, site):
    """The engine is told a port that somebody has: what a lost race looks like."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        policy = f'''
import attrs, lanes
LANES_CONTRACT = 1

@lanes.hookimpl(wrapper=True)
def lanes_launch(lane):
    launch = yield
    def move(p):
        at = p.argv.index("--port") + 1
        return attrs.evolve(p, argv=(*p.argv[:at], "{port}", *p.argv[at + 1:]))
    return attrs.evolve(launch, processes=tuple(map(move, launch.processes)))
'''
        site("race", "race_plugin", policy, {"race": "lanes.extensions"})
        lane = fail(echo)
    assert lane["status"] == "crashed"
    assert "echo could not listen on its port" in lane["reason"]


def test_a_program_that_is_not_there_cannot_be_started(lanes, site, sleepy):
    source = sleepy.replace("(sys.executable, ", '("/no/such/program", ')
    site("gone", "gone_plugin", source, {"gone": "lanes.engines"})
    ran = lanes("run", "--engine", "gone", "--model", "/")
    assert ran.code == 1
    assert "the process could not be started: /no/such/program: No such file or directory" in ran.said


def test_a_lane_stopped_from_another_terminal_says_so(echo, wait_for):
    run = echo.start("run", "--engine", "echo", "--set", "tokens_per_second=20", *QUICK, "--json")
    wait_for(lambda: any(r["phase"] == "measuring" for r in echo.records()), "measuring")
    assert "stopped echo-" in echo("stop").out
    ran = echo.finish(run)
    assert ran.code == 1
    assert ran.json["lanes"][0]["status"] == "interrupted"
    assert "stopped by `lanes stop` while measuring" in ran.json["lanes"][0]["reason"]


MODELS = {
    "missing": (lambda path: None, "there is no file"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "cut off": (lambda path: path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 9, 9)), "cut off"),
    "not a GGUF": (lambda path: path.write_bytes(b"<html>404 Not Found</html>" * 99), "GGUF"),
}


@pytest.mark.parametrize("fault", MODELS)
def test_a_model_file_that_is(fault, lanes, tmp_path):
    from importlib.metadata import entry_points

    if "llamacpp" not in entry_points(group="lanes.engines").names:
        pytest.skip("lanes-llamacpp is not installed: pip install -e 'plugins/llamacpp[demo]'")
    make, told = MODELS[fault]
    path = tmp_path / "model.gguf"
    make(path)
    ran = lanes("run", "--engine", "llamacpp", "--model", str(path))
    assert ran.code == 3, ran.said
    assert told in ran.said
    assert str(path) in ran.said or path.name in ran.said
    assert not lanes.records()
