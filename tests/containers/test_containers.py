"""Lanes in containers, on a real Docker engine that the tests start for themselves."""

from __future__ import annotations

import json
import signal

import pytest

pytestmark = pytest.mark.docker

QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")


def test_a_lane_in_a_container_is_measured_and_removed(contained, dockerd, docker, containers):
    ran = contained("run", "--recipe", contained.recipe, *QUICK, "--json")
    assert ran.code == 0, ran.said
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "measured"
    assert 350 < lane["instruments"][0]["cells"][0]["metrics"]["decode_tps"]["median"] < 650
    reference = lane["launch"]["processes"][0]["container"]["image"]
    assert lane["images"]["0"]["reference"] == reference
    assert lane["images"]["0"]["id"] == docker(dockerd, "inspect", reference, "--format", "{{.Id}}").strip()
    assert containers(dockerd) == []


def test_a_served_container_carries_our_labels_and_stop_removes_it(contained, dockerd, docker, containers):
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


def test_a_container_that_dies_while_loading_is_told_of_with_its_cause(contained, dockerd, containers):
    ran = contained("run", "--recipe", contained.recipe, "--set", "die_while_loading=true", *QUICK, "--json")
    assert ran.code == 1
    (lane,) = ran.json["lanes"]
    assert lane["reason"].startswith(
        "the process exited with code 3 while loading: echo ran out of the memory"
    )
    assert containers(dockerd) == []


def test_a_container_killed_from_outside_is_a_crash(contained, dockerd, wait_for, docker, containers):
    run = contained.start(
        "run", "--recipe", contained.recipe, "--set", "tokens_per_second=20", *QUICK, "--json"
    )
    wait_for(lambda: any(r["phase"] == "measuring" for r in contained.records()), "measuring")
    docker(dockerd, "kill", containers(dockerd)[0]["ID"])
    ran = contained.finish(run)
    assert ran.code == 1
    assert "killed by SIGKILL while measuring" in ran.json["lanes"][0]["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_lanes_is_interrupted_or_killed(
    contained, dockerd, wait_for, number, containers
):
    run = contained.start("run", "--recipe", contained.recipe, "--set", "tokens_per_second=20", *QUICK)
    wait_for(lambda: any(r["phase"] == "measuring" for r in contained.records()), "measuring")
    run.send_signal(number)
    run.wait()
    wait_for(lambda: not containers(dockerd), "the container to be gone")
    assert contained("stop").code == 0
    assert contained("status", "--json").json == []


def test_an_orphan_container_is_found_and_removed_by_stop(contained, dockerd, wait_for, containers):
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


def test_a_strangers_container_is_never_touched(contained, dockerd, image, docker, containers):
    stranger = docker(dockerd, "create", "--name", "stranger", image, "true").strip()
    try:
        contained("run", "--recipe", contained.recipe, *QUICK)
        contained("stop")
        assert [one["Names"] for one in containers(dockerd)] == ["stranger"]
    finally:
        docker(dockerd, "rm", stranger)


def test_several_ranks_start_in_the_engines_order(contained, dockerd, docker, containers):
    served = contained(
        "serve", "--recipe", contained.recipe, "--set", "nodes=2", "--despite", "cluster", "--json"
    ).json
    names = [one["Names"] for one in containers(dockerd)]
    assert sorted(names) == [f"lanes-{served['id']}-rank{rank}" for rank in (0, 1)]
    began = {n: docker(dockerd, "inspect", n, "--format", "{{.State.StartedAt}}") for n in names}
    assert began[f"lanes-{served['id']}-rank1"] < began[f"lanes-{served['id']}-rank0"]
    contained("stop")
