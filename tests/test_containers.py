"""Lanes in containers, on a real Docker engine that the tests start for themselves.

The engine in them is lanes-echo: the image holds nothing but a folder, and Python comes in by mounts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")


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
    docker(dockerd, "import", str(tar), "lanes-test:1")
    return "lanes-test:1"


def docker(socket, *arguments):
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
    left = docker(dockerd, "ps", "-aq")
    if left:
        docker(dockerd, "rm", "-f", *left.split())
    assert not left, "containers were left"


def containers(dockerd):
    return [json.loads(line) for line in docker(dockerd, "ps", "-a", "--format", "{{json .}}").splitlines()]


def test_a_lane_in_a_container_is_measured_and_removed(contained, dockerd):
    ran = contained("run", "--recipe", contained.recipe, *QUICK, "--json")
    assert ran.code == 0, ran.said
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "measured"
    assert 350 < lane["instruments"][0]["cells"][0]["metrics"]["decode_tps"]["median"] < 650
    assert containers(dockerd) == []


def test_a_served_container_carries_our_labels_and_stop_removes_it(contained, dockerd):
    served = contained("serve", "--recipe", contained.recipe, "--json").json
    (one,) = containers(dockerd)
    labels = json.loads(docker(dockerd, "inspect", one["ID"], "--format", "{{json .Config.Labels}}"))
    assert (labels["lanes.lane"], labels["lanes.rank"], labels["site"]) == (served["id"], "0", "test")
    assert one["Names"] == f"lanes-{served['id']}-rank0"
    assert "ready" in contained("logs", served["id"]).out
    assert contained("bench", *QUICK).code == 0
    assert contained("status", "--json").json[0]["state"] == "serving"
    assert contained("stop").out == f"stopped {served['id']}\n"
    assert containers(dockerd) == []
    kept = b"".join(f.read_bytes() for f in contained.home.rglob("*") if f.is_file())
    assert b"verysecret" not in kept


def test_a_container_that_dies_while_loading_is_told_of_with_its_cause(contained, dockerd):
    ran = contained("run", "--recipe", contained.recipe, "--set", "die_while_loading=true", *QUICK, "--json")
    assert ran.code == 1
    (lane,) = ran.json["lanes"]
    assert lane["reason"].startswith(
        "the process exited with code 3 while loading: echo ran out of the memory"
    )
    assert containers(dockerd) == []


def test_a_container_killed_from_outside_is_a_crash(contained, dockerd, wait_for):
    run = contained.start(
        "run", "--recipe", contained.recipe, "--set", "tokens_per_second=20", *QUICK, "--json"
    )
    wait_for(lambda: any(r["phase"] == "measuring" for r in contained.records()), "measuring")
    docker(dockerd, "kill", containers(dockerd)[0]["ID"])
    ran = contained.finish(run)
    assert ran.code == 1
    assert "killed by SIGKILL while measuring" in ran.json["lanes"][0]["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_lanes_is_interrupted_or_killed(contained, dockerd, wait_for, number):
    run = contained.start("run", "--recipe", contained.recipe, "--set", "tokens_per_second=20", *QUICK)
    wait_for(lambda: any(r["phase"] == "measuring" for r in contained.records()), "measuring")
    run.send_signal(number)
    run.wait()
    wait_for(lambda: not containers(dockerd), "the container to be gone")
    assert contained("stop").code == 0
    assert contained("status", "--json").json == []


def test_an_orphan_container_is_found_and_removed_by_stop(contained, dockerd, wait_for):
    run = contained.start("run", "--recipe", contained.recipe, "--set", "tokens_per_second=20", *QUICK)
    wait_for(lambda: any(r["phase"] == "measuring" for r in contained.records()), "measuring")
    for process in contained.processes():
        process.kill()
    run.kill()
    run.wait()
    (status,) = contained("status", "--json").json
    assert status["state"] == "orphaned"
    assert "cleaned up after boxed-" in contained("stop").out
    assert containers(dockerd) == []


def test_an_image_that_is_not_there_is_one_sentence(contained, dockerd):
    ran = contained(
        "run", "--recipe", contained.recipe, "--set", "image=lanes-test:no-such-tag", *QUICK, "--json"
    )
    assert ran.code == 1
    reason = ran.json["lanes"][0]["reason"]
    assert reason.startswith("image lanes-test:no-such-tag is not on this machine, and cannot be pulled")


def test_no_docker_engine_is_one_sentence(contained):
    contained.env["DOCKER_HOST"] = "unix:///no/such/docker.sock"
    ran = contained("run", "--recipe", contained.recipe, *QUICK, "--json")
    assert ran.code == 1
    assert "no Docker engine answers on this machine" in ran.json["lanes"][0]["reason"]


def test_a_strangers_container_is_never_touched(contained, dockerd, image):
    stranger = docker(dockerd, "create", "--name", "stranger", image, "true").strip()
    try:
        contained("run", "--recipe", contained.recipe, *QUICK)
        contained("stop")
        assert [one["Names"] for one in containers(dockerd)] == ["stranger"]
    finally:
        docker(dockerd, "rm", stranger)


def test_several_ranks_start_in_the_engines_order(contained, dockerd):
    served = contained(
        "serve", "--recipe", contained.recipe, "--set", "nodes=2", "--despite", "cluster", "--json"
    ).json
    names = [one["Names"] for one in containers(dockerd)]
    assert sorted(names) == [f"lanes-{served['id']}-rank{rank}" for rank in (0, 1)]
    began = {n: docker(dockerd, "inspect", n, "--format", "{{.State.StartedAt}}") for n in names}
    assert began[f"lanes-{served['id']}-rank1"] < began[f"lanes-{served['id']}-rank0"]
    contained("stop")
