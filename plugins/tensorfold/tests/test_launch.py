"""The processes that TensorFold is started with, and what ready means for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lanes.plugins import Plugins
from lanes.types import (
    CanaryRung,
    HostScript,
    HttpRung,
    Image,
    Lane,
    Launch,
    LogRung,
    Node,
    Placement,
    Seat,
    Staged,
)
from lanes_tensorfold.engine import lanes_healthcheck, lanes_launch, lanes_stage, lanes_stop

LaneOf = Callable[..., Lane]


def launched(lane: Lane, node: Node, host: str = "0.0.0.0") -> Launch:
    assert lane.recipe is not None
    seats = tuple(
        Seat(
            rank=r,
            node=node,
            address=f"10.0.0.{r + 1}",
            interface=f"enp{r}",
            gid_index=3 + r,
            hcas=(f"roce{r}", f"roceP{r}"),
        )
        for r in range(lane.recipe.nodes)
    )
    placement = Placement(seats=seats, http_host=host, http_port="30001", rendezvous_port="20001")
    staged = Staged(
        paths={item.name: item.reference for item in lanes_stage(lane) if isinstance(item, Image)}
    )
    return lanes_launch(lane, placement, staged)


def test_the_reports_lane_word_by_word(seed_lane: LaneOf, sparks: list[Node]) -> None:
    head, worker = launched(seed_lane(), sparks[0]).processes
    begin = ("python", "-m", "tensorfold", "serve", "/model")
    serves = ("--host", "0.0.0.0", "--port", "30001", "--name", "DeepSeek-V4.1-Flash-1017")
    meets = ("--master", "10.0.0.1", "--master-port", "20001")
    ends = ("--context", "262144", "--no-update-check")
    assert head.argv == (*begin, *serves, "--tp", "2", "--rank", "0", *meets, *ends)
    assert worker.argv == (*begin, "--tp", "2", "--rank", "1", *meets, *ends)
    assert worker.env == {
        "NCCL_SOCKET_IFNAME": "enp1",
        "GLOO_SOCKET_IFNAME": "enp1",
        "NCCL_IB_GID_INDEX": "4",
        "NCCL_IB_HCA": "roce1,roceP1",
        "TF_DSV41_THINKING": "1",
        "TF_DSV41_DEFAULT_EFFORT": "high",
    }


def test_rank_1_starts_first_and_rank_0_answers_alone(seed_lane: LaneOf, sparks: list[Node]) -> None:
    lane = seed_lane()
    launch = launched(lane, sparks[0])
    assert launch.start_order == (1, 0) and lanes_stop(lane, launch).order == (0, 1)
    assert launch.endpoint is not None and launch.endpoint.url == "http://10.0.0.1:30001"
    dialect = launch.endpoint.dialect
    assert (dialect.tokenize_path, dialect.tokenize_field) == ("/tokenize", "prompt")
    assert all(name.startswith("tensorfold:") for name in dialect.metrics.values())


def test_the_launchers_container(seed_lane: LaneOf, sparks: list[Node]) -> None:
    lane = seed_lane()
    container = launched(lane, sparks[0]).processes[1].container
    assert container is not None and lane.recipe is not None
    assert (container.image, container.gpus) == ("dsv41-tf-1017", "all")
    assert (container.network, container.ipc, container.cap_add) == ("host", "host", ("IPC_LOCK",))
    assert container.memlock_bytes == -1 and container.devices == ("/dev/infiniband",)
    assert container.memory_bytes is None and container.mounts == lane.recipe.mounts != ()


def test_the_image_and_the_script_are_staged(seed_lane: LaneOf) -> None:
    lane = seed_lane()
    [image] = lanes_stage(lane)
    assert isinstance(image, Image) and image.size_bytes == 24_500_000_000
    assert lane.recipe is not None
    [script] = lane.recipe.scripts
    assert isinstance(script, HostScript) and script.name == "tensorfold_1017_prepare"


def test_one_node_without_an_image(lane_of: LaneOf, sparks: list[Node]) -> None:
    [process] = launched(lane_of(env={"A": "b"}), sparks[0], host="127.0.0.1").processes
    assert process.container is None and process.env == {"A": "b"}
    assert process.argv == (
        *("tensorfold", "serve", "org/toy", "--host", "127.0.0.1", "--port", "30001", "--name", "toy"),
    )


def test_options_become_flags(lane_of: LaneOf, sparks: list[Node]) -> None:
    options: dict[str, Any] = {
        "max_tokens": 512,
        "reasoning_effort": "low",
        "parallel": "auto",
        "kv_dtype": "int8",
        "precision": "full",
        "backend": "cuda",
        "drafts": False,
        "metrics_open": True,
        "extra_args": ("--alias", "x"),
    }
    argv = launched(lane_of(**options), sparks[0]).processes[0].argv
    assert argv[9:] == (
        *("--max-tokens", "512", "--reasoning-effort", "low", "--parallel", "auto", "--kv-dtype", "int8"),
        *("--precision", "full", "--backend", "cuda", "--no-drafts", "--metrics-open", "--alias", "x"),
    )


def test_a_person_who_names_an_interface_means_it(lane_of: LaneOf, sparks: list[Node]) -> None:
    launch = launched(lane_of(nodes=2, env={"NCCL_SOCKET_IFNAME": "bond0"}), sparks[0])
    assert [p.env["NCCL_SOCKET_IFNAME"] for p in launch.processes] == ["bond0", "bond0"]


def test_ready_with_the_patches_and_without(seed_lane: LaneOf, lane_of: LaneOf) -> None:
    http, log, canary = lanes_healthcheck(seed_lane()).rungs
    assert isinstance(http, HttpRung) and http.path == "/v1/models"
    assert isinstance(log, LogRung) and log.rank == 0 and isinstance(canary, CanaryRung)
    # Stock TensorFold counts no slots: waiting for that line would never end.
    assert [type(rung) for rung in lanes_healthcheck(lane_of()).rungs] == [HttpRung, CanaryRung]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"tp": 4}, "1 or 2"),
        ({"context": 0}, "at least 1"),
        ({"parallel": 0}, "at least 1"),
        ({"command": ()}, "the program"),
        ({"extra_args": ("--api-key=x",)}, "every user"),
    ],
)
def test_options_that_make_no_sense_are_refused(lane_of: LaneOf, option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        lane_of(**option)


def test_two_nodes_have_a_default() -> None:
    info = Plugins().engine("tensorfold").ask("lanes_engine")
    assert info.default_recipes == {2: ("dsv41-flash-1017-2x-tensorfold",)}
