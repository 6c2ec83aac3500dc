"""Real Docker engines, started by the tests, and an engine of lanes whose processes run in containers.

The image holds nothing but folders: Python and lanes-echo come in by mounts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def dockerd(tmp_path_factory):
    """A Docker engine of the tests' own, and its socket."""
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("needs root and dockerd: apt-get install docker.io")
    folder = Path(tmp_path_factory.mktemp("dockerd"))
    # The path of a socket has a limit of 107 bytes, and pytest's folders are deep.
    socket = Path(f"/run/lanes-test-{os.getpid()}.sock")
    log = (folder / "log").open("wb")
    daemon = subprocess.Popen(
        ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "-H", f"unix://{socket}",
         "--pidfile", str(folder / "pid"), "--iptables=false", "--ip6tables=false", "--bridge=none"],
        stdout=log, stderr=log,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not _answers(socket):
            assert daemon.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield socket
    finally:
        daemon.terminate()
        daemon.wait(30)
        socket.unlink(missing_ok=True)
        subprocess.run(["umount", "-q", "-R", str(folder / "data")], check=False)


def _answers(socket):
    ran = subprocess.run(["docker", "-H", f"unix://{socket}", "version"], capture_output=True, check=False)
    return ran.returncode == 0


@pytest.fixture(scope="session")
def image(dockerd, tmp_path_factory):
    """An image with the folders into which Python is mounted."""
    tar = tmp_path_factory.mktemp("image") / "rootfs.tar"
    with tarfile.open(tar, "w") as made:
        for name in ("usr", "lib", "lib64", "bin", "tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            made.addfile(entry)
    docker_cli(dockerd, "import", str(tar), "lanes-test:1")
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
        one = attrs.evolve(launch.processes[0], rank=rank, container=box)
        if rank:
            at = one.argv.index("--port")
            one = attrs.evolve(one, argv=(*one.argv[: at + 1], placement.rendezvous_port, *one.argv[at + 2 :]))
        processes.append(one)
    return attrs.evolve(launch, processes=tuple(processes), start_order=tuple(reversed(range(recipe.nodes))))
"""


@pytest.fixture
def contained(echo, site, dockerd, image, tmp_path):
    """`lanes` with an engine whose recipes run in containers of the tests' Docker engine."""
    site("contained", "contained_plugin", CONTAINED, {"contained": "lanes.extensions"})
    echo.env["DOCKER_HOST"] = f"unix://{dockerd}"
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
    recipe = tmp_path / "contained.toml"
    recipe.write_text(
        f'name = "boxed"\nengine = "echo"\nimage = "{image}"\n[model]\nname = "m"\n'
        f'[env]\nPYTHONPATH = "{path}"\nSECRET_TOKEN = "hf_verysecret"\n{mounts}'
    )
    echo.recipe = str(recipe)
    yield echo
    left = docker_cli(dockerd, "ps", "-aq")
    if left:
        docker_cli(dockerd, "rm", "-f", *left.split())
    assert not left, "containers were left"


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
