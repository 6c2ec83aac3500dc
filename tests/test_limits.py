"""Limits of containers that a cluster's file gives instead of the engine's."""

from __future__ import annotations

import attrs
import pytest
from lanes import clusters, limits
from lanes.errors import UsageError
from lanes.executors import docker
from lanes.hosts import HERE
from lanes.limits import Limits
from lanes.types import Container, Launch, Process

ASKED = Container(image="x", gpus="all", devices=("/dev/null",), memlock_bytes=-1, shm_bytes=1 << 30)


def launch(*ranks):
    return Launch(processes=tuple(Process(rank=r, argv=("x",), container=ASKED) for r in ranks))


@pytest.fixture
def read(tmp_path):
    """The cluster of a file of two nodes, with these lines about limits."""

    def read(lines="", node=""):
        nodes = "".join(f'[[nodes]]\nname = "{n}"\naddress = "10.0.0.1"\n' for n in "ab")
        (tmp_path / "c.toml").write_text(f'name = "c"\n{lines}\n{nodes}{node}\n')
        return clusters.find(str(tmp_path / "c.toml"))

    return read


def test_a_file_without_limits_changes_nothing(read):
    place = clusters.place(read())
    assert limits.applied(launch(0, 1), place.limits, "ab") == (launch(0, 1), ())


def test_a_node_s_own_go_before_the_cluster_s(read):
    cluster = read(
        '[limits]\nmemlock_bytes = "host"\nshm_bytes = 5\nulimits = {nproc = 7, core = 0}',
        "[nodes.limits]\nshm_bytes = 6\nulimits = {nproc = 8}\n",
    )
    made, said = limits.applied(launch(0, 1), clusters.place(cluster).limits, "ab")
    first, second = (process.container for process in made.processes)
    assert (first.memlock_bytes, first.shm_bytes, first.ulimits) == (None, 5, {"nproc": 7, "core": 0})
    assert (second.memlock_bytes, second.shm_bytes, second.ulimits) == (None, 6, {"nproc": 8, "core": 0})
    assert first.gpus == "all"
    assert "memlock_bytes of rank 0 on a: the host's own instead of -1" in said
    assert "shm_bytes of rank 1 on b: 6 instead of 1073741824" in said
    assert "ulimits of rank 1 on b: nproc=8, core=0 instead of none" in said


def test_every_limit_reaches_the_docker_engine(tmp_path):
    given = Limits(
        memlock_bytes=1, nofile=2, shm_bytes=3, memory_bytes=7 << 20, cpus=1.5, gpus=0, devices=(), ulimits={"nproc": 4}
    )  # fmt: skip
    assert all(value is not None for value in attrs.asdict(given).values()), "a limit is not tried here"
    (process,) = limits.applied(launch(0), [given], "a")[0].processes
    wanted = docker.arguments(process, HERE, tmp_path)
    assert wanted["ulimits"] == {"memlock": 1, "nofile": 2, "nproc": 4}
    assert (wanted["shm_size"], wanted["mem_limit"], wanted["nano_cpus"]) == (3, 7 << 20, 1_500_000_000)
    assert (wanted["gpus"], wanted["devices"]) == (0, [])


def test_a_plain_process_has_no_limits():
    plain = Launch(processes=(Process(rank=0, argv=("x",)),))
    assert limits.applied(plain, [Limits(nofile=2)], "a") == (plain, ())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('memlock_bytes = "much"', 'limits.memlock_bytes: should be a whole number or "host"'),
        ("memlock_bytes = -2", "limits.memlock_bytes: should be at least -1, not -2"),
        ("memory_bytes = 100", "limits.memory_bytes: should be at least 6,291,456, not 100"),
        ("cpus = 0", "limits.cpus: should be at least 0.01, not 0"),
        ("cpu = 3", "limits.cpu: there is no such key; did you mean 'cpus'?"),
        ('devices = ["sda"]', "limits.devices: should be paths below /dev, not 'sda'"),
        ('gpus = "most"', 'limits.gpus: should be a whole number or "all"'),
        ("ulimits = {memlock = 1}", "limits.ulimits: there is no 'memlock' here"),
        ("ulimits = {nproc = -2}", r"limits.ulimits: nproc should be -1 \(no limit\) or more, not -2"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(read, line, problem):
    with pytest.raises(UsageError, match=rf"c\.toml: {problem}"):
        read(f"[limits]\n{line}")
    with pytest.raises(UsageError, match=rf"c\.toml: nodes\[1\]\.{problem}"):
        read(node=f"[nodes.limits]\n{line}")


def test_rdma_devices_reach_the_rank_s_seat(read):
    cluster = read(node='hcas = ["rocep1s0f0", "roceP2p1s0f0"]\n')
    assert [seat.hcas for seat in clusters.place(cluster).seats] == [(), ("rocep1s0f0", "roceP2p1s0f0")]
