"""Copies on the nodes of a cluster: real sshd's, each found again whatever happens on the way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from lanes.staging import worker

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

QUICK = ("--pp", "96", "--tg", "24", "--passes", "1", "--warmups", "0")
PAIR = ("--set", "nodes=2", "--despite", "nodes")
MB = 1 << 20


@pytest.fixture
def staged(clustered, bed, tmp_path):
    """A lane on two nodes whose recipe copies a sparse file, and mounts the folder that it is copied to."""
    source, own = tmp_path / "nas" / "rows", tmp_path / "own"
    source.parent.mkdir()
    own.mkdir()
    with source.open("wb") as file:
        for piece in range(0, 60, 2):
            file.seek(piece * worker.PIECE)
            file.write(os.urandom(8 * MB))
        file.truncate(60 * worker.PIECE)
    with Path(clustered.recipe).open("a") as file:
        file.write(f'[[mounts]]\nsource = "{own}"\ntarget = "/own"\n')
        file.write(f'[[staging]]\nname = "rows"\nsource = "{source}"\ntarget = "{own}/rows"\nsparse = true\n')
    cluster = tmp_path / "pair.toml"
    cluster.write_text(bed.cluster("n1", "n2"))
    clustered.cluster = str(cluster)
    clustered.source, clustered.target = source, own / "rows"
    return clustered


def arguments(staged):
    return ("--recipe", staged.recipe, *PAIR, "--cluster", staged.cluster)


def programs(bed):
    """Our programs under the sshd's of the bed."""
    found = []
    for sshd in bed.sshds.values():
        for process in psutil.Process(sshd.pid).children(recursive=True):
            if process.name().startswith("python"):
                found.append(process)
    return found


def stopped_while_copying(staged, bed, wait_for):
    """A run whose programs are stopped when a part is copied, and those programs."""
    run = staged.start("run", *arguments(staged), *QUICK, "--json")
    journal = staged.target.with_name("rows" + worker.JOURNAL)
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2, "a part to be copied", 60)
    found = programs(bed)
    for process in found:
        process.suspend()
    assert not staged.target.exists(), "it was too quick for this test"
    return run, found


def test_a_lane_copies_to_its_nodes_and_serves(staged, bed):
    ran = staged("run", *arguments(staged), *QUICK, "--json", timeout=180)
    assert ran.code == 0, ran.said
    assert subprocess.run(["cmp", staged.source, staged.target], check=False).returncode == 0
    assert staged.target.stat().st_blocks * 512 < 250 * MB
    assert not programs(bed)


def test_kill_9_of_the_controller_leaves_no_program_on_any_node(staged, bed, wait_for):
    run, found = stopped_while_copying(staged, bed, wait_for)
    run.kill()
    run.wait()
    for process in found:
        process.resume()
    wait_for(lambda: not programs(bed), "the programs to be gone", 20)
    assert not staged.target.exists()
    again = staged("run", *arguments(staged), *QUICK, "--json", timeout=180)
    assert again.code == 0, again.said
    assert staged.target.exists()
