"""Real Docker engines, started by the tests, and an engine of lanes whose processes run in containers.

The image holds nothing but folders: Python and lanes-echo come in by mounts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from lanes import lines


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Path]:
    """A Docker engine of the tests' own, and its socket."""
    with engine() as made:
        yield made.socket


class Engine:
    """A Docker engine, its command line after the words `before`; it may be killed, and started again."""

    def __init__(self, folder: Path, before: tuple[str, ...]) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self._argv = [
            *before,
            "dockerd",
            "--data-root",
            str(folder / "data"),
            "--exec-root",
            str(folder / "exec"),
        ]
        self._argv += [
            "-H",
            f"unix://{self.socket}",
            "--pidfile",
            str(folder / "pid"),
            "--iptables=false",
            "--bridge=none",
        ]

    def start(self) -> None:
        deadline = time.monotonic() + 90
        self._daemon: subprocess.Popen[bytes] | None = None
        while not _answers(self.socket):
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            # One that had to wait too long for its containerd, on a busy machine, ends.
            if self._daemon is None or self._daemon.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self._daemon = subprocess.Popen(self._argv, stdout=log, stderr=log)
            time.sleep(0.1)

    def kill(self) -> None:
        """Have it end at once, as a crash does."""
        self._daemon.kill()
        self._daemon.wait()

    def stop(self) -> None:
        self._daemon.terminate()
        self._daemon.wait(60)

    def pause(self) -> None:
        """Have it answer nobody."""
        self._daemon.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._daemon.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def engine(*before: str) -> Iterator[Engine]:
    """Run a Docker engine; its socket is gone with it."""
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("needs root and dockerd: apt-get install docker.io")
    # Not in pytest's folders: a socket's path has a limit of 107 bytes, and mounts are to be undone first.
    folder = Path(tempfile.mkdtemp(prefix="lanes-dockerd-", dir="/var/tmp"))
    made = Engine(folder, before)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(folder))), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(socket):
    ran = subprocess.run(["docker", "-H", f"unix://{socket}", "version"], capture_output=True, check=False)
    return ran.returncode == 0


@pytest.fixture(scope="session")
def image(dockerd, tmp_path_factory):
    """An image with the folders into which Python is mounted."""
    return empty_image(dockerd, tmp_path_factory.mktemp("image") / "rootfs.tar")


def empty_image(socket: Path, tar: Path) -> str:
    """Make the image of folders alone."""
    with tarfile.open(tar, "w") as made:
        for name in ("usr", "lib", "lib64", "bin", "tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            made.addfile(entry)
    docker_cli(socket, "import", str(tar), "lanes-test:1")
    return "lanes-test:1"


def docker_cli(socket, *arguments):
    ran = subprocess.run(
        ["docker", "-H", f"unix://{socket}", *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


CONTAINED = """
import attrs
import lanes

LANES_CONTRACT = 1


@lanes.hookimpl(wrapper=True)
def lanes_stage(lane):
    items = yield
    if lane.recipe and lane.recipe.image:
        return [*items, lanes.Image(name="image", reference=lane.recipe.image)]
    return items


@lanes.hookimpl(wrapper=True)
def lanes_launch(lane, placement, staged):
    launch = yield
    recipe = lane.recipe
    if recipe is None or recipe.image is None:
        return launch
    box = lanes.Container(image=recipe.image, mounts=recipe.mounts, labels={"site": "test"}, ipc="host")
    processes = []
    for rank in range(recipe.nodes):
        argv = list(launch.processes[0].argv)
        if rank:
            argv[argv.index("--port") + 1] = placement.rendezvous_port
            argv[argv.index("--host") + 1] = placement.seats[rank].address
        env = {**launch.processes[0].env, "HEAD": placement.head.address}
        processes.append(lanes.Process(rank=rank, argv=tuple(argv), env=env, container=box))
    return attrs.evolve(launch, processes=tuple(processes), start_order=tuple(reversed(range(recipe.nodes))))
"""


@pytest.fixture
def contained(echo, site, dockerd, image, tmp_path):
    """`lanes` with an engine whose recipes run in containers of the tests' Docker engine."""
    site("contained", "contained_plugin", CONTAINED, {"contained": "lanes.extensions"})
    echo.env["DOCKER_HOST"] = f"unix://{dockerd}"
    recipe = tmp_path / "contained.toml"
    recipe.write_text(boxed(image))
    echo.recipe = str(recipe)
    yield echo
    left = docker_cli(dockerd, "ps", "-aq")
    if left:
        docker_cli(dockerd, "rm", "-f", *left.split())
    assert not left, "containers were left"


def boxed(image: str) -> str:
    """A recipe for echo in containers, which see this machine's Python."""
    import lanes_echo

    folders = {
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        sys.prefix,
        sys.base_prefix,
        str(Path(lanes_echo.__file__).parents[1]),
    }
    folders |= {str(Path(__file__).parent.parent / "core")}
    mounts = "".join(
        f'[[mounts]]\nsource = "{p}"\ntarget = "{p}"\n' for p in sorted(folders) if os.path.isdir(p)
    )
    path = os.pathsep.join([p for p in sys.path if p])
    return (
        f'name = "boxed"\nengine = "echo"\nimage = "{image}"\n[model]\nname = "m"\n'
        f'[env]\nPYTHONPATH = "{path}"\nSECRET_TOKEN = "hf_verysecret"\n{mounts}'
    )


def containers_of(socket):
    return [
        json.loads(line) for line in docker_cli(socket, "ps", "-a", "--format", "{{json .}}").splitlines()
    ]


@pytest.fixture
def docker() -> Callable[..., str]:
    """The docker program, on the engine behind a socket."""
    return docker_cli


@pytest.fixture
def containers() -> Callable[..., list[dict[str, str]]]:
    """All containers of the engine behind a socket."""
    return containers_of


_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
"""Of linux/sched.h; `os.unshare` is there from Python 3.12 on."""


class Bed:
    """Four machines in namespaces of network and mounts, each with an sshd and a Docker engine of its own.

    They share the disk of this machine, but `/var/lib` is each one's own, and `/mnt/nas` what they all
    mount. Their NVIDIA toolkit is a hook that does nothing: a container that asks for GPUs is given none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = ["n1", "n2", "n3", "n4"]
        self.engines: dict[str, Engine] = {}
        self.sockets: dict[str, Path] = {}
        self.sshds: dict[str, subprocess.Popen[bytes]] = {}
        self.nas = folder / "mnt" / "nas"
        self.mounts: dict[str, subprocess.Popen[bytes]] = {}
        """For each machine a process that does nothing, in its namespace of mounts."""

    def var_lib(self, name: str) -> Path:
        """A machine's `/var/lib`, as this one sees it."""
        return self.folder / f"var-lib-{name}"

    def address(self, name: str) -> str:
        return f"10.99.0.1{name[1:]}"

    def inside(self, name: str) -> tuple[str, ...]:
        """The words before a program that is to run on a node. Not `ip netns exec`, which hides the cgroups."""
        mounts = f"--mount=/proc/{self.mounts[name].pid}/ns/mnt"
        return ("nsenter", f"--net=/run/netns/lanes-{name}", mounts)

    def cluster(self, *names: str, **more: str) -> str:
        """A cluster's TOML of these nodes."""
        head = "".join(f"{key} = {value}\n" for key, value in more.items())
        nodes = "".join(
            f'[[nodes]]\nname = "{n}"\nssh = "{n}"\naddress = "{self.address(n)}"\n' for n in names
        )
        return f'name = "bed"\n{head}{nodes}'

    def ssh(self, folder: Path) -> Path:
        """A folder with an `ssh` that knows the machines by their names, for the front of PATH."""
        folder.mkdir()
        client = folder / "ssh"
        client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        client.chmod(0o755)
        return folder

    @contextlib.contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """Have no packet come to a machine, or from it."""
        _ip("link", "set", f"lanes-{name}", "down")
        try:
            yield
        finally:
            _ip("link", "set", f"lanes-{name}", "up")

    def pids(self, name: str, program: str) -> list[int]:
        """The processes of a program that run in a machine's network."""
        ran = subprocess.run(["ip", "netns", "pids", f"lanes-{name}"], capture_output=True, check=True)
        return [pid for pid in map(int, ran.stdout.split()) if psutil.Process(pid).name() == program]

    def sshd(self, name: str) -> None:
        """Start (again) the node's sshd."""
        argv = [*self.inside(name), "/usr/sbin/sshd", "-D", "-e", "-f", str(self.folder / f"sshd-{name}")]
        with (self.folder / f"sshd-{name}.log").open("ab") as log:
            self.sshds[name] = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)


@pytest.fixture(autouse=True)
def hung_up() -> Iterator[None]:
    """End the connections of a test that reaches machines by itself: others look for what is left."""
    yield
    lines.hang_up()


@pytest.fixture(scope="session", autouse=True)
def own_network() -> None:
    """Give each of several workers a network and mounts of its own, so that their machines do not meet."""
    if os.environ.get("PYTEST_XDIST_WORKER") and os.geteuid() == 0 and shutil.which("ip"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
            pytest.skip(f"a worker needs namespaces of its own: {os.strerror(ctypes.get_errno())}")
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
        _ip("link", "set", "lo", "up")


@pytest.fixture(scope="session")
def bed(tmp_path_factory) -> Iterator[Bed]:
    """Four machines; skipped where there is no root, dockerd, sshd or ip."""
    with machines(Path(tmp_path_factory.mktemp("bed"))) as made:
        yield made


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[Bed]:
    """Make four machines, whose files lie in the folder, and take them down again."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "ip", "nsenter", "ssh"))):
        pytest.skip("needs root, dockerd, sshd and ip: apt-get install docker.io openssh-server iproute2")
    if not Path("/usr/sbin/sshd").exists():
        pytest.skip("needs sshd: apt-get install openssh-server")
    # Not /sys, which goes on showing the network in which it was mounted.
    if subprocess.run(["ip", "link", "show", "lanes-br"], capture_output=True, check=False).returncode == 0:
        pytest.skip("the network of these tests is in use by another run of them")
    made = Bed(folder)
    with contextlib.ExitStack() as stack:
        stack.callback(_take_down, made)
        _ip("link", "add", "lanes-br", "type", "bridge")
        _ip("addr", "add", "10.99.0.1/24", "dev", "lanes-br")
        _ip("link", "set", "lanes-br", "up")
        for key in ("host", "client"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made.folder / key)], check=True
            )
        shutil.copy(made.folder / "client.pub", made.folder / "authorized")
        Path("/run/sshd").mkdir(exist_ok=True)
        made.nas.mkdir(parents=True)
        hook = made.folder / "bin" / "nvidia-container-runtime-hook"
        hook.parent.mkdir()
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        for name in made.names:
            _machine(made, name)
        with ThreadPoolExecutor(4) as pool:
            path = f"PATH={hook.parent}:{os.environ['PATH']}"
            engines = [engine(*made.inside(name), "env", path) for name in made.names]
            started = pool.map(lambda one: stack.enter_context(one), engines)
            made.engines = dict(zip(made.names, started, strict=True))
        made.sockets = {name: one.socket for name, one in made.engines.items()}
        for name in made.names:
            _ssh_files(made, name)
            made.sshd(name)
        yield made


def _machine(made: Bed, name: str) -> None:
    host, inner = f"lanes-{name}", f"veth-{name}"
    _ip("netns", "add", f"lanes-{name}")
    _ip("link", "add", host, "type", "veth", "peer", "name", inner)
    _ip("link", "set", host, "master", "lanes-br", "up")
    _ip("link", "set", inner, "netns", f"lanes-{name}")
    _ip("-n", f"lanes-{name}", "addr", "add", f"{made.address(name)}/24", "dev", inner)
    _ip("-n", f"lanes-{name}", "link", "set", inner, "up")
    _ip("-n", f"lanes-{name}", "link", "set", "lo", "up")
    made.var_lib(name).mkdir()
    mounts = (
        f"mount --bind {made.nas.parent} /mnt && mount --bind {made.var_lib(name)} /var/lib "
        "&& echo mounted && exec sleep infinity"
    )
    made.mounts[name] = subprocess.Popen(["unshare", "--mount", "sh", "-c", mounts], stdout=subprocess.PIPE)
    assert made.mounts[name].stdout.readline() == b"mounted\n"


def _ssh_files(made: Bed, name: str) -> None:
    (made.folder / f"sshd-{name}").write_text(
        f"Port 22\nListenAddress {made.address(name)}\nHostKey {made.folder}/host\n"
        f"AuthorizedKeysFile {made.folder}/authorized\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
        f"PidFile none\nSetEnv DOCKER_HOST=unix://{made.sockets[name]} LANES_CLAIMS={made.folder}/claims-{name}\n"
    )
    with (made.folder / "ssh_config").open("a") as config:
        config.write(
            f"Host {name}\n  HostName {made.address(name)}\n  User root\n  IdentityFile {made.folder}/client\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {made.folder}/known\n  StrictHostKeyChecking accept-new\n"
        )


def _take_down(made: Bed) -> None:
    for sshd in made.sshds.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(sshd.pid, signal.SIGKILL)
        sshd.wait()
    for holder in made.mounts.values():
        holder.kill()
        holder.wait()
    for name in made.names:
        # Sessions of an sshd are in no group of its: what is left in a namespace keeps its network alive.
        left = subprocess.run(["ip", "netns", "pids", f"lanes-{name}"], capture_output=True, check=False)
        for pid in map(int, left.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Its end would go with the namespace, which a connection that never closed keeps for a while.
        subprocess.run(["ip", "link", "del", f"lanes-{name}"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", f"lanes-{name}"], check=False)
    subprocess.run(["ip", "link", "del", "lanes-br"], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def reaching(lanes, bed, tmp_path):
    """`lanes` that reaches the machines of the bed, and leaves no container there."""
    lanes.env["PATH"] = f"{bed.ssh(tmp_path / 'bin')}:{os.environ['PATH']}"
    yield lanes
    left = {n: docker_cli(s, "ps", "-aq").split() for n, s in bed.sockets.items() if _answers(s)}
    for name, ids in left.items():
        if ids:
            docker_cli(bed.sockets[name], "rm", "-f", *ids)
    assert not any(left.values()), f"containers were left: {left}"


@pytest.fixture
def clustered(reaching, contained, bed, tmp_path):
    """`lanes` that reaches the machines of the bed, with a recipe for all four and their cluster."""
    cluster = tmp_path / "bed.toml"
    cluster.write_text(bed.cluster(*bed.names))
    contained.cluster = str(cluster)
    return contained


class Scene:
    """A lane on two machines of the bed, and what must hold when something went wrong there."""

    PAIR = ("--set", "nodes=2", "--despite", "nodes")
    QUICK = ("--pp", "64", "--tg", "8", "--passes", "1", "--warmups", "0")
    LONG = ("--pp", "64", "--tg", "64", "--passes", "20", "--warmups", "0", "--set", "tokens_per_second=10")

    def __init__(self, lanes, bed: Bed, wait_for, cluster: Path) -> None:
        self.lanes, self.bed, self.wait_for = lanes, bed, wait_for
        self.cluster = cluster
        self.words = ("--recipe", lanes.recipe, *self.PAIR, "--cluster", str(cluster))

    def start(self, command: str, *more: str) -> subprocess.Popen[str]:
        return self.lanes.start(command, *self.words, *more, "--json")

    def reach(self, phase: str) -> None:
        """Wait until a lane is in this phase."""
        self.wait_for(lambda: any(r["phase"] == phase for r in self.lanes.records()), phase, 90)

    def fails(self, run: subprocess.Popen[str], timeout: float = 150) -> dict[str, Any]:
        """The row of a run's only lane, which must have failed, in a sentence with a next step."""
        ran = self.lanes.finish(run, timeout)
        assert ran.code == 1, ran.said
        (lane,) = ran.json["lanes"]
        assert lane["next_step"], lane["reason"]
        assert "lanes itself failed" not in lane["reason"]
        return dict(lane)

    @staticmethod
    def came_up(lane: dict[str, Any]) -> bool:
        """Whether a run's lane was measured; on a busy machine the figures may be none to believe."""
        return any(one["phase"] == "measuring" for one in lane["boot"])

    def containers(self) -> dict[str, list[str]]:
        return {n: [one["Names"] for one in containers_of(s)] for n, s in self.bed.sockets.items()}

    def claims(self) -> dict[str, dict[str, Any]]:
        """What `lanes clusters` tells of each node."""
        (row,) = self.lanes("clusters", "--cluster", str(self.cluster), "--json").json
        return {node["node"]: node for node in row["nodes"]}

    def ours(self) -> list[str]:
        """The processes of this program that are left: keepers, and connections to the machines."""
        found = [str(one) for one in self.lanes.processes()]
        for one in psutil.process_iter(["pid", "cmdline"]):
            words = one.info["cmdline"] or []
            keeps = "lanes.claim_keeper" in words and any(str(self.lanes.home) in word for word in words)
            if keeps or (words and words[0].endswith("ssh") and f"{self.bed.folder}/ssh_config" in words):
                found.append(" ".join(words))
        return found

    def clean(self, *strangers: str) -> None:
        """Assert that nothing is left: no container but the strangers', no process, no claim, no lane."""
        self.wait_for(lambda: not self.ours(), "keepers and connections to be gone", 60)
        assert {name for names in self.containers().values() for name in names} == set(strangers)
        assert {node["state"] for node in self.claims().values()} == {"free"}
        assert self.lanes("status", "--json").json == []

    def runs_again(self, *strangers: str, more: tuple[str, ...] = ()) -> Any:
        """Assert that a second lane, whose start mends what the first one left, comes up and goes down."""
        served = self.lanes.finish(self.start("serve", *more), 150)
        assert served.code == 0, served.err
        stopped = self.lanes("stop", served.json["id"], timeout=90)
        assert stopped.code == 0, stopped.err
        self.clean(*strangers)
        return served


@pytest.fixture
def scene(clustered, bed, wait_for, tmp_path) -> Iterator[Scene]:
    """A lane on n1 and n2, whose claims are nobody's when the test is over."""
    cluster = tmp_path / "pair.toml"
    cluster.write_text(bed.cluster("n1", "n2"))
    yield Scene(clustered, bed, wait_for, cluster)
    for name in bed.names:
        (bed.folder / f"claims-{name}" / "claim").unlink(missing_ok=True)


@pytest.fixture
def engine_on(bed) -> Callable[..., contextlib.AbstractContextManager[Engine]]:
    """A further Docker engine on a machine, its command line after these words."""
    return lambda name, *before: engine(*bed.inside(name), *before)
