"""Processes are started, watched and ended, however they behave and whoever is killed meanwhile; a
stranger's process is never touched."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from lanes import interrupts, nodes, records
from lanes.errors import StartError, UsageError
from lanes.executors import keeper, process
from lanes.owners import Owner
from lanes.types import Process, StopPlan

SLEEP = "import time; time.sleep(60)"
PATIENT = StopPlan(patience_s=10.0)
HASTY = StopPlan(patience_s=0.5)


class Lane:
    """The ranks of a lane, as Python programs."""

    def __init__(self, folder):
        self.folder, self.owner = folder, process.Owner()

    def start(self, program, rank=0, plan=PATIENT, **more):
        argv = (sys.executable, "-u", "-c", program)
        process.start(self.folder, Process(rank=rank, argv=argv, **more), plan, self.owner)
        return self

    def pids(self, rank=0):
        return json.loads((self.folder / f"rank{rank}/pid.json").read_text())

    def engine(self, rank=0):
        return psutil.Process(self.pids(rank)["pid"])

    def log(self, rank=0):
        return (self.folder / f"rank{rank}/log").read_bytes()

    def ended(self, rank=0):
        return process.how_ended(self.folder / f"rank{rank}")

    def stop(self, plan=PATIENT):
        return process.stop(self.folder, plan)


@pytest.fixture
def lane(tmp_path):
    made = Lane(tmp_path / "lane-1234")
    yield made
    assert process.stop(made.folder, HASTY, hurry=lambda: True) == []


@pytest.fixture
def bystander():
    """A process that is none of ours, the leader of a session, with a child in it."""
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"
    stranger = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    family = psutil.Process(stranger.pid)
    while not family.children():
        time.sleep(0.01)
    everybody = [family, *family.children()]
    yield everybody
    alive = [one for one in everybody if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    for one in everybody:
        one.kill()
    stranger.wait()
    assert alive == everybody, "a stranger was killed"


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# -- How a process ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("raise SystemExit(0)", "the process exited with code 0"),
        ("raise SystemExit(41)", "the process exited with code 41"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the process was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "the process was killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", "the process was killed by signal 40"),
    ],
)
def test_how_a_process_ended_is_told_exactly(program, sentence, lane, wait_for):
    lane.start(program)
    ended = wait_for(lane.ended, "the end")
    assert ended.sentence() == sentence
    assert ended.reason == "exited"
    wait_for(lambda: not process.survivors(lane.folder), "the keeper to go")


def test_a_program_that_is_not_there_and_a_folder_that_is_not_there_are_told_apart(lane):
    lane.folder.mkdir()
    with pytest.raises(StartError, match="could not be started: /no/such: No such file"):
        process.start(lane.folder, Process(rank=0, argv=("/no/such",)), HASTY, lane.owner)
    with pytest.raises(StartError, match="could not be started: /no/folder: No such file"):
        lane.start(SLEEP, rank=1, cwd="/no/folder")
    with pytest.raises(StartError, match=r"could not be started: .*Permission denied"):
        process.start(lane.folder, Process(rank=2, argv=(str(lane.folder),)), HASTY, lane.owner)


@pytest.mark.parametrize("env", [{"A=B": "c"}, {"A": "b\0"}, {"A": "x" * 2_000_000}])
def test_an_environment_that_the_system_refuses_is_one_sentence(env, lane):
    with pytest.raises(StartError, match="the process could not be started: "):
        lane.start(SLEEP, env=env)


def test_a_signal_of_no_such_name_is_found_before_anything_starts(lane):
    with pytest.raises(StartError, match="there is no signal 'TERM'"):
        lane.start(SLEEP, plan=StopPlan(signal="TERM"))
    assert not lane.folder.exists()


# -- What it prints -------------------------------------------------------------------------------


def test_everything_printed_is_in_the_log_in_order_and_to_the_byte(lane, wait_for):
    lane.start(
        "import os, sys\n"
        "os.write(1, b'out\\n'); os.write(2, b'err\\n'); os.write(1, bytes(range(256)) + b'\\n')\n"
        "os.write(2, b'x' * 3_000_000); os.write(1, b'\\nlast words')"
    )
    wait_for(lane.ended, "the end")
    assert lane.log() == (b"out\nerr\n" + bytes(range(256)) + b"\n" + b"x" * 3_000_000 + b"\nlast words")
    assert process.tail(lane.folder, 0, 1) == ["last words"]
    assert process.tail(lane.folder, 0, 0) == ()
    assert len("".join(process.tail(lane.folder, 0, 200))) < 100_000


def test_lines_are_read_without_the_colours_that_they_have_in_the_log(lane, wait_for):
    lane.start("print('\\x1b[1;31mERROR\\x1b[0m: \\x1b]0;title\\x07out of memory\\x1b[K')")
    wait_for(lane.ended, "the end")
    assert process.tail(lane.folder, 0) == ["ERROR: out of memory"]
    assert b"\x1b[1;31m" in lane.log()


# -- How it is ended ------------------------------------------------------------------------------

TELLS = (
    "import signal, sys, time\nsignal.signal(signal.{}, lambda *_: sys.exit(5))\nprint('up')\ntime.sleep(60)"
)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGQUIT"])
def test_the_engine_gets_the_signal_that_it_asks_for(name, lane, wait_for):
    plan = StopPlan(signal=name)
    lane.start(TELLS.format(name), plan=plan)
    wait_for(lambda: b"up" in lane.log(), "the program")
    assert lane.stop(plan) == []
    assert lane.ended().exit.code == 5
    assert lane.ended().reason == "stopped"


def test_an_engine_that_takes_no_notice_is_killed_after_its_patience(lane, wait_for):
    lane.start(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\ntime.sleep(60)", plan=HASTY
    )
    wait_for(lambda: b"up" in lane.log(), "the program")
    began = time.monotonic()
    assert lane.stop(HASTY) == []
    assert 0.5 <= time.monotonic() - began < 30
    assert lane.ended().exit.signal == "SIGKILL"


def test_ranks_are_stopped_in_the_plans_order_one_after_the_other(lane, wait_for):
    program = "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(0.3), sys.exit(0)))\nprint('up')\n"
    for rank in range(3):
        lane.start(program + "time.sleep(60)", rank=rank)
    wait_for(lambda: all(b"up" in lane.log(rank) for rank in range(3)), "the programs")
    assert lane.stop(StopPlan(order=(2, 0))) == []
    ends = {rank: lane.ended(rank).at_ns for rank in range(3)}
    assert sorted(ends, key=ends.get) == [2, 0, 1]
    assert ends[1] - ends[2] > 0.5e9


STRAYS = {
    "a child": "subprocess.Popen([sys.executable, '-c', SLEEP])",
    "a child in a session of its own": "subprocess.Popen([sys.executable, '-c', SLEEP], start_new_session=True)",
    "a double fork": "os.fork() or (os.setsid(), os.fork() and os._exit(0), time.sleep(60))",
    "a double fork that hides": (
        "os.fork() or (os.setsid(), os.fork() and os._exit(0), "
        "os.execve(sys.executable, [sys.executable, '-c', SLEEP], {}))"
    ),
    "a grandchild that ignores signals": (
        "subprocess.Popen([sys.executable, '-c', 'import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); "
        'subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])\'])'
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["stopped", "ended by itself", "its owner was killed"])
@pytest.mark.parametrize("stray", STRAYS)
def test_nothing_is_left_of(stray, way, lane, wait_for, tmp_path):
    rest = "time.sleep(0.5)" if way == "ended by itself" else "time.sleep(60)"
    lane.start(
        f"import os, subprocess, sys, time\nSLEEP = {SLEEP!r}\n{STRAYS[stray]}\nprint('up')\n{rest}",
        plan=HASTY,
    )
    wait_for(lambda: b"up" in lane.log(), "the program")
    time.sleep(0.2)
    keeper_pid = lane.pids()["keeper"]
    family = [p.pid for p in psutil.Process(keeper_pid).children(recursive=True)]
    assert len(family) >= 2
    if way == "stopped":
        assert lane.stop(HASTY) == []
    elif way == "its owner was killed":
        for write_end in lane.owner._write_ends:  # what the end of a process does
            os.close(write_end)
    wait_for(lambda: all(map(gone, [*family, keeper_pid])), "all of it to end")
    assert lane.ended().reason == {"stopped": "stopped", "ended by itself": "exited"}.get(way, "owner-died")


def test_no_zombie_is_left_behind(lane, wait_for):
    lane.start(SLEEP).start("raise SystemExit(3)", rank=1)
    wait_for(lambda: lane.ended(1), "the end")
    assert lane.stop() == []
    left = [
        p for p in psutil.Process().children() if p.pid in (lane.pids(0)["keeper"], lane.pids(1)["keeper"])
    ]
    assert left == []


def test_a_lane_that_was_detached_outlives_its_owner(lane):
    lane.start(SLEEP)
    lane.owner.detach()
    for write_end in lane.owner._write_ends:
        os.close(write_end)
    time.sleep(0.3)
    assert lane.ended() is None
    assert lane.engine().is_running()
    assert lane.stop() == []


# -- Who is killed meanwhile ----------------------------------------------------------------------


def test_with_its_keeper_killed_an_engine_is_still_alive_and_still_stopped(lane, wait_for):
    lane.start(TELLS.format("SIGTERM"))
    wait_for(lambda: b"up" in lane.log(), "the program")
    os.kill(lane.pids()["keeper"], signal.SIGKILL)
    wait_for(lambda: gone(lane.pids()["keeper"]), "the keeper's end")
    assert lane.ended() is None
    engine = lane.pids()["pid"]
    assert lane.stop() == []
    assert gone(engine)
    assert lane.ended().reason == "vanished"
    assert lane.ended().sentence() == "the process is gone, and nobody saw it end"


@pytest.mark.parametrize("keeper_too", [False, True], ids=["keeper lives", "keeper killed"])
def test_an_engine_that_writes_over_its_environment_is_alive_and_is_stopped(keeper_too, lane, wait_for):
    """As programs do that show a title in ps."""
    lane.start(
        "import os, sys\n"
        "if 'PATH' in os.environ: os.execve(sys.executable, [sys.executable, '-uc', "
        f"'print(\"up\"); {SLEEP}'], {{}})"
    )
    wait_for(lambda: b"up" in lane.log(), "the program")
    assert lane.engine().environ() == {}
    if keeper_too:
        os.kill(lane.pids()["keeper"], signal.SIGKILL)
        wait_for(lambda: gone(lane.pids()["keeper"]), "the keeper's end")
    assert lane.ended() is None
    engine = lane.pids()["pid"]
    assert engine in process.survivors(lane.folder)
    assert lane.stop() == []
    assert gone(engine)


def test_what_nohup_had_ignored_does_not_hurry_the_clean_up():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.held_off() as hurry:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not hurry()
            os.kill(os.getpid(), signal.SIGTERM)
            assert hurry()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# -- Strangers ------------------------------------------------------------------------------------


def test_a_stranger_who_has_the_number_of_a_dead_process_is_left_alone(lane, bystander):
    leader, child = bystander
    (lane.folder / "rank0").mkdir(parents=True)
    born = keeper.stat(leader.pid)[-1]
    (lane.folder / "rank0/pid.json").write_text(
        json.dumps({"pid": child.pid, "born": born - 1, "keeper": leader.pid, "keeper_born": born - 1})
    )
    assert process.survivors(lane.folder) == []
    assert lane.ended().reason == "vanished"
    assert lane.stop(HASTY) == []
    # `bystander` looks whether they live.


def test_a_strangers_session_is_left_alone_though_its_leader_is_gone(lane):
    """A daemon: it has forked, and the leader of its session has ended."""
    said = subprocess.run(
        [sys.executable, "-c", f"import os\nif pid := os.fork(): print(os.getpid(), pid)\nelse:\n os.close(1)\n {SLEEP}"],
        start_new_session=True, stdout=subprocess.PIPE, text=True, check=True, timeout=10,
    ).stdout.split()  # fmt: skip
    leader, daemon = map(int, said)
    try:
        assert os.getsid(daemon) == leader
        (lane.folder / "rank0").mkdir(parents=True)
        (lane.folder / "rank0/pid.json").write_text(
            json.dumps({"pid": leader, "born": 1, "keeper": leader, "keeper_born": 1})
        )
        assert process.survivors(lane.folder) == []
        assert lane.stop(HASTY) == []
        assert not gone(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_lane_of_the_same_id_in_another_home_is_left_alone(lane, tmp_path):
    other = Lane(tmp_path / "another" / lane.folder.name).start(SLEEP)
    lane.start(SLEEP)
    assert lane.stop() == []
    assert other.ended() is None
    assert other.stop() == []


def test_an_owner_is_the_process_and_not_its_number(bystander):
    me = Owner.me()
    assert me.alive()
    assert Owner(pid=bystander[0].pid, created=me.created).alive() is False
    assert Owner(pid=me.pid, created=me.created - 1).alive() is False
    child = subprocess.Popen(["true"])
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    stat = keeper.stat(child.pid)
    assert Owner(pid=child.pid, created=stat[-1] / os.sysconf("SC_CLK_TCK")).alive() is False
    child.wait()


# -- Ports, environment, records ------------------------------------------------------------------


def test_ports_are_free_and_not_the_same():
    placement = process.place(nodes.here(), 2)
    ports = [int(placement.http_port), int(placement.rendezvous_port)]
    assert len(set(ports)) == 2
    assert [seat.rank for seat in placement.seats] == [0, 1]
    for port in ports:
        with socket.socket() as one:
            one.bind((placement.http_host, port))


def test_a_port_that_served_a_moment_ago_may_be_had_again():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            client.recv(1)
    assert process.place(nodes.here(), 1, port).http_port == str(port)


def test_secrets_reach_the_engine_and_no_file_and_no_argv(lane, wait_for, monkeypatch):
    monkeypatch.setenv("OF_THE_SHELL", "open-sesame-1")
    lane.start(
        f"import os\nprint(len(os.environ['OF_THE_SHELL'] + os.environ['TOKEN']), os.environ['LANES_RANK'])\n{SLEEP}",
        env={"TOKEN": "open-sesame-2"},
    )
    wait_for(lambda: b"\n" in lane.log(), "the program")
    assert lane.log() == b"26 0\n"
    for pid in (lane.pids()["pid"], lane.pids()["keeper"]):
        assert "sesame" not in " ".join(psutil.Process(pid).cmdline())
    for file in lane.folder.rglob("*"):
        assert file.is_dir() or b"sesame" not in file.read_bytes()
    assert lane.folder.joinpath("rank0").stat().st_mode & 0o077 == 0


def test_the_engine_has_no_terminal_and_no_file_of_ours(lane, wait_for):
    lane.start("import os\nprint(sorted(os.listdir('/proc/self/fd'))[:-1], repr(input) and os.read(0, 1))")
    wait_for(lane.ended, "the end")
    assert lane.log() == b"['0', '1', '2'] b''\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LANES_HOME", str(tmp_path / "home"))


def test_records_that_cannot_be_read_are_passed_over(home):
    good = records.create("Qwen 3 / 8B!", "echo", "", "run")
    for number, text in enumerate(
        ("", "[]", "3", "null", "{}", '{"id": 3}', "\xff", '{"id": "x", "owner": []}')
    ):
        folder = good.folder.with_name(f"bad{number}")
        folder.mkdir()
        (folder / "lane.json").write_bytes(text.encode("latin-1"))
    assert [r.id for r in records.every()] == [good.id]
    assert good.id.startswith("qwen-3-8b-")


def test_a_lane_of_a_very_long_name_has_a_folder_too(home):
    assert records.create("x" * 5000, "echo", "", "run").folder.is_dir()
    assert records.create("../../..", "echo", "", "run").folder.parent.name == "lanes"


def test_of_a_name_used_again_the_lane_that_runs_is_meant_and_of_two_neither(home):
    ending = records.Ending(status="measured", reason="", at=1.0)
    first = records.create("echo", "echo", "", "run")
    records.update(first, ending=ending)
    assert records.choose("echo", ended_too=True).id == first.id
    with pytest.raises(UsageError, match="no lane 'echo' is there"):
        records.choose("echo")
    second = records.create("echo", "echo", "", "run")
    for ended_too in (True, False):
        assert records.choose("echo", ended_too).id == second.id
    third = records.create("echo", "echo", "", "run")
    for ended_too in (True, False):
        with pytest.raises(UsageError, match=r"several lanes fit: .*name one by its id"):
            records.choose("echo", ended_too)
        assert records.choose(third.id, ended_too).id == third.id
        with pytest.raises(UsageError, match="no lane '' is there"):
            records.choose("", ended_too)


def test_a_lane_that_has_no_process_yet_is_not_said_to_be_stopped(echo, site, tmp_path, wait_for):
    os.mkfifo(tmp_path / "pipe")
    wrapper = (
        "import lanes\nLANES_CONTRACT = 1\n@lanes.hookimpl(wrapper=True)\ndef lanes_stage():\n"
        f"    items = yield\n    return [*items, lanes.Files(name='model', parts=({str(tmp_path / 'pipe')!r},))]\n"
    )
    site("slow", "slow_plugin", wrapper, {"slow": "lanes.extensions"})
    run = echo.start("run", "--engine", "echo")
    wait_for(lambda: any(r["phase"] == "staging" for r in echo.records()), "staging")
    stop = echo("stop")
    assert stop.code == 1
    assert f"has no process yet: lanes (pid {run.pid}) is still staging" in stop.err
    run.send_signal(signal.SIGINT)
    assert echo.finish(run).code == 130
