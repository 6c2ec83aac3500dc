"""What the tests share: a home of their own for `lanes`, the program as a person runs it, and a look
for what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

for number in (signal.SIGINT, signal.SIGHUP):
    # Started by `&` or nohup: what is started from here must hear Ctrl-C and a closed terminal all the same.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)

EXAMPLES = Path(__file__).parent.parent / "examples"

SLEEPY = """
import sys
import lanes
from lanes import *

LANES_CONTRACT = 1

@lanes.hookimpl
def lanes_engine():
    return EngineInfo(summary="sleeps")

@lanes.hookimpl
def lanes_check(lane, nodes):
    return [Finding(question="cpu", verdict=Verdict.RUNNABLE, reason="it sleeps", source="here")]

@lanes.hookimpl
def lanes_stage(lane):
    return []

@lanes.hookimpl
def lanes_launch(lane, placement, staged):
    return Launch(processes=(Process(rank=0, argv=(sys.executable, "-c", "import time; time.sleep(99)")),))

@lanes.hookimpl
def lanes_healthcheck(lane):
    return Ladder(rungs=())

@lanes.hookimpl
def lanes_stop(lane, launch):
    return StopPlan()
"""
"""A plugin that keeps every rule; its engine sleeps, and has no server."""


PATIENT = """
import sys
from importlib.machinery import PathFinder

class Patient:
    def find_spec(self, name, path=None, target=None):
        if name not in ("lanes.bench.tally", "lanes.bench.validity"):
            return None
        spec = PathFinder.find_spec(name, path)
        whole = spec.loader.exec_module

        def exec_module(module):
            whole(module)
            module._LATE_S = 5.0

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Patient())
"""
"""A sitecustomize.py by which `lanes` forgives its own lateness: on a busy machine it is late, and these tests are
about something else."""


@attrs.frozen
class Ran:
    """A finished `lanes`: its exit code and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def said(self) -> str:
        """All that it printed, white space folded."""
        return " ".join((self.out + self.err).split())


class Lanes:
    """The program, started as a person does, with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "LANES_HOME": str(home), "COLUMNS": "200"}
        self.path: list[Path] = []
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "lanes", *arguments],
            env=self.env | {"PYTHONPATH": os.pathsep.join(map(str, self.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: str, timeout: float = 120) -> Ran:
        return self.finish(self.start(*arguments), timeout)

    @staticmethod
    def finish(process: subprocess.Popen[str], timeout: float = 120) -> Ran:
        out, err = process.communicate(timeout=timeout)
        assert "Traceback" not in err, err
        return Ran(process.returncode, out, err)

    def records(self) -> list[dict[str, Any]]:
        found = []
        for file in self.home.glob("lanes/*/lane.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(file.read_text()))
        return found

    def processes(self) -> list[psutil.Process]:
        """The processes that serve lanes of this home."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                if "LANES_LANE" in env and env.get("LANES_HOME") == str(self.home):
                    found.append(process)
        return found

    def passes(self) -> int:
        """How many passes the latest run has in the history."""
        runs = self("history", "--json").json
        return sum(
            len(cell["passes"])
            for lane in (runs[0]["lanes"] if runs else [])
            for instrument in lane["instruments"]
            for cell in instrument["cells"]
        )


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 60) -> Any:
    """Wait until `condition()` is true and return it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout} s for {what}")


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that makes each `lanes` patient with itself; not in the tests' own ones, which they look at."""
    folder = tmp_path_factory.mktemp("patient")
    (folder / "sitecustomize.py").write_text(PATIENT)
    return folder


@pytest.fixture
def lanes(tmp_path: Path, patient: Path) -> Iterator[Lanes]:
    """`lanes`, which leaves nothing running when the test is over."""
    program = Lanes(tmp_path / "home")
    program.path.append(patient)
    yield program
    for process in program.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    left = program.processes()
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not left, f"left running: {left}"


@pytest.fixture
def echo(lanes: Lanes, tmp_path: Path) -> Lanes:
    """`lanes` where the example engine is installed: by pip, or else in a folder of the test's own."""
    if "echo" not in entry_points(group="lanes.engines").names:
        folder = tmp_path / "echo-site"
        folder.mkdir()
        (folder / "lanes_echo").symlink_to(EXAMPLES / "lanes-echo" / "lanes_echo")
        _metadata(folder, "lanes-echo", "[lanes.engines]\necho = lanes_echo.engine\n")
        lanes.path.append(folder)
    return lanes


def _metadata(folder: Path, distribution: str, entry_points: str) -> None:
    """What pip writes beside an installed distribution."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, lanes: Lanes) -> Callable[[str, str, str, dict[str, str]], None]:
    """A folder on the path in which plugins are installed as pip would: a module and its metadata."""
    folder = tmp_path / "site"
    folder.mkdir()
    lanes.path.append(folder)

    def install(distribution: str, module: str, source: str, entry_points: dict[str, str]) -> None:
        (folder / f"{module}.py").write_text(source)
        groups: dict[str, list[str]] = {}
        for name, group in entry_points.items():
            groups.setdefault(group, []).append(f"{name} = {module}")
        text = "\n".join(f"[{g}]\n" + "\n".join(lines) for g, lines in groups.items())
        _metadata(folder, distribution, text + "\n")

    return install


@pytest.fixture
def sleepy() -> str:
    """The source of a plugin that keeps every rule; its engine sleeps, and has no server."""
    return SLEEPY


@pytest.fixture
def gpu_library() -> Callable[..., Path]:
    """Write a shared object that holds machine code, in name only, for these architectures."""

    def write(path: Path, *names: str, machine: int = 62) -> Path:
        entries = b"".join(map(_gpu_code, names))
        fat = b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(entries)) + entries
        strings = b"\0.nv_fatbin\0.shstrtab\0"
        table = 64 + len(fat) + len(strings)
        head = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, machine, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2
        )
        rows = ((0, 0, 0, 0), (1, 1, 64, len(fat)), (12, 3, 64 + len(fat), len(strings)))
        sections = (
            struct.pack("<IIQQQQIIQQ", n, kind, 0, 0, at, size, 0, 0, 1, 0) for n, kind, at, size in rows
        )
        path.write_bytes(head + fat + strings + b"".join(sections))
        return path

    return write


def _gpu_code(name: str) -> bytes:
    """An entry of a fat binary: its header, and a payload of zeros."""
    arch, suffix = re.fullmatch(r"sm_(\d+)([af]?)", name).groups()
    flags = {"": 0, "a": 0x100000, "f": 0x200000}[suffix]
    return struct.pack("<HHIQ12xI8xQ", 2, 0x101, 48, 64, int(arch), flags) + bytes(64)


RACER = """
import sys
from lanes import claims, paths
from lanes.errors import Claimed
from lanes.executors.process import Owner
from lanes.hosts import Host

folder = paths.lanes() / "racer"
folder.mkdir(parents=True)
nodes = {name: Host(ssh=name) for name in sys.argv[1:]}
while sys.stdin.readline():
    try:
        claims.acquire(folder, nodes, cluster="c", file=None, run="r", owner=Owner())
        print("won", flush=True)
    except Claimed as error:
        print("claimed", flush=True)
    sys.stdin.readline()
    assert claims.release(folder) == []
    print("released", flush=True)
"""


def _race(
    rounds: int,
    homes: list[Path],
    nodes: list[str],
    env: dict[str, str],
    between: Callable[[], object] = lambda: None,
) -> list[list[str]]:
    """Have controllers with these homes claim the same nodes at once, time and again; what each got."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, *nodes], env={**env, "LANES_HOME": str(home)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )
        for home in homes
    ]  # fmt: skip
    results = []
    try:
        for _ in range(rounds):
            for racer in racers:
                racer.stdin.write("go\n")
            results.append(sorted(racer.stdout.readline().strip() for racer in racers))
            between()
            for racer in racers:
                racer.stdin.write("let go\n")
            assert {racer.stdout.readline() for racer in racers} == {"released\n"}
    finally:
        for racer in racers:
            racer.stdin.close()
            racer.wait(20)
    return results


@pytest.fixture
def race() -> Callable[..., list[list[str]]]:
    """Two controllers that claim the same nodes at once, time and again."""
    return _race


def _free_port() -> int:
    """A port of the loopback that stays free: of those that the system gives to nobody who does not ask for one."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            return int(probe.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    """A port of the loopback that nobody has, and nobody is given by chance."""
    return _free_port()


@pytest.fixture
def ssh_host(tmp_path: Path, lanes: Lanes) -> Iterator[str]:
    """A real sshd on the loopback, and an ssh client on the path that knows how to reach it as `box`."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd or not shutil.which("ssh"):
        pytest.skip("there is no sshd: apt-get install openssh-server openssh-client")
    for key in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key)], check=True)
    (tmp_path / "authorized").write_bytes((tmp_path / "client.pub").read_bytes())
    port = _free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"UsePAM no\nStrictModes no\nPasswordAuthentication no\nPidFile {tmp_path}/pid\n"
    )
    (tmp_path / "ssh_config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/client\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking accept-new\n"
    )
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "ssh"
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    client.chmod(0o755)
    lanes.env["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    Path("/run/sshd").mkdir(exist_ok=True) if os.access("/run", os.W_OK) else None
    server = subprocess.Popen(
        [sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL
    )
    wait_for(lambda: _listens(port), "sshd")
    yield "box"
    server.kill()
    server.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
