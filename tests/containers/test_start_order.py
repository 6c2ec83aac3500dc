"""Containers of all ranks are made at once, and start in the engine's order."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]


def test_a_rank_that_cannot_be_made_is_the_reason_though_it_would_start_last(
    clustered, bed, tmp_path, docker
):
    first, *rest = bed.cluster(*bed.names).split("[[nodes]]")[1:]
    nodes = [f"{first}[nodes.limits]\ncpus = 1000\n", *rest]
    cluster = tmp_path / "greedy.toml"
    cluster.write_text('name = "bed"\n' + "".join(f"[[nodes]]{one}" for one in nodes))
    ran = clustered(
        "serve", "--recipe", clustered.recipe, "--set", "nodes=4", "--despite", "nodes", "--cluster", str(cluster), timeout=120
    )  # fmt: skip
    assert ran.code == 1
    assert "rank 0: the process could not be started" in ran.said and "CPUs" in ran.said
    assert not any(docker(socket, "ps", "-aq") for socket in bed.sockets.values())
