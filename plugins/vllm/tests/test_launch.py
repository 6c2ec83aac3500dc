"""The processes that vLLM is started with, on one node and on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from lanes import recipes
from lanes.plugins import Plugins
from lanes.types import Image, Lane, Launch, Node, Placement, Seat, Staged
from lanes_vllm import flags
from lanes_vllm.engine import lanes_healthcheck, lanes_launch, lanes_stage, lanes_stop
from lanes_vllm.options import NOT_FLAGS, VllmOptions

LaneOf = Callable[..., Lane]
GIB = 2**30


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
    placement = Placement(seats=seats, http_host=host, http_port="8001", rendezvous_port="29521")
    return lanes_launch(lane, placement, Staged(paths={}))


def following(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_one_node_without_an_image(lane_of: LaneOf, spark: Node) -> None:
    [process] = launched(lane_of(env={"A": "b"}, max_model_len=4096), spark, host="127.0.0.1").processes
    assert process.container is None and process.env == {"A": "b"}
    assert process.argv == (
        *("vllm", "serve", "org/toy", "--served-model-name", "toy"),
        *("--host", "127.0.0.1", "--port", "8001", "--max-model-len", "4096"),
    )


def test_every_rank_has_its_own_place(lane_of: LaneOf, spark: Node) -> None:
    lane = lane_of(nodes=3, tensor_parallel_size=3)
    launch = launched(lane, spark)
    argvs = [process.argv for process in launch.processes]
    assert [following(argv, "--node-rank") for argv in argvs] == ["0", "1", "2"]
    assert {following(argv, "--nnodes") for argv in argvs} == {"3"}
    assert {following(argv, "--master-addr") for argv in argvs} == {"10.0.0.1"}
    assert {following(argv, "--master-port") for argv in argvs} == {"29521"}
    assert ["--headless" in argv for argv in argvs] == [False, True, True]
    assert ["--host" in argv for argv in argvs] == [True, False, False]
    network = [(p.env["VLLM_HOST_IP"], p.env["NCCL_SOCKET_IFNAME"]) for p in launch.processes]
    assert network == [(f"10.0.0.{r + 1}", f"enp{r}") for r in range(3)]
    assert [p.env["NCCL_IB_GID_INDEX"] for p in launch.processes] == ["3", "4", "5"]
    assert [p.env["NCCL_IB_HCA"] for p in launch.processes] == [f"roce{r},roceP{r}" for r in range(3)]
    assert launch.endpoint is not None and launch.endpoint.url == "http://10.0.0.1:8001"
    assert lanes_stop(lane, launch).order == (0, 1, 2)
    for argv in argvs:
        assert flags.read(argv[3:]).problems == ()


def test_the_container(spark: Node) -> None:
    plugins = Plugins()
    recipe = recipes.find("dsv41-flash-1017-2x-vllm", plugins)
    lane = recipes.lane(recipe, plugins.engine("vllm"))
    launch = launched(lane, spark)
    container = launch.processes[1].container
    assert container is not None and recipe.image is not None
    assert (container.image, container.gpus, container.network) == (recipe.image, "all", "host")
    assert (container.shm_bytes, container.memory_bytes) == (32 * GIB, 112 * GIB)
    assert container.devices == ("/dev/infiniband",) and container.mounts == recipe.mounts
    argv = launch.processes[0].argv
    assert following(argv, "--tensor-parallel-size") == "2" and following(argv, "--quantization") == "exl3"
    assert lanes_stage(lane) == (Image(name="image", reference=recipe.image),)
    assert [copy.size_bytes for copy in recipe.staging] == [196 * GIB]


def test_a_flush_only_in_development_mode(lane_of: LaneOf, spark: Node) -> None:
    def path(**env: str) -> str | None:
        endpoint = launched(lane_of(env=env), spark).endpoint
        assert endpoint is not None
        return endpoint.dialect.flush_path

    assert path() is None and path(VLLM_SERVER_DEV_MODE="1") == "/reset_prefix_cache"


@pytest.mark.parametrize(("said", "address"), [("10.9.9.9:5000", "10.9.9.9"), ("", None)])
def test_the_rendezvous_can_be_named(lane_of: LaneOf, spark: Node, said: str, address: str | None) -> None:
    argv = launched(lane_of(nodes=2, rendezvous=said), spark).processes[1].argv
    assert (following(argv, "--master-addr") if "--master-addr" in argv else None) == address


def test_a_refused_port_means_loading_and_503_does_not(lane_of: LaneOf) -> None:
    rung = lanes_healthcheck(lane_of()).rungs[0]
    assert getattr(rung, "path", "") == "/health" and getattr(rung, "loading", None) == frozenset()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"tensor_parallel_size": 0}, "at least 1"),
        ({"gpu_memory_utilization": 1.5}, "at most 1"),
        ({"speculative_config": "{"}, "should be JSON"),
        ({"speculative_config": "[]"}, "a JSON object"),
        ({"rendezvous": "head"}, "host:port"),
        ({"command": ()}, "the program"),
    ],
)
def test_options_that_make_no_sense_are_refused(lane_of: LaneOf, option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        lane_of(**option)


def test_options_are_flags_of_the_same_name() -> None:
    names = {field.name for field in attrs.fields(VllmOptions)} - NOT_FLAGS
    assert {f"--{name.replace('_', '-')}" for name in names} <= set(flags.known())
