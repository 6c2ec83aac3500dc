"""One connection to a host carries all that a command does there, and ends with the command, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from lanes import hosts, lines
from lanes.errors import LaneError
from lanes.hosts import Host

pytestmark = pytest.mark.sshd

BOX = Host(ssh="box")


@pytest.fixture
def box(ssh_host, lanes, monkeypatch):
    """A host of the name `box`, which this program reaches too."""
    monkeypatch.setenv("PATH", lanes.env["PATH"])
    yield BOX
    lines.hang_up()


def masters(tmp_path):
    """The connections to the host that are left."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f"{tmp_path}/ssh_config" in one.cmdline() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def test_programs_run_one_after_the_other_over_one_connection(box, tmp_path):
    for number in range(20):
        text = f'line {number}\n\n  it\'s "quoted" $HOME `x` \\n'
        assert hosts.run(box, ["printf", "%s", text]) == text
    assert len(masters(tmp_path)) == 1


def test_a_program_is_told_apart_from_what_it_says_on_stderr_and_how_it_ends(box):
    assert hosts.run(box, ["sh", "-c", "echo out; echo err >&2; read nothing; true"]) == "out\n"
    with pytest.raises(LaneError, match="sh on box failed: gone wrong"):
        hosts.run(box, ["sh", "-c", "echo gone wrong >&2; exit 3"])
    assert hosts.run(box, ["echo", "well"]) == "well\n"


def test_a_program_that_takes_too_long_is_given_up_and_the_next_one_runs(box):
    with pytest.raises(LaneError, match="box did not answer within"):
        hosts.run(box, ["sleep", "30"], timeout_s=0.5)
    assert hosts.run(box, ["echo", "well"]) == "well\n"


def test_a_connection_that_breaks_is_opened_anew_for_the_next_program(box, tmp_path):
    assert hosts.run(box, ["echo", "well"]) == "well\n"
    (master,) = masters(tmp_path)
    master.kill()
    master.wait(10)
    assert hosts.run(box, ["echo", "well"]) == "well\n"


def test_a_program_that_is_killed_leaves_no_connection_and_no_folder(box, tmp_path, wait_for):
    script = "from lanes import hosts; hosts.run(hosts.Host(ssh='box'), ['true']); print('up', flush=True); input()"
    env = {**os.environ, "TMPDIR": str(tmp_path / "t")}
    (tmp_path / "t").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline() == "up\n"
        assert len(masters(tmp_path)) == 1
        program.send_signal(signal.SIGKILL)
    wait_for(lambda: not masters(tmp_path), "the connection to be gone")
    wait_for(lambda: not list((tmp_path / "t").iterdir()), "its folder to be gone")


def test_who_took_a_connection_over_keeps_it_when_the_program_that_opened_it_ends(box, tmp_path, wait_for):
    script = (
        "import os, sys; from lanes import hosts\n"
        "socket, hold, said = hosts.hand_over(hosts.Host(ssh='box', docker='/nowhere'))\n"
        "import subprocess; subprocess.Popen(['sleep', '60'], pass_fds=(hold,), stdout=-3, stderr=-3)\n"
        "print(socket, flush=True)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    socket = ended.stdout.strip()
    assert hosts.leads_on(socket)
    (master,) = masters(tmp_path)
    pipe = os.readlink(f"/proc/{master.pid}/fd/0")
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            held = one.name() == "sleep" and os.listdir(f"/proc/{one.pid}/fd")
            if held and any(os.readlink(f"/proc/{one.pid}/fd/{n}") == pipe for n in held):
                one.kill()
    wait_for(lambda: not masters(tmp_path), "the connection to be gone")
