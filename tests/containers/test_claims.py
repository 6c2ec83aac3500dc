"""Claims on four machines: real sshd's, real Docker engines; and what the doctor says of them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time

import psutil
import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")
FOUR = ("--set", "nodes=4", "--despite", "nodes")
FREE = {"n1": "free", "n2": "free", "n3": "free", "n4": "free"}

SLOW_STAGE = """
import os
import lanes

LANES_CONTRACT = 1

@lanes.hookimpl(wrapper=True)
def lanes_stage():
    # A named pipe that nobody writes to: a copy that does not end.
    items = yield
    return [*items, lanes.Files(name="model", parts=(os.environ["SLOW_FILE"],))]
"""


@pytest.fixture(autouse=True)
def no_claims(bed):
    """What a test that failed has left is not the next one's."""
    yield
    for name in bed.names:
        (bed.folder / f"claims-{name}" / "claim").unlink(missing_ok=True)


@pytest.fixture
def other(clustered, tmp_path):
    """Another controller, of another home."""
    program = type(clustered)(tmp_path / "other")
    program.path = clustered.path
    program.env |= {k: clustered.env[k] for k in ("PATH", "DOCKER_HOST")}
    yield program
    left = program.processes()
    for one in left:
        one.kill()
    assert not left


def lane(program, clustered, command, *more):
    return program.start(
        command, "--recipe", clustered.recipe, *FOUR, "--cluster", clustered.cluster, "--json", *more
    )


def nodes(program, clustered):
    (row,) = program("clusters", "--cluster", clustered.cluster, "--json").json
    return {node["node"]: node for node in row["nodes"]}


def states(program, clustered):
    return {name: node["state"] for name, node in nodes(program, clustered).items()}


def everywhere(bed, containers):
    return {name: [one["Names"] for one in containers(socket)] for name, socket in bed.sockets.items()}


def gone(program):
    """Whether no keeper, of ranks or of claims, is left."""
    for one in psutil.process_iter():
        try:
            if "lanes.claim_keeper" in one.cmdline() and any(str(program.home) in w for w in one.cmdline()):
                return False
        except psutil.Error:
            continue
    return not program.processes()


def connections(bed):
    """The ssh that are left to machines of the bed."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if words[:1] and words[0].endswith("ssh") and f"{bed.folder}/ssh_config" in words:
            found.append(words)
    return found


def test_a_lane_holds_all_its_nodes_and_another_controller_is_told_by_whom(clustered, other):
    serve = clustered.finish(lane(clustered, clustered, "serve"), 120)
    assert serve.code == 0, serve.said
    held = nodes(other, clustered)
    assert {node["state"] for node in held.values()} == {"live"}
    assert {node["claim"]["lane"] for node in held.values()} == {serve.json["id"]}
    for command in ("run", "serve"):
        refused = other.finish(lane(other, clustered, command, "--take-over", "mine"), 60)
        assert refused.code == 4
        assert f"cluster 'bed' is claimed: n1 by lane {serve.json['id']} of " in refused.said
    assert other("clusters", "release", clustered.cluster).code == 4
    doctor = other("doctor", "--cluster", clustered.cluster, "--json")
    assert doctor.code == 0, doctor.out
    (row,) = clustered("status", "--json").json
    assert row["state"] == "serving", "nobody was disturbed"
    assert clustered("stop").code == 0
    assert states(other, clustered) == FREE


def test_a_lane_on_some_nodes_leaves_the_others_to_others(clustered, other, bed, tmp_path):
    two = tmp_path / "two.toml"
    two.write_text(bed.cluster("n1", "n2"))
    rest = tmp_path / "rest.toml"
    rest.write_text(bed.cluster("n2", "n3"))
    one = ("--set", "nodes=2", "--despite", "nodes")
    assert clustered("serve", "--recipe", clustered.recipe, *one, "--cluster", str(two)).code == 0
    assert states(other, clustered) == {"n1": "live", "n2": "live", "n3": "free", "n4": "free"}
    refused = other("serve", "--recipe", clustered.recipe, *one, "--cluster", str(rest))
    assert refused.code == 4
    assert "n2 by lane" in refused.err
    assert states(other, clustered)["n3"] == "free", "what it had got is let go of"
    clustered("stop")
    assert states(other, clustered) == FREE


def test_of_two_controllers_that_race_exactly_one_wins(clustered, bed, race, tmp_path):
    env = {**os.environ, **clustered.env}
    results = race(15, [tmp_path / "a", tmp_path / "b"], list(reversed(bed.names)), env)
    assert results == [["claimed", "won"]] * 15
    assert states(clustered, clustered) == FREE


def test_of_two_programs_that_race_exactly_one_serves(clustered, other, bed, containers):
    for _ in range(2):
        both = [lane(program, clustered, "serve") for program in (clustered, other)]
        codes = [program.finish(one, 120).code for program, one in zip((clustered, other), both, strict=True)]
        assert sorted(codes) == [0, 4]
        assert sum(map(len, everywhere(bed, containers).values())) == 4
        (clustered if codes[0] == 0 else other)("stop")
        assert states(other, clustered) == FREE


@pytest.mark.parametrize("phase", ["claiming", "staging", "launching", "loading", "measuring"])
def test_kill_9_in_each_phase_is_told_and_mended(phase, clustered, bed, wait_for, containers, site, tmp_path):
    settings = {"loading": "load_seconds=30", "measuring": "tokens_per_second=10"}.get(phase)
    lock = None
    if phase == "claiming":
        # Somebody is at n3's claim: this controller has n1 and n2, and waits.
        (bed.folder / "claims-n3").mkdir(exist_ok=True)
        lock = os.open(bed.folder / "claims-n3", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    if phase == "staging":
        os.mkfifo(tmp_path / "pipe")
        clustered.env["SLOW_FILE"] = str(tmp_path / "pipe")
        site("slow", "slow_plugin", SLOW_STAGE, {"slow": "lanes.extensions"})
    run = lane(clustered, clustered, "run", *QUICK, *(("--set", settings) if settings else ()))
    wait_for(lambda: any(r["phase"] == phase for r in clustered.records()), phase, 60)
    if phase == "claiming":
        wait_for((bed.folder / "claims-n2" / "claim").exists, "n2's claim")
    elif phase != "launching":
        time.sleep(0.5)
    run.kill()
    run.wait()
    if lock is not None:
        os.close(lock)
    wait_for(lambda: gone(clustered), "the keepers to be done", 60)
    wait_for(lambda: not any(everywhere(bed, containers).values()), "the containers to be gone", 60)
    found = nodes(clustered, clustered)
    assert found["n1"]["state"] == "dead"
    assert f"lanes (pid {run.pid}) on this machine is gone" in found["n1"]["sentence"]
    assert {node["state"] for node in found.values()} <= {"dead", "free"}
    wait_for(lambda: not connections(bed), "the connections to be gone")
    doctor = clustered("doctor", "--cluster", clustered.cluster, "--json")
    assert doctor.code == 1
    assert "cleaned up after" in clustered("stop").out
    assert states(clustered, clustered) == FREE
    assert clustered("doctor", "--cluster", clustered.cluster).code == 0


def test_the_dead_ones_containers_are_removed_by_whoever_takes_over(
    clustered, other, bed, wait_for, containers
):
    run = lane(clustered, clustered, "run", "--set", "tokens_per_second=10", *QUICK)
    wait_for(lambda: any(r["phase"] == "measuring" for r in clustered.records()), "measuring", 60)
    for process in [run, *clustered.processes()]:
        process.kill()
    run.wait()
    wait_for(lambda: gone(clustered), "the claim's keeper")
    assert sum(map(len, everywhere(bed, containers).values())) == 4
    doctor = other("doctor", "--cluster", clustered.cluster, "--json")
    assert doctor.code == 1
    wrong = {c["question"] for c in doctor.json["nodes"][2]["checks"] if c["state"] == "wrong"}
    assert wrong == {"claim", "leftovers"}
    ran = other.finish(lane(other, clustered, "run", *QUICK), 120)
    assert ran.code == 0, ran.said
    assert not any(everywhere(bed, containers).values())
    assert "cleaned up after" in clustered("stop").out
    assert states(other, clustered) == FREE


def test_release_removes_containers_and_claims_of_the_dead_and_nothing_else(
    clustered, other, bed, wait_for, containers, docker, image
):
    run = lane(clustered, clustered, "run", "--set", "tokens_per_second=10", *QUICK)
    wait_for(lambda: any(r["phase"] == "measuring" for r in clustered.records()), "measuring", 60)
    for process in [run, *clustered.processes()]:
        process.kill()
    run.wait()
    wait_for(lambda: gone(clustered), "the claim's keeper")
    docker(bed.sockets["n2"], "create", "--name", "strangers", image, "/bin/true")
    try:
        released = other("clusters", "release", clustered.cluster)
        assert released.code == 0, released.said
        assert released.out.count("released n") == 4
        assert everywhere(bed, containers) == {"n1": [], "n2": ["strangers"], "n3": [], "n4": []}
    finally:
        docker(bed.sockets["n2"], "rm", "-f", "strangers")
    assert states(other, clustered) == FREE
    assert "cleaned up after" in clustered("stop").out


def test_a_node_that_is_away_when_its_claim_is_let_go_of_is_let_go_of_later(clustered, other, bed):
    serve = clustered.finish(lane(clustered, clustered, "serve"), 120)
    assert serve.code == 0, serve.said
    sshd = bed.sshds["n4"]
    os.killpg(sshd.pid, signal.SIGKILL)
    sshd.wait()
    try:
        stopped = clustered("stop", timeout=120)
        assert stopped.code == 1
        assert "n4" in stopped.err
        status = clustered("status", "--json")
        assert status.code == 0, "a node that is away is no reason to say nothing"
        assert [one["id"] for one in status.json] == [serve.json["id"]]
        assert nodes(other, clustered)["n4"]["state"] == "unreachable"
        doctor = other("doctor", "--cluster", clustered.cluster, "--json")
        assert doctor.code == 1
        assert [c["question"] for c in doctor.json["nodes"][3]["checks"]] == ["reachable"]
    finally:
        bed.sshd("n4")
    time.sleep(0.5)
    assert clustered("stop").code == 0
    assert states(other, clustered) == FREE


def test_the_doctor_asks_four_machines_at_once_and_finds_nothing(clustered, bed):
    ran = clustered("doctor", "--cluster", clustered.cluster, "--json")
    assert ran.code == 0, ran.out
    for node in ran.json["nodes"]:
        answers = {check["question"]: check for check in node["checks"]}
        assert {"reachable", "clock", "address", "route", "ports", "memory", "claim", "docker", "disk", "leftovers"} <= answers.keys()  # fmt: skip
        assert answers["address"]["what"] == f"{bed.address(node['node'])} is on veth-{node['node']}"
    assert "Nothing is wrong." in clustered("doctor", "--cluster", clustered.cluster).out


def test_the_doctor_names_what_is_wrong_with_its_mend(clustered, bed, tmp_path, docker, image):
    text = bed.cluster(*bed.names).replace(
        'address = "10.99.0.12"', 'address = "10.99.0.12"\ninterface = "ib0"'
    )
    file = tmp_path / "wrong.toml"
    file.write_text(
        text.replace('"10.99.0.13"', '"10.98.0.13"').replace('name = "n4"', 'name = "n4"\ngpu = "gb10"')
    )
    left = ("create", "--name", "lanes-old-rank0", "--label", "lanes.owner=/far/old", image, "/bin/true")
    docker(bed.sockets["n1"], *left)
    try:
        ran = clustered("doctor", "--cluster", str(file), "--json")
    finally:
        docker(bed.sockets["n1"], "rm", "-f", "lanes-old-rank0")
    assert ran.code == 1
    wrong = {
        node["node"]: {c["question"]: c for c in node["checks"] if c["state"] == "wrong"}
        for node in ran.json["nodes"]
    }
    assert "lanes-old-rank0" in wrong["n1"]["leftovers"]["what"]
    assert wrong["n1"]["leftovers"]["mend"] == "there: docker rm -f lanes-old-rank0"
    assert wrong["n2"]["interface"]["what"] == "there is no interface ib0"
    assert "10.98.0.13" in wrong["n3"]["address"]["what"]
    assert "no way leads to 10.98.0.13" in wrong["n1"]["route"]["what"]
    assert "the file says 1 (gb10)" in wrong["n4"]["gpu"]["what"]
    assert all(c["mend"] for checks in wrong.values() for c in checks.values())


def test_a_docker_engine_that_hangs_or_is_gone_is_told(clustered, bed):
    found = subprocess.run(
        ["pgrep", "-f", f"dockerd .*{bed.sockets['n3'].parent}/"], capture_output=True, text=True, check=True
    )
    pid = int(found.stdout.split()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        ran = clustered("doctor", "--cluster", clustered.cluster, "--json", timeout=90)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ran.code == 1
    answers = {check["question"]: check for check in ran.json["nodes"][2]["checks"]}
    assert answers["docker"]["state"] == "wrong"
    assert "systemctl status docker" in answers["docker"]["mend"]
    assert json.dumps(ran.json["nodes"][0]).count('"wrong"') == 0
