"""Claims: of two controllers that want the same nodes one gets them, and whoever is gone can be told."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import time
from pathlib import Path

import psutil
import pytest
from lanes import claims, doctor
from lanes.clusters import ClusterNode
from lanes.executors import process
from lanes.hosts import HERE, Host

GRID = ("--pp", "64", "--tg", "64", "--passes", "50", "--warmups", "1")
QUICK = ("--pp", "64", "--tg", "8", "--passes", "1", "--warmups", "0")


@pytest.fixture
def alone(echo, tmp_path):
    """`lanes` with a cluster of this machine alone, whose claims are kept in a folder of the test."""
    file = tmp_path / "home" / "clusters" / "one.toml"
    file.parent.mkdir(parents=True)
    file.write_text('name = "one"\n[[nodes]]\nname = "n1"\n')
    echo.cluster = str(file)
    echo.env["LANES_CLAIMS"] = str(tmp_path / "claims")
    echo.claim = tmp_path / "claims" / "claim"
    return echo


@pytest.fixture
def other(alone, tmp_path):
    """Another `lanes`, of another home, that wants the same cluster."""
    program = type(alone)(tmp_path / "other")
    program.path = alone.path
    program.env["LANES_CLAIMS"] = alone.env["LANES_CLAIMS"]
    yield program
    left = program.processes()
    for one in left:
        one.kill()
    assert not left


def state(program):
    (row,) = program("clusters", "--cluster", program.cluster, "--json").json
    return row["nodes"][0]


def keepers(program):
    found = []
    for one in psutil.process_iter():
        try:
            if "lanes.claim_keeper" in one.cmdline() and any(str(program.home) in w for w in one.cmdline()):
                found.append(one)
        except psutil.Error:
            continue
    return found


def foreign(program, silent_s=0, boot=None, **more):
    """Write the claim of a controller elsewhere."""
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    gone = {"pid": 1, "created": 1.0}
    controller = {
        "host": "far",
        "user": "ann",
        "boot": "elsewhere",
        "pids": "x",
        "owner": gone,
        "keeper": gone,
    }
    claim = {"token": "feed", "cluster": "theirs", "lane": "glm-1234", "run": "r1", "folder": "/far/glm-1234"}
    claim |= {"controller": controller, "lease_s": 300, "took_over": None} | more
    program.claim.parent.mkdir(exist_ok=True)
    since = int(time.time() - silent_s)
    program.claim.write_text(json.dumps({"boot": boot or here, "since": since, "claim": claim}))
    os.utime(program.claim, (since, since))


# -- A lane and its claim -------------------------------------------------------------------------


def test_a_lane_holds_its_nodes_while_it_serves_and_lets_go_when_it_stops(alone, other):
    serve = alone("serve", "--engine", "echo", "--cluster", alone.cluster, "--json")
    assert serve.code == 0, serve.err
    lane = serve.json["id"]
    node = state(alone)
    assert node["state"] == "live"
    assert node["claim"]["lane"] == lane
    assert node["claim"]["user"] == getpass.getuser()
    assert time.time() - node["claim"]["since"] < 60
    assert f"lane {lane} of {getpass.getuser()}@" in node["sentence"]

    for more in ((), ("--take-over", "I want it")):
        ran = other("run", "--engine", "echo", "--cluster", alone.cluster, *more, *QUICK, "--json")
        assert ran.code == 4
        (refused,) = ran.json["lanes"]
        assert refused["status"] == "failed"
        assert f"cluster 'one' is claimed: n1 by lane {lane} of " in refused["reason"]
    assert "who lives is not taken over from" in refused["next_step"]
    assert not any(r["ending"] is None for r in other.records())
    refused = other("serve", "--engine", "echo", "--cluster", alone.cluster)
    assert refused.code == 4
    assert refused.err.startswith("lanes: cluster 'one' is claimed: n1 by lane ")

    again = alone("serve", "--engine", "echo", "--cluster", alone.cluster)
    assert again.code == 4
    assert f"`lanes stop {lane}` stops it" in again.err
    assert alone("stop").out == f"stopped {lane}\n"
    assert state(alone)["state"] == "free"
    assert not keepers(alone)
    ran = other("run", "--engine", "echo", "--cluster", alone.cluster, *QUICK)
    assert ran.code == 0, ran.err
    assert state(alone)["state"] == "free"


def test_this_machine_alone_is_not_claimed(alone):
    assert alone("run", "--engine", "echo", *QUICK).code == 0
    assert not alone.claim.parent.exists()
    assert state(alone)["state"] == "free"
    assert not alone.claim.parent.exists(), "looking changes nothing"


def test_a_lane_that_dies_lets_go(alone):
    ran = alone(
        "run", "--engine", "echo", "--set", "die_while_loading=true", "--cluster", alone.cluster, *QUICK
    )
    assert ran.code == 1
    assert state(alone)["state"] == "free"
    assert not keepers(alone)


# -- Owners that are gone -------------------------------------------------------------------------


def killed_while(alone, wait_for, phase):
    """Start a run, kill -9 it in this phase, and wait for its keepers to do what they must."""
    settings = {"loading": ("--set", "load_seconds=30"), "measuring": ("--set", "tokens_per_second=100")}
    lock = None
    if phase == "claiming":
        alone.claim.parent.mkdir()
        lock = os.open(alone.claim.parent, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    run = alone.start("run", "--engine", "echo", "--cluster", alone.cluster, *settings.get(phase, ()), *GRID)
    wait_for(lambda: any(r["phase"] == phase for r in alone.records()), phase)
    time.sleep(0.5)
    run.kill()
    run.wait()
    if lock is not None:
        os.close(lock)
        # What it had asked for happens all the same.
        wait_for(alone.claim.exists, "the claim")
    wait_for(lambda: not alone.processes() and not keepers(alone), "the keepers to be done")
    return run


@pytest.mark.parametrize("phase", ["claiming", "loading", "measuring"])
def test_kill_9_is_told_by_clusters_and_mended_by_stop(alone, wait_for, phase):
    run = killed_while(alone, wait_for, phase)
    node = state(alone)
    assert node["state"] == "dead"
    assert f"lanes (pid {run.pid}) on this machine is gone" in node["sentence"]
    shown = alone("clusters").said
    assert "one n1 dead lane echo-" in shown
    assert "`lanes stop` cleans up" in shown
    assert "cleaned up after echo-" in alone("stop").out
    assert state(alone)["state"] == "free"


def test_the_next_run_mends_first_and_goes_on(alone, wait_for):
    killed_while(alone, wait_for, "loading")
    ran = alone("run", "--engine", "echo", "--cluster", alone.cluster, *QUICK)
    assert ran.code == 0, ran.err
    assert "cleaned up after echo-" in ran.err


def test_another_home_takes_over_from_who_is_surely_dead(alone, other, wait_for):
    killed_while(alone, wait_for, "measuring")
    ran = other("run", "--engine", "echo", "--cluster", alone.cluster, *QUICK, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["lanes"][0]["overrides"] == []
    assert "cleaned up after" in alone("stop").out


def test_clusters_release_cleans_up_after_the_dead(alone, other, wait_for):
    killed_while(alone, wait_for, "loading")
    released = other("clusters", "release", alone.cluster)
    assert released.code == 0
    assert released.out.startswith("released n1: lane echo-")
    assert other("clusters", "release", alone.cluster).out == "nothing to release\n"
    assert state(alone)["state"] == "free"


def test_a_lane_whose_claim_lost_its_keeper_lives_on_and_keeps_it(alone, other):
    alone("serve", "--engine", "echo", "--cluster", alone.cluster)
    (keeper,) = keepers(alone)
    keeper.kill()
    assert state(alone)["state"] == "live"
    assert other("serve", "--engine", "echo", "--cluster", alone.cluster).code == 4
    assert other("clusters", "release", alone.cluster).code == 4
    alone("stop")
    assert state(alone)["state"] == "free"


def test_an_owner_that_gives_no_sign_of_life_is_shown_with_its_age_and_replaced_only_with_a_reason(alone):
    foreign(alone, silent_s=4 * 3600)
    assert state(alone)["state"] == "stale"
    assert "lane glm-1234 of ann@far since " in state(alone)["sentence"]
    ran = alone("run", "--engine", "echo", "--cluster", alone.cluster, *QUICK, "--json")
    assert ran.code == 4
    assert "no sign of life for 4 h" in ran.json["lanes"][0]["reason"]
    assert "--take-over REASON" in ran.json["lanes"][0]["next_step"]
    ran = alone(
        "run", "--engine", "echo", "--cluster", alone.cluster, "--take-over", "Ann is away", *QUICK, "--json"
    )
    assert ran.code == 0, ran.err
    (override,) = ran.json["lanes"][0]["overrides"]
    assert override.startswith("claim of n1 from lane glm-1234 of ann@far since ")
    assert override.endswith(": Ann is away")
    assert state(alone)["state"] == "free"


def test_an_owner_elsewhere_that_lives_is_never_replaced(alone):
    foreign(alone, silent_s=100)
    ran = alone("serve", "--engine", "echo", "--cluster", alone.cluster, "--take-over", "mine")
    assert ran.code == 4
    released = alone("clusters", "release", alone.cluster)
    assert released.code == 4
    assert "n1 is claimed by lane glm-1234 of ann@far" in released.err
    assert json.loads(alone.claim.read_text())["claim"]["token"] == "feed"


def test_a_node_that_has_booted_since_is_free_to_take(alone):
    foreign(alone, boot="before")
    assert "dead: the node has booted since" in state(alone)["sentence"]
    assert alone("run", "--engine", "echo", "--cluster", alone.cluster, *QUICK).code == 0


def test_a_pid_of_another_namespace_is_no_proof(alone):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    gone = {"pid": 1, "created": 1.0}
    foreign(
        alone,
        controller={
            "host": "box",
            "user": "u",
            "boot": boot,
            "pids": "pid:[1]",
            "owner": gone,
            "keeper": gone,
        },
    )
    assert state(alone)["state"] == "live"


def test_a_claim_that_cannot_be_read_is_respected(alone):
    alone.claim.parent.mkdir()
    alone.claim.write_text("\x1b[2Jwhat?\n")
    assert state(alone)["state"] == "unreadable"
    ran = alone("serve", "--engine", "echo", "--cluster", alone.cluster, "--take-over", "why not")
    assert ran.code == 4
    assert "somebody whose claim cannot be read" in ran.err
    assert alone.claim.read_text() == "\x1b[2Jwhat?\n"


def test_a_folder_for_claims_that_cannot_be_made_is_one_sentence(alone, tmp_path):
    (tmp_path / "file").write_text("")
    alone.env["LANES_CLAIMS"] = str(tmp_path / "file" / "claims")
    ran = alone("serve", "--engine", "echo", "--cluster", alone.cluster)
    assert ran.code == 1
    assert "sh on this machine failed: " in ran.err


# -- Protected clusters ---------------------------------------------------------------------------


def test_a_protected_cluster_is_changed_by_nothing(alone):
    serve = alone("serve", "--engine", "echo", "--cluster", alone.cluster, "--json")
    file = Path(alone.cluster)
    plain = file.read_text()
    file.write_text(f"protected = true\n{plain}")
    for words in (
        ("run", "--engine", "echo", "--cluster", alone.cluster, "--take-over", "I must"),
        ("serve", "--engine", "echo", "--cluster", alone.cluster),
        ("clusters", "release", "one"),
        ("stop",),
        ("stop", "--all"),
        ("stop", serve.json["id"]),
    ):
        ran = alone(*words)
        assert ran.code == 2, words
        assert "protected" in ran.err
    assert alone("status", "--json").json[0]["state"] == "serving"
    assert "(protected)" in alone("clusters").said
    file.write_text(plain)
    assert alone("stop").code == 0


# -- Two controllers ------------------------------------------------------------------------------


def test_of_two_that_race_for_one_cluster_exactly_one_wins_each_time(tmp_path, race):
    """Each node is a folder here; the same over real machines is in containers/test_claims.py."""
    (tmp_path / "ssh").write_text(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n"
        f'export LANES_CLAIMS={tmp_path}/"$2"\nexec sh -c "$3"\n'
    )  # fmt: skip
    (tmp_path / "ssh").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    nodes = ["n3", "n1", "n2"]

    def one_holds_all():
        found = {json.loads((tmp_path / n / "claim").read_text())["claim"]["token"] for n in nodes}
        assert len(found) == 1

    results = race(100, [tmp_path / "a", tmp_path / "b"], nodes, env, one_holds_all)
    assert results == [["claimed", "won"]] * 100
    assert not any((tmp_path / n / "claim").exists() for n in nodes)
    assert not any(p for n in nodes for p in (tmp_path / n).iterdir()), "nothing is left"


def test_a_sign_of_life_is_given_by_the_nodes_clock(tmp_path, monkeypatch):
    monkeypatch.setenv("LANES_CLAIMS", str(tmp_path / "claims"))
    folder = tmp_path / "lane-1"
    folder.mkdir()
    assert claims.acquire(folder, {"n1": HERE}, cluster="c", file=None, run="r", owner=process.Owner()) == []
    os.utime(tmp_path / "claims" / "claim", (1, 1))
    assert claims.look(HERE).silent_s > 1e9
    assert claims.look(HERE).state == "live", "its processes are seen to live, whatever its signs"
    claims.beat(folder)
    assert claims.look(HERE).silent_s < 60
    assert claims.release(folder) == []
    assert claims.release(folder) == []
    assert claims.look(HERE).state == "free"


def test_two_names_of_one_machine_are_one_claim(tmp_path, monkeypatch):
    monkeypatch.setenv("LANES_CLAIMS", str(tmp_path / "claims"))
    folder = tmp_path / "lane-1"
    folder.mkdir()
    nodes = {"a": HERE, "b": Host()}
    assert claims.acquire(folder, nodes, cluster="c", file=None, run="r", owner=process.Owner()) == []
    assert claims.release(folder) == []


# -- The doctor -----------------------------------------------------------------------------------


def told(text="", ago=0.0):
    now = time.time()
    clock = f"@@ clock\n{now + ago:.3f}\n"
    return doctor.Told(sections=doctor.sections(text + clock), asked=now - 0.1, answered=now + 0.1)


@pytest.mark.parametrize(
    ("ahead", "state", "what"),
    [(0.5, "ok", "within"), (60, "wrong", "60 s ahead of"), (-3600, "wrong", "3600 s behind")],
)
def test_a_clock_that_is_wrong_is_told(ahead, state, what):
    check = doctor.clock(told(ago=ahead))
    assert (check.state, what in check.what) == (state, True)


NETWORK = """@@ link
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 state UNKNOWN
2: eth0@if9: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 state UP
3: eth1: <BROADCAST,MULTICAST> mtu 1500 state DOWN
@@ addr
1: lo    inet 127.0.0.1/8 scope host lo
2: eth0    inet 10.0.0.1/24 scope global eth0
@@ route
10.0.0.2: {route}
"""
DIRECT = "10.0.0.2 dev eth0 src 10.0.0.1 uid 0"


@pytest.mark.parametrize(
    ("interface", "address", "route", "wrong"),
    [
        ("eth0", "10.0.0.1", DIRECT, []),
        ("eth9", "10.0.0.1", DIRECT, ["there is no interface eth9"]),
        ("eth1", "10.0.0.1", DIRECT, ["eth1 is down", "10.0.0.1 is on eth0, not on eth1"]),
        ("eth0", "10.0.0.7", DIRECT, ["no interface has the address 10.0.0.7"]),
        ("eth0", "10.0.0.1", "RTNETLINK answers: Network is unreachable", ["no way leads to 10.0.0.2"]),
        ("eth0", "10.0.0.1", "10.0.0.2 via 1.1.1.1 dev wlan0 src 1.2.3.4", ["leaves by wlan0, not by eth0"]),
    ],
)
def test_interfaces_addresses_and_ways_are_held_against_the_file(interface, address, route, wrong):
    node = ClusterNode(name="n1", interface=interface, address=address)
    found = list(doctor.network(node, told(NETWORK.format(route=route)), ["10.0.0.2"]))
    said = [check.what for check in found if check.state == "wrong"]
    assert all(check.mend for check in found if check.state == "wrong")
    assert all(any(part in what for what in said) for part in wrong), said
    assert bool(said) == bool(wrong)


def test_a_gid_index_without_a_gid_is_wrong():
    text = "@@ gid\n/sys/class/infiniband/mlx5_0/ports/1 0000:0000:0000:0000:0000:0000:0000:0000\n"
    node = ClusterNode(name="n", gid_index=3)
    (found,) = [c for c in doctor.network(node, told(text), []) if c.question == "gid"]
    assert found.state == "wrong"
    (found,) = [
        c for c in doctor.network(node, told(text.replace("0000\n", "0a01\n")), []) if c.question == "gid"
    ]
    assert found.state == "ok"


def test_docker_that_is_too_old_and_gpus_that_it_cannot_give_are_wrong():
    assert doctor.docker_version({"Version": "18.06", "ApiVersion": "1.38"}).state == "wrong"
    assert doctor.docker_version({"Version": "29.0", "ApiVersion": "1.52"}).state == "ok"
    assert doctor.toolkit({"Runtimes": {"runc": {}}}, told()).state == "wrong"
    assert doctor.toolkit({"Runtimes": {"runc": {}, "nvidia": {}}}, told()).state == "ok"
    assert doctor.toolkit({}, told("@@ toolkit\n/etc/cdi/nvidia.yaml\n")).state == "ok"


def test_the_doctor_names_each_fault_with_its_mend_and_exits_1(alone, tmp_path):
    alone.env["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"
    foreign(alone, silent_s=4000)
    ran = alone("doctor", "--cluster", "one", "--json")
    assert ran.code == 1
    (node,) = ran.json["nodes"]
    wrong = {check["question"]: check for check in node["checks"] if check["state"] == "wrong"}
    assert {"docker", "claim"} <= wrong.keys()
    assert all(check["mend"] for check in wrong.values())
    assert "no sign of life" in wrong["claim"]["what"]
    shown = alone("doctor", "--cluster", "one")
    assert shown.code == 1
    assert f"{len(wrong)} to mend." in shown.out


def test_a_node_that_cannot_be_reached_is_one_line_of_the_doctors(alone, tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(
        'name = "two"\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\nssh = "no-such-host.invalid"\n'
    )
    ran = alone("doctor", "--cluster", str(file), "--json")
    assert ran.code == 1
    first, second = ran.json["nodes"]
    assert len(first["checks"]) > 3
    (only,) = second["checks"]
    assert only["question"] == "reachable"
    assert "must work without a password" in only["mend"] or "install it" in only["mend"]


def test_clusters_that_cannot_be_read_or_reached_are_rows(alone):
    folder = Path(alone.cluster).parent
    (folder / "broken.toml").write_text("name = ")
    (folder / "far.toml").write_text('name = "far"\n[[nodes]]\nname = "a"\nssh = "no-such-host.invalid"\n')
    (folder / "twice.toml").write_text('name = "t"\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "a"\n')
    rows = {row["cluster"]: row for row in alone("clusters", "--json").json}
    assert "is not TOML" in rows["broken"]["problem"]
    assert "'a' is the name of two nodes" in rows["twice"]["problem"]
    assert rows["far"]["nodes"][0]["state"] == "unreachable"
    assert rows["one"]["nodes"][0]["state"] == "free"
    assert alone("clusters").code == 0
    refused = alone("clusters", "release", "far")
    assert refused.code == 1


# -- Over SSH -------------------------------------------------------------------------------------


@pytest.mark.sshd
def test_claims_of_a_machine_over_ssh_are_seen_and_cleaned_up(alone, ssh_host, wait_for, tmp_path, race):
    keys = (tmp_path / "authorized").read_text()
    # The node says where its claims are, as its administrator would have it.
    words = f'export LANES_CLAIMS={tmp_path}/claims; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"'
    (tmp_path / "authorized").write_text(f'command="{words}" {keys}')
    file = tmp_path / "box.toml"
    file.write_text(f'name = "box"\n[[nodes]]\nname = "n1"\nssh = "{ssh_host}"\n')
    alone.cluster = str(file)
    wait_for(lambda: state(alone)["state"] == "free", "sshd")
    env = {**os.environ, **alone.env}
    assert race(3, [tmp_path / "a", tmp_path / "b"], [ssh_host], env) == [["claimed", "won"]] * 3
    assert state(alone)["state"] == "free"
    foreign(alone, silent_s=1000)
    assert state(alone)["state"] == "stale"
    doctor = alone("doctor", "--cluster", alone.cluster, "--json").json
    assert {"reachable", "clock", "claim"} <= {check["question"] for check in doctor["nodes"][0]["checks"]}
    # On a machine without Docker there is nothing but the claim.
    file.write_text(file.read_text() + f'docker = "{tmp_path}/none.sock"\n')
    released = alone("clusters", "release", alone.cluster)
    assert released.code == 0, released.said
    assert state(alone)["state"] == "free"
