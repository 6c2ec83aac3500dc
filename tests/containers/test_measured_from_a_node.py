"""`--from` over real networks: a lane of a cluster measured from another of its nodes, and a node that is cut off."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import psutil
import pytest
from lanes.testing.scripted import Script, ScriptedServer

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")
FROM = ("--from", "n2", "--from-python", sys.executable)


def clients(bed):
    """The programs that measure in the network of n2."""
    told = subprocess.run(["ip", "netns", "pids", "lanes-n2"], capture_output=True, check=True)
    found = []
    for pid in map(int, told.stdout.split()):
        with contextlib.suppress(psutil.Error):
            if "--away" in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


def test_a_lane_of_a_cluster_is_measured_from_one_of_its_nodes(clustered, bed, wait_for):
    run = clustered.start(
        "run", "--recipe", clustered.recipe, "--cluster", clustered.cluster, *FROM, *QUICK, "--json"
    )
    # It is in that node's network, and nowhere else.
    wait_for(lambda: clients(bed) and any(r["phase"] == "measuring" for r in clustered.records()), "it", 120)
    ran = clustered.finish(run, 120)
    assert ran.code == 0, ran.said
    (lane,) = ran.json["lanes"]
    assert lane["environment"]["client"]["from"] == "n2"
    assert lane["environment"]["engine_version"] is not None or lane["environment"]["plugin"]
    assert lane["instruments"][0]["cells"][0]["status"] == "ok", lane["instruments"][0]["cells"][0]["reason"]
    assert not clients(bed)


def test_a_node_that_is_cut_off_ends_its_client_and_what_had_come_is_kept(clustered, bed, wait_for):
    with ScriptedServer(Script(gap_s=0.003, usage="every"), host="10.99.0.1") as server:
        slow = ("--pp", "96", "--tg", "200", "--passes", "500", "--warmups", "0")
        run = clustered.start("bench", "--url", server.url, *FROM, *slow, "--json")
        wait_for(lambda: clustered.passes() >= 2, "two passes", 60)
        assert clients(bed)
        with bed.cut_off("n2"):
            ran = clustered.finish(run, 60)
            wait_for(lambda: not clients(bed), "the client to notice", 90)
    assert ran.code == 1
    (lane,) = ran.json["lanes"]
    assert lane["reason"].startswith("the connection to n2 was lost: "), lane["reason"]
    assert len(lane["instruments"][0]["cells"][0]["passes"]) >= 2
