"""Machines of a lane that are lost in the middle: the network, the sshd, the Docker engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

LOADS = ("--set", "load_seconds=300", "--set", "patience_s=600")


@contextlib.contextmanager
def held_by_hand(bed, name):
    """Somebody is at a node's claim: a controller waits there."""
    (bed.folder / f"claims-{name}").mkdir(exist_ok=True)
    lock = os.open(bed.folder / f"claims-{name}", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def test_a_node_cut_off_while_it_is_claimed(scene, bed):
    with held_by_hand(bed, "n2"):
        run = scene.start("run", *scene.QUICK)
        scene.reach("claiming")
        scene.wait_for((bed.folder / "claims-n1" / "claim").exists, "n1's claim")
        with bed.cut_off("n2"):
            lane = scene.fails(run)
    assert lane["reason"].startswith("n2 cannot be reached: ")
    assert "the claim on n2" in lane["next_step"]
    assert "`lanes stop` tries again" in lane["next_step"]
    assert scene.claims()["n1"]["state"] == "free", "what it had got is let go of"
    scene.runs_again()


def test_a_node_cut_off_while_its_image_is_asked_for(scene, bed):
    bed.engines["n2"].pause()
    try:
        run = scene.start("run", *scene.QUICK)
        scene.reach("staging")
        with bed.cut_off("n2"):
            bed.engines["n2"].go_on()
            lane = scene.fails(run)
    finally:
        bed.engines["n2"].go_on()
    assert lane["reason"].startswith("image lanes-test:1: ")
    assert "n2" in lane["reason"]
    assert "the claim on n2" in lane["next_step"]
    scene.runs_again()


def test_a_node_cut_off_while_others_are_launched(scene, bed, containers):
    run = scene.start("run", *LOADS, *scene.QUICK)
    scene.reach("launching")
    bed.engines["n1"].pause()
    try:
        scene.wait_for(lambda: containers(bed.sockets["n2"]), "the rank that is started first", 60)
        with bed.cut_off("n1"):
            bed.engines["n1"].go_on()
            lane = scene.fails(run)
    finally:
        bed.engines["n1"].go_on()
    assert lane["reason"].startswith("rank 0: the process could not be started: ")
    assert "n1" in lane["reason"]
    assert lane["reason"].endswith("while launching")
    scene.runs_again()


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_cut_off_while_loading(scene, bed, node):
    run = scene.start("run", *LOADS, *scene.QUICK)
    scene.reach("loading")
    with bed.cut_off(node):
        lane = scene.fails(run)
    assert lane["reason"].startswith(f"rank {int(node[1]) - 1}: its node is lost: {node} cannot be reached: ")
    assert lane["reason"].endswith("while loading")
    assert f"containers on {node}" in lane["next_step"]
    assert "`lanes stop` tries again" in lane["next_step"]
    (left,) = scene.lanes("status", "--json").json
    assert left["state"] == "orphaned"
    assert "ended while stopping; its processes still run" in left["sentence"]
    scene.runs_again()


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_cut_off_while_measuring(scene, bed, node):
    run = scene.start("run", *scene.LONG)
    scene.reach("measuring")
    with bed.cut_off(node):
        lane = scene.fails(run)
    assert f"{node} cannot be reached: " in lane["reason"]
    assert lane["reason"].endswith("while measuring")
    assert f"containers on {node}" in lane["next_step"]
    scene.runs_again()


def test_a_node_cut_off_while_a_lane_serves(scene, bed):
    served = scene.lanes.finish(scene.start("serve"), 120)
    assert served.code == 0, served.said
    with bed.cut_off("n2"):
        scene.wait_for(lambda: scene.lanes("status", "--json").json[0]["state"] == "died", "the loss", 120)
        said = scene.lanes("status").said
        assert "died while serving: rank 1: its node is lost: n2 cannot be reached" in said
        stopped = scene.lanes("stop", timeout=120)
        assert stopped.code == 1
        assert "containers on n2" in stopped.err
    scene.runs_again()


def test_a_node_cut_off_while_a_lane_is_stopped(scene, bed, containers):
    served = scene.lanes.finish(scene.start("serve"), 120)
    assert served.code == 0, served.said
    bed.engines["n2"].pause()
    try:
        stop = scene.lanes.start("stop")
        scene.wait_for(lambda: not containers(bed.sockets["n1"]), "rank 0 to be stopped", 60)
        with bed.cut_off("n2"):
            bed.engines["n2"].go_on()
            stopped = scene.lanes.finish(stop, 120)
            assert stopped.code == 1
            assert "containers on n2 (n2 cannot be reached" in stopped.err
            assert "try again" in stopped.err
            (row,) = scene.lanes("status", "--json").json
            assert row["state"] == "orphaned"
            assert row["sentence"].startswith(
                "`lanes stop` has not finished; whether its containers run cannot be asked"
            )
    finally:
        bed.engines["n2"].go_on()
    scene.runs_again()


def test_a_node_that_is_away_for_a_moment_is_not_lost(scene, bed):
    served = scene.lanes.finish(scene.start("serve"), 120)
    assert served.code == 0, served.said
    kill_sshd(bed, "n2")
    bed.sshd("n2")
    time.sleep(3)
    (row,) = scene.lanes("status", "--json").json
    assert row["state"] == "serving"
    assert scene.lanes("logs", served.json["id"], "--rank", "1").out.count("echo: ready") == 1
    assert scene.lanes("stop").code == 0
    scene.clean()


def kill_sshd(bed, name):
    """Kill a machine's sshd, with every connection that it has."""
    for pid in bed.pids(name, "sshd"):
        os.kill(pid, signal.SIGKILL)
    bed.sshds[name].wait()


@pytest.mark.parametrize("phase", ["loading", "measuring"])
def test_an_sshd_that_is_killed_with_its_connections(scene, bed, phase):
    run = scene.start("run", *(LOADS + scene.QUICK if phase == "loading" else scene.LONG))
    scene.reach(phase)
    kill_sshd(bed, "n2")
    try:
        lane = scene.fails(run)
    finally:
        bed.sshd("n2")
    assert lane["reason"].startswith("rank 1: its node is lost: n2 cannot be reached: ")
    assert "Connection refused" in lane["reason"]
    scene.runs_again()


def test_an_sshd_that_is_killed_alone_keeps_but_the_claim(scene, bed):
    served = scene.lanes.finish(scene.start("serve"), 120)
    assert served.code == 0, served.said
    os.kill(bed.sshds["n2"].pid, signal.SIGKILL)
    bed.sshds["n2"].wait()
    try:
        stopped = scene.lanes("stop", timeout=90)
        assert stopped.code == 1
        assert "the claim on n2 (n2 cannot be reached" in stopped.err
        assert not any(scene.containers().values()), "the connections that were there did their work"
    finally:
        bed.sshd("n2")
    scene.runs_again()


@pytest.mark.parametrize("phase", ["loading", "measuring"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_docker_engine_that_ends_and_comes_back(scene, bed, phase, how):
    run = scene.start("run", *(LOADS + scene.QUICK if phase == "loading" else scene.LONG))
    scene.reach(phase)
    getattr(bed.engines["n2"], how)()
    bed.engines["n2"].start()
    lane = scene.fails(run)
    assert lane["reason"].startswith(
        "rank 1: the Docker engine on n2 stopped, and the container with it while"
    )
    assert "journalctl -u docker" in lane["next_step"]
    scene.runs_again()


def test_a_docker_engine_that_does_not_come_back(scene, bed):
    run = scene.start("run", *LOADS, *scene.QUICK)
    scene.reach("loading")
    bed.engines["n2"].kill()
    try:
        lane = scene.fails(run)
    finally:
        bed.engines["n2"].start()
    assert lane["reason"].startswith("rank 1: its node is lost: no Docker engine answers on n2")
    scene.runs_again()
