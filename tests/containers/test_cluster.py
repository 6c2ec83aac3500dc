"""Lanes over several machines: real sshd's, real Docker engines, one rank a node."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")
FOUR = ("--set", "nodes=4", "--despite", "nodes")


def everywhere(bed, containers):
    return {name: [one["Names"] for one in containers(socket)] for name, socket in bed.sockets.items()}


def test_a_lane_of_four_ranks_is_brought_up_measured_from_outside_and_taken_down(
    clustered, bed, containers, docker
):
    served = clustered(
        "serve", "--recipe", clustered.recipe, *FOUR, "--cluster", clustered.cluster, "--json", timeout=120
    )
    assert served.code == 0, served.said
    lane = served.json["id"]
    assert served.json["url"].startswith("http://10.99.0.11:")
    assert everywhere(bed, containers) == {f"n{i + 1}": [f"lanes-{lane}-rank{i}"] for i in range(4)}
    began = [
        json.loads(docker(bed.sockets[f"n{i + 1}"], "inspect", f"lanes-{lane}-rank{i}"))[0]["State"][
            "StartedAt"
        ]
        for i in range(4)
    ]
    assert began == sorted(began, reverse=True), "the engine's order is rank 3 first"
    bench = clustered("bench", *QUICK, "--json")
    assert bench.json["lanes"][0]["status"] == "measured"
    assert "ready" in clustered("logs", lane, "--rank", "3").out
    assert clustered("stop").out == f"stopped {lane}\n"
    assert not any(everywhere(bed, containers).values())


def test_the_image_is_brought_to_nodes_that_lack_it(clustered, bed, docker, image):
    for socket in bed.sockets.values():
        docker(socket, "rmi", "-f", image) if image in docker(
            socket, "images", "--format", "{{.Repository}}:{{.Tag}}"
        ) else None
    ran = clustered(
        "run",
        "--recipe",
        clustered.recipe,
        *FOUR,
        "--cluster",
        clustered.cluster,
        *QUICK,
        "--json",
        timeout=120,
    )
    assert ran.code == 0, ran.said
    for socket in bed.sockets.values():
        assert image in docker(socket, "images", "--format", "{{.Repository}}:{{.Tag}}")


def test_a_rank_that_dies_while_serving_fails_the_lane_at_once_and_by_name(
    clustered, bed, docker, wait_for, containers
):
    run = clustered.start(
        "run", "--recipe", clustered.recipe, *FOUR, "--cluster", clustered.cluster, "--set", "tokens_per_second=10", *QUICK, "--json"
    )  # fmt: skip
    wait_for(lambda: any(r["phase"] == "measuring" for r in clustered.records()), "measuring", 60)
    docker(bed.sockets["n3"], "kill", containers(bed.sockets["n3"])[0]["ID"])
    ran = clustered.finish(run, 60)
    assert ran.code == 1
    assert ran.json["lanes"][0]["status"] == "crashed", ran.json["lanes"][0]["reason"]
    assert "rank 2: the process was killed by SIGKILL" in ran.json["lanes"][0]["reason"]
    assert not any(everywhere(bed, containers).values())


@pytest.mark.parametrize("phase", ["loading", "measuring"])
def test_kill_9_of_the_controller_leaves_no_container_on_any_node(
    clustered, bed, wait_for, containers, phase
):
    slow = ("--set", "load_seconds=30") if phase == "loading" else ("--set", "tokens_per_second=10")
    run = clustered.start(
        "run", "--recipe", clustered.recipe, *FOUR, "--cluster", clustered.cluster, *slow, *QUICK
    )
    wait_for(lambda: any(r["phase"] == phase for r in clustered.records()), phase, 60)
    run.kill()
    run.wait()
    wait_for(lambda: not any(everywhere(bed, containers).values()), "the containers to be gone", 60)
    assert clustered("status", "--json").json[0]["state"] == "interrupted"
    assert clustered("stop").code == 0


def test_orphans_on_every_node_are_found_and_removed(clustered, bed, wait_for, containers):
    run = clustered.start(
        "run", "--recipe", clustered.recipe, *FOUR, "--cluster", clustered.cluster, "--set", "tokens_per_second=10", *QUICK
    )  # fmt: skip
    wait_for(lambda: any(r["phase"] == "measuring" for r in clustered.records()), "measuring", 60)
    for process in clustered.processes():
        process.kill()
    run.kill()
    run.wait()
    assert sum(map(len, everywhere(bed, containers).values())) == 4
    assert clustered("status", "--json").json[0]["state"] == "orphaned"
    assert "cleaned up after" in clustered("stop").out
    assert not any(everywhere(bed, containers).values())


def test_a_node_that_cannot_be_reached_is_named_before_anything_starts(clustered, bed, tmp_path, containers):
    file = tmp_path / "wrong.toml"
    file.write_text(bed.cluster("n1", "n2", "n3", "n9"))
    ran = clustered("run", "--recipe", clustered.recipe, *FOUR, "--cluster", str(file), *QUICK)
    assert ran.code == 1
    assert "n9" in ran.err
    assert "must work without a password" in ran.err
    assert not any(everywhere(bed, containers).values())


def test_a_protected_cluster_is_refused(clustered, bed, tmp_path):
    file = tmp_path / "protected.toml"
    file.write_text(bed.cluster(*bed.names, protected="true"))
    for command in ("run", "serve"):
        ran = clustered(command, "--recipe", clustered.recipe, *FOUR, "--cluster", str(file))
        assert ran.code == 2
        assert "is protected" in ran.err
    assert clustered("check", clustered.recipe, *FOUR, "--cluster", str(file)).code in (0, 3)


def test_the_dry_run_shows_every_rank_and_contacts_nobody(clustered, bed):
    clustered.env["PATH"] = "/nonexistent"
    ran = clustered(
        "run", "--recipe", clustered.recipe, *FOUR, "--cluster", clustered.cluster, "--dry-run", "--json"
    )
    (preview,) = ran.json
    assert [p["rank"] for p in preview["launch"]["processes"]] == [0, 1, 2, 3]
    assert "10.99.0.14" in preview["launch"]["processes"][3]["argv"]
    assert {p["env"]["HEAD"] for p in preview["launch"]["processes"]} == {"10.99.0.11"}
