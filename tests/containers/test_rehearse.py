"""Rehearsals over several machines: real sshd's, real Docker engines, and the network between them."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]


def steps(ran):
    (lane,) = ran.json["lanes"]
    return {one["name"]: (one["status"], one["reason"]) for one in lane["rehearsal"]}


def rehearse(scene, *more):
    """Rehearse the lane on its two machines."""
    words = (scene.lanes.recipe, *scene.PAIR, "--cluster", str(scene.cluster), *more, "--json")
    return scene.lanes("rehearse", *words, timeout=150)


def test_every_node_is_prepared_the_network_tried_and_the_lane_started_with_dummy_weights(scene):
    ran = rehearse(scene, "--every-node", "--set", "load_seconds=600")
    assert ran.code == 0, ran.said
    found = steps(ran)
    assert {name for name, (status, _) in found.items() if status != "ok"} == set(), found
    assert "n1, n2 held" in found["claim"][1]
    assert (
        "lanes-test:1 is sha256:" in found["image"][1]
        and "n1 (" in found["image"][1]
        and "n2 (" in found["image"][1]
    )
    assert "all 2 nodes reach each other" in found["network"][1]
    assert "dummy true" in found["start"][1]
    seen = scene.lanes("check", scene.lanes.recipe, *scene.PAIR)
    assert "rehearsal: runnable (observed): boxed was rehearsed on no GPU" in seen.out
    scene.clean()


def test_on_one_node_only_that_one_is_brought_the_image_and_a_wrong_address_is_named(scene):
    other = scene.cluster.read_text().replace('address = "10.99.0.12"', 'address = "10.99.0.13"')
    scene.cluster.write_text(other)
    ran = rehearse(scene, "--node", "n2", "--keep-going")
    assert ran.code == 1
    found = steps(ran)
    assert found["flags"][0] == found["kernels"][0] == "ok", found
    assert found["network"] == ("failed", "n2 cannot listen on 10.99.0.13: it has no such address")
    assert found["start"][0] == "not possible" and "--every-node" in found["start"][1]
    assert "n1" not in found["image"][1]
    assert ran.json["lanes"][0]["next_step"].startswith("correct address and interface")
    scene.clean()


SLOW = """
import attrs
import lanes

LANES_CONTRACT = 1


@lanes.hookimpl(wrapper=True)
def lanes_rehearsal(lane, launch):
    plan = yield
    slow = ("-c", "import time; print('slow', flush=True); time.sleep(99)")
    return attrs.evolve(plan, kernels=lanes.Trial(argv=(plan.kernels.argv[0], *slow)))
"""


def test_kill_9_while_a_program_is_tried_leaves_no_container_and_no_claim(scene, site, wait_for):
    site("slow", "slow_plugin", SLOW, {"slow": "lanes.extensions"})
    words = (scene.lanes.recipe, *scene.PAIR, "--cluster", str(scene.cluster), "--every-node")
    run = scene.lanes.start("rehearse", *words)
    tried = "trying its kernels"
    wait_for(lambda: any(one["phase"] == tried for one in scene.lanes.records()), tried, 90)
    wait_for(lambda: sum(map(len, scene.containers().values())) == 2, "containers", 60)
    run.kill()
    run.wait()
    wait_for(lambda: not any(scene.containers().values()), "the keepers to remove them", 60)
    scene.lanes("stop", timeout=90)
    scene.clean()
