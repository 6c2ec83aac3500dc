"""What a host refuses, or has in the way: an image for another processor, limits, ports, names."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

MEMLOCK = """
import attrs
import lanes

LANES_CONTRACT = 1


@lanes.hookimpl(wrapper=True)
def lanes_launch():
    launch = yield
    return attrs.evolve(
        launch,
        processes=tuple(
            attrs.evolve(one, container=attrs.evolve(one.container, memlock_bytes=-1))
            for one in launch.processes
        ),
    )
"""

WAITS = """
import os
import time
import lanes

LANES_CONTRACT = 1


@lanes.hookimpl(wrapper=True)
def lanes_stage():
    while not os.path.exists(os.environ["GO_ON"]):
        time.sleep(0.05)
    return (yield)
"""


def archive(machine):
    """An image of nothing for a processor, as `docker load` takes it."""
    layer = io.BytesIO()
    tarfile.open(fileobj=layer, mode="w").close()
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"architecture": machine, "os": "linux", "config": {}}
    config |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    manifest = [{"Config": "config.json", "RepoTags": ["lanes-other:1"], "Layers": ["layer.tar"]}]
    files = {"layer.tar": layer.getvalue(), "config.json": json.dumps(config).encode()}
    files["manifest.json"] = json.dumps(manifest).encode()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def test_an_image_for_another_processor(scene, bed, docker, dockerd):
    other, named = ("arm64", "aarch64") if platform.machine() == "x86_64" else ("amd64", "x86_64")
    subprocess.run(["docker", "-H", f"unix://{dockerd}", "load"], input=archive(other), check=True)
    try:
        lane = scene.fails(scene.start("run", "--set", "image=lanes-other:1", *scene.QUICK))
    finally:
        docker(dockerd, "rmi", "-f", "lanes-other:1")
    assert f"image lanes-other:1 is made for {named}, and n" in lane["reason"]
    assert f"is {platform.machine()}" in lane["reason"]
    scene.clean()
    scene.runs_again()


def test_a_host_that_refuses_memlock(scene, bed, engine_on, site, docker):
    site("locks", "locks_plugin", MEMLOCK, {"locks": "lanes.extensions"})
    # Low, and without the right to raise it: as a Docker engine in a container is.
    with engine_on("n2", "prlimit", "--memlock=65536", "setpriv", "--bounding-set=-sys_resource") as engine:
        whole = scene.cluster.read_text().replace('ssh = "n2"', f'ssh = "n2"\ndocker = "{engine.socket}"')
        scene.cluster.write_text(whole)
        lane = scene.fails(scene.start("run", *scene.QUICK))
        assert lane["reason"].startswith(
            "rank 1: the process could not be started: the Docker engine on n2 is not permitted to raise memlock"
        )
        assert 'say memlock_bytes = "host" under [limits]' in lane["next_step"]
        scene.clean()
        scene.cluster.write_text(whole.replace("[[nodes]]", '[limits]\nmemlock_bytes = "host"\n[[nodes]]', 1))
        scene.runs_again()
        assert not docker(engine.socket, "ps", "-aq")


def test_a_port_that_somebody_listens_on(scene, bed):
    listens = "import socket; s = socket.create_server(('', 31999)); print(flush=True); s.accept()"
    somebody = subprocess.Popen([*bed.inside("n1"), sys.executable, "-c", listens], stdout=subprocess.PIPE)
    try:
        assert somebody.stdout.readline() == b"\n"
        lane = scene.fails(scene.start("run", "--port", "31999", *scene.QUICK))
    finally:
        somebody.kill()
        somebody.wait()
    assert lane["reason"] == "port 31999 on n1 cannot be used: somebody listens there"
    assert "`ssh n1 ss -tlnp` tells who" in lane["next_step"]
    scene.clean()
    scene.runs_again(more=("--port", "31999"))


@pytest.fixture
def named(scene, bed, dockerd, image, site, tmp_path):
    """A run that has its id and waits, and a function that makes a container with a rank's name on n2."""
    saved = subprocess.run(
        ["docker", "-H", f"unix://{dockerd}", "save", image], stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["docker", "-H", f"unix://{bed.sockets['n2']}", "load"], input=saved.stdout, check=True)
    go_on = tmp_path / "go-on"
    scene.lanes.env["GO_ON"] = str(go_on)
    site("waits", "waits_plugin", WAITS, {"waits": "lanes.extensions"})
    run = scene.start("run", *scene.QUICK)
    scene.reach("staging")
    (record,) = scene.lanes.records()
    return run, go_on, f"lanes-{record['id']}-rank1"


def test_a_name_that_a_strangers_container_has(named, scene, bed, docker, image):
    run, go_on, name = named
    stranger = docker(bed.sockets["n2"], "create", "--name", name, image, "/bin/true").strip()
    try:
        go_on.touch()
        lane = scene.fails(run)
        assert lane["reason"] == (
            f"rank 1: the process could not be started: there is a container {name} already, "
            "which is not one of lanes while launching"
        )
        assert f"docker rm -f {name}" in lane["next_step"]
        assert docker(bed.sockets["n2"], "ps", "-aq", "--no-trunc").split() == [stranger]
        scene.clean(name)
        scene.runs_again(name)
        assert docker(bed.sockets["n2"], "ps", "-aq", "--no-trunc").split() == [stranger]
    finally:
        docker(bed.sockets["n2"], "rm", "-f", name)


def test_a_name_that_a_leftover_of_ours_has(named, scene, bed, docker, image):
    run, go_on, name = named
    docker(bed.sockets["n2"], "create", "--name", name, "--label", "lanes.owner=/far/old", image, "/bin/true")
    go_on.touch()
    ran = scene.lanes.finish(run, 120)
    (lane,) = ran.json["lanes"]
    assert scene.came_up(lane), lane["reason"]
    scene.clean()
    scene.runs_again()


def test_a_name_that_another_lanes_running_container_has(named, scene, bed, docker, image):
    """It may live: of that only its owner decides."""
    run, go_on, name = named
    words = ("run", "-d", "--name", name, "--label", "lanes.owner=/far/old", "--network", "host")
    mounts = [
        word for folder in ("/usr", "/lib", "/lib64", "/bin") for word in ("-v", f"{folder}:{folder}:ro")
    ]
    docker(bed.sockets["n2"], *words, *mounts, image, "/bin/sleep", "300")
    try:
        go_on.touch()
        lane = scene.fails(run)
        assert "which belongs to the lane of /far/old, and runs" in lane["reason"]
        assert docker(bed.sockets["n2"], "ps", "--format", "{{.Names}}").split() == [name]
        scene.clean(name)
    finally:
        docker(bed.sockets["n2"], "rm", "-f", name)
