"""`lanes check` and `lanes caps`: whether a lane can run, here or on hardware that is only asked about."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

OFFLINE = """
@lanes.hookimpl
def lanes_check(lane, nodes):
    major_10 = all((gpu.target or "").startswith("10.") for node in nodes for gpu in node.gpus or ())
    no = Verdict.UNRUNNABLE
    yield_ = [
        Finding(question="server", kind=Kind.SERVING, verdict=no, reason="it has no server", source="its README",
                recheck_when="it grows a serving path"),
        Finding(question="sm", verdict=Verdict.RUNNABLE if major_10 else no, reason="it admits SM 10.x alone",
                source="device.py", recheck_when="it grows another target"),
    ]
    return yield_
"""

RECIPE = 'name = "r"\nengine = "offline"\nnodes = {nodes}\n[model]\nname = "m"\npath = "/"\n'


@pytest.fixture
def offline(lanes, site, sleepy, tmp_path):
    """An engine that runs on SM 10.x and has no server, and a recipe for it."""
    start = sleepy.index("@lanes.hookimpl\ndef lanes_check")
    end = sleepy.index("@lanes.hookimpl\ndef lanes_stage")
    site("offline", "offline_plugin", sleepy[:start] + OFFLINE + sleepy[end:], {"offline": "lanes.engines"})
    recipe = tmp_path / "offline.toml"
    recipe.write_text(RECIPE.format(nodes=1))
    lanes.recipe = str(recipe)
    return lanes


def test_a_lane_that_cannot_run_is_told_with_every_blocker_in_the_engines_order(offline):
    ran = offline("run", "--recipe", offline.recipe, "--arch", "gb10", "--json")
    assert ran.code == 3
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["verdict"]) == ("unrunnable", "unrunnable")
    assert lane["reason"] == "it has no server; it admits SM 10.x alone"
    assert [f["recheck_when"] for f in lane["findings"]] == [
        "it grows a serving path",
        "it grows another target",
    ]


def test_hardware_and_server_are_judged_apart(offline):
    ran = offline("run", "--recipe", offline.recipe, "--arch", "b200", "--json")
    assert ran.code == 3
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["verdict"], lane["reason"]) == (
        "unmeasurable",
        "runnable",
        "it has no server",
    )

    check = offline("check", offline.recipe, "--arch", "b200", "--json")
    assert check.code == 3
    assert check.json["kinds"] == {"hardware": "runnable", "serving": "unrunnable"}


def test_despite_goes_on_and_says_so(offline):
    ran = offline("run", "--recipe", offline.recipe, "--arch", "gb10", "--despite", "sm", "--json")
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["overrides"]) == ("unmeasurable", ["sm"])


def test_nothing_is_launched_on_hardware_that_is_only_asked_about(echo):
    ran = echo("run", "--engine", "echo", "--arch", "gb10", "--json")
    assert ran.code == 3
    (lane,) = ran.json["lanes"]
    assert lane["status"] == "unmeasurable"
    assert "launch" not in lane
    assert not echo.records()


def test_check_explains_with_source_and_what_would_make_one_look_again(offline):
    ran = offline("check", offline.recipe, "--arch", "gb10")
    assert ran.code == 3
    assert "sm: unrunnable (declared): it admits SM 10.x alone from device.py" in ran.said
    assert "look again when it grows another target" in ran.said
    assert "1 x GB10, aarch64" in ran.said


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--arch", "gb11", "unknown GPU architecture 'gb11'. Did you mean gb10"),
        ("--arch", "b20", "b200"),
        ("--cluster", "4nodes", "there is no cluster '4nodes'"),
        ("--cluster", "/no/such.toml", "there is no cluster file /no/such.toml"),
    ],
)
def test_a_misspelt_place_is_one_sentence(offline, option, value, told):
    ran = offline("check", offline.recipe, option, value)
    assert ran.code == 2
    assert told in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_recipe_for_more_nodes_than_there_are_says_what_it_would_need(offline, tmp_path):
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE.format(nodes=2))
    ran = offline("check", str(recipe))
    assert ran.code == 3
    assert "the recipe is for 2 nodes, and here is 1" in ran.said
    assert "the recipe is for" not in offline("check", str(recipe), "--arch", "b200").said


CLUSTER = """
name = "pair"
[[nodes]]
name = "left"
gpu = "gb10"
address = "10.0.0.1"
interface = "eth7"
[[nodes]]
name = "right"
gpu = "b200"
"""


def test_a_cluster_is_named_by_its_file_or_kept_among_the_users_own(offline, tmp_path):
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE.format(nodes=2))
    file = tmp_path / "pair.toml"
    file.write_text(CLUSTER)
    by_file = offline("check", str(recipe), "--cluster", str(file), "--json").json
    (offline.home / "clusters").mkdir(parents=True)
    (offline.home / "clusters" / "pair.toml").write_text(CLUSTER)
    by_name = offline("check", str(recipe), "--cluster", "pair", "--json").json
    assert by_file == by_name
    assert [(node["name"], node["gpus"][0]["name"]) for node in by_name["nodes"]] == [
        ("left", "GB10"),
        ("right", "B200"),
    ]
    assert "did you mean 'pair'" in offline("check", str(recipe), "--cluster", "pear").err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda text: text.replace("gpu =", "gppu ="),
            "nodes[0].gppu: there is no such key; did you mean 'gpu'?",
        ),
        (lambda text: text.replace('"gb10"', "7"), "nodes[0].gpu: should be a string, not 7"),
        (lambda text: text.replace('"gb10"', '"gb11"'), "unknown GPU architecture 'gb11'"),
        (lambda text: text.replace("[[nodes]]", "[[nodes"), "is not TOML"),
        (lambda text: 'name = "pair"\nnodes = []\n', "a cluster has at least one node"),
    ],
)
def test_a_mistake_in_a_clusters_file_is_one_sentence(offline, tmp_path, change, told):
    file = tmp_path / "pair.toml"
    file.write_text(change(CLUSTER))
    ran = offline("check", offline.recipe, "--cluster", str(file))
    assert ran.code == 2
    assert told in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_example_clusters_are_right(offline):
    folder = Path(__file__).parent.parent / "examples" / "clusters"
    sizes = {file.stem: len(offline("check", offline.recipe, "--set", f"nodes={count}", "--cluster", str(file), "--json").json["nodes"])
             for file, count in ((folder / "4nodes-switch.toml", 4), (folder / "2nodes-dac.toml", 2), (folder / "dgx58-switch.toml", 4))}  # fmt: skip
    assert sizes == {"4nodes-switch": 4, "2nodes-dac": 2, "dgx58-switch": 4}


def test_the_report_keeps_hardware_and_server_apart(offline):
    found = offline("caps", "--engine", "offline", "--arch", "gb10", "--arch", "b200", "--json").json[
        "capabilities"
    ]
    assert [(c["arch"], c["hardware"], c["serving"]) for c in found] == [
        ("gb10", "unrunnable", "unrunnable"),
        ("b200", "runnable", "unrunnable"),
    ]
    table = offline("caps", "--engine", "offline", "--arch", "gb10", "--arch", "b200", "--markdown").out
    assert "| gb10 (sm_121) | unrunnable, no server |" in table
    assert "| b200 (sm_100) | runnable, no server |" in table
    assert "look again when it grows another target" in table


def test_a_file_that_the_recipe_names_counts_for_more_than_the_table(offline, tmp_path, gpu_library):
    """PROBED beats DECLARED, and the disagreement is told."""
    library = gpu_library(tmp_path / "kernels.so", "sm_90")
    recipe = tmp_path / "artifact.toml"
    recipe.write_text(RECIPE.format(nodes=1) + f'[[artifacts]]\npath = "{library}"\n')
    ran = offline("check", str(recipe), "--arch", "b200", "--json")
    sm = [f for f in ran.json["findings"] if f["question"] == "sm"]
    assert [(f["evidence"], f["verdict"]) for f in sm] == [("declared", "runnable"), ("probed", "unrunnable")]
    assert "the table declares runnable" in sm[1]["reason"]
    assert ran.json["verdict"] == "unrunnable"
    fits = offline("check", str(recipe), "--arch", "h100", "--json").json
    assert (fits["kinds"]["hardware"], fits["verdict"]) == ("runnable", "runnable")


def test_an_artifact_that_is_not_here_is_unknown(offline, tmp_path):
    recipe = tmp_path / "artifact.toml"
    recipe.write_text(RECIPE.format(nodes=1) + '[[artifacts]]\npath = "/no/such/kernels.so"\n')
    found = offline("check", str(recipe), "--arch", "b200", "--json").json
    assert found["verdict"] == "unknown"
    assert any("/no/such/kernels.so" in f["reason"] + f["source"] for f in found["findings"])


# -- a machine over SSH ---------------------------------------------------------------------------


@pytest.mark.sshd
def test_a_machine_is_asked_over_ssh(offline, ssh_host, wait_for):
    def asked():
        ran = offline("check", offline.recipe, "--node", ssh_host, "--json")
        return ran if ran.out else None

    found = wait_for(asked, "sshd").json
    (node,) = found["nodes"]
    assert node["arch"] == os.uname().machine
    assert node["memory_bytes"] > 0
    assert not node["hypothetical"]
    assert {"arch", "memory"} <= {fact["name"] for fact in node["facts"]}


@pytest.mark.sshd
def test_a_machine_that_cannot_be_reached_is_one_sentence(offline, ssh_host):
    ran = offline("check", offline.recipe, "--node", "no-such-host.invalid")
    assert ran.code == 1
    assert "no-such-host.invalid cannot be reached: " in ran.err
    assert "`ssh no-such-host.invalid` must work without a password" in ran.err


def test_a_host_that_looks_like_an_option_is_no_option(offline):
    ran = offline("check", offline.recipe, "--node=-oProxyCommand=touch /tmp/pwned")
    assert ran.code in (1, 2)
    assert not Path("/tmp/pwned").exists()


def test_json_is_all_that_is_on_stdout(offline):
    for argv in (("check", offline.recipe, "--json"), ("caps", "--engine", "offline", "--json")):
        json.loads(offline(*argv).out)


def test_a_lane_in_containers_needs_docker_and_says_so_before_anything_is_fetched(offline, tmp_path):
    recipe = tmp_path / "image.toml"
    recipe.write_text('image = "some/image:1"\n' + RECIPE.format(nodes=1))
    offline.env["PATH"] = str(tmp_path)
    ran = offline("check", str(recipe))
    assert "executor: unrunnable (probed): the recipe names an image, and there is no Docker on" in ran.said
    assert "executor" not in offline("check", str(recipe), "--arch", "b200").said
