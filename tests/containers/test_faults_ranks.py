"""Ranks that die, and controllers that are killed: the next run mends what is left, and is clean."""

from __future__ import annotations

import signal

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

LOADS = ("--set", "load_seconds=300", "--set", "patience_s=600")


def kill_rank(bed, docker, containers, rank, how="kill"):
    socket = bed.sockets[f"n{rank + 1}"]
    (one,) = containers(socket)
    docker(socket, *how.split(), one["ID"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_loading(scene, bed, docker, containers, rank):
    run = scene.start("run", *LOADS, *scene.QUICK)
    scene.reach("loading")
    kill_rank(bed, docker, containers, rank)
    lane = scene.fails(run, 60)
    assert lane["status"] == "crashed"
    assert lane["reason"].startswith(f"rank {rank}: the process was killed by SIGKILL while loading: ")
    assert "from outside, by a person or by the system" in lane["reason"]
    scene.clean()
    scene.runs_again()


def test_a_rank_that_dies_while_loading_of_what_its_log_says(scene):
    lane = scene.fails(scene.start("run", "--set", "die_while_loading=true", *scene.QUICK), 60)
    assert lane["status"] == "crashed"
    assert "the process exited with code 3 while loading: echo ran out of the memory" in lane["reason"]
    assert lane["reason"].startswith("rank ")
    assert lane["next_step"] == "set die_while_loading = false"
    scene.clean()
    scene.runs_again()


def test_a_rank_whose_container_somebody_removes_while_measuring(scene, bed, docker, containers):
    run = scene.start("run", *scene.LONG)
    scene.reach("measuring")
    kill_rank(bed, docker, containers, 1, "rm -f")
    lane = scene.fails(run, 60)
    # Docker kills what it removes: which of the two is seen first is a matter of chance, and both are true.
    assert lane["reason"].startswith(
        (
            "rank 1: somebody removed its container on n2 while measuring",
            "rank 1: the process was killed by SIGKILL while measuring",
        )
    )
    scene.clean()
    scene.runs_again()


def test_a_rank_that_dies_while_a_lane_serves(scene, bed, docker, containers):
    served = scene.lanes.finish(scene.start("serve"), 120)
    assert served.code == 0, served.said
    kill_rank(bed, docker, containers, 1)
    scene.wait_for(lambda: scene.lanes("status", "--json").json[0]["state"] == "died", "the death", 60)
    assert "died while serving: rank 1: the process was killed by SIGKILL" in scene.lanes("status").said
    bench = scene.lanes("bench", served.json["id"], *scene.QUICK)
    assert bench.code == 2
    assert "died while serving: rank 1" in bench.err
    scene.runs_again()


@pytest.mark.parametrize("phase", ["claiming", "launching", "loading", "measuring", "stopping"])
def test_the_next_run_at_once_after_kill_9_of_the_controller(scene, bed, phase):
    more = {"loading": LOADS + scene.QUICK, "measuring": scene.LONG, "stopping": scene.LONG}.get(phase)
    run = scene.start("run", *(more or scene.QUICK))
    if phase == "stopping":
        scene.reach("measuring")
        bed.engines["n2"].pause()
        run.send_signal(signal.SIGTERM)
    try:
        scene.reach(phase)
        run.kill()
        run.wait()
    finally:
        bed.engines["n2"].go_on()
    ran = scene.runs_again()
    how = "ended" if phase == "stopping" else "was killed"
    assert f"lanes (pid {run.pid}) {how} while {phase}; " in ran.err


def test_a_stop_that_is_killed_is_finished_by_the_next_run(scene, bed):
    served = scene.lanes.finish(scene.start("serve"), 120)
    assert served.code == 0, served.said
    bed.engines["n2"].pause()
    try:
        stop = scene.lanes.start("stop")
        scene.wait_for(
            lambda: any(scene.lanes.home.glob("lanes/*/rank0/exit.json")), "rank 0 to be stopped", 60
        )
        stop.kill()
        stop.wait()
    finally:
        bed.engines["n2"].go_on()
    scene.runs_again()
