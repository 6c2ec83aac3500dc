"""The processes that SGLang is started with: the report's lane flag by flag, and every rank of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import attrs
import pytest
from lanes.plugins import Plugins
from lanes.types import Lane, Launch, Mount, Node, Placement, Seat, Staged
from lanes_sglang import flags
from lanes_sglang.engine import lanes_launch, lanes_stage, lanes_stop
from lanes_sglang.options import SglangOptions

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
    placement = Placement(seats=seats, http_host=host, http_port="30001", rendezvous_port="20001")
    staged = Staged(
        paths={item.name: item.reference for item in lanes_stage(lane) if hasattr(item, "reference")}
    )
    return lanes_launch(lane, placement, staged)


def following(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_the_reports_lane_flag_by_flag(
    seed_lane: LaneOf, sparks: list[Node], snapshot_parser: argparse.ArgumentParser
) -> None:
    launch = launched(seed_lane(), sparks[0])
    argv = launch.processes[0].argv
    assert argv[:2] == ("sglang", "serve")
    given = vars(snapshot_parser.parse_args(argv[2:]))
    said = {name: value for name, value in given.items() if value is not None and value is not False}
    assert said == {
        "model_path": "deepseek-ai/DeepSeek-V4.1-Flash-1017",
        "served_model_name": "DeepSeek-V4.1-Flash-1017",
        "host": "0.0.0.0",
        "port": 30001,
        "nnodes": 4,
        "node_rank": 0,
        "dist_init_addr": "10.0.0.1:20001",
        "tp_size": 4,
        "ep_size": 2,
        "context_length": "1048576",
        "chunked_prefill_size": 2048,
        "load_format": "safetensors",
        "attention_backend": "dsv4",
        "moe_runner_backend": "flashinfer_mxfp4",
        "fp8_gemm_runner_backend": "flashinfer_cutlass",
        "speculative_algorithm": "DSPARK",
        "speculative_dspark_block_size": 5,
        "reasoning_parser": "deepseek-v41",
        "tool_call_parser": "deepseekv41",
        "watchdog_timeout": 1800.0,
        "enable_metrics": True,
    }
    assert all(word in flags.known() for word in argv if word.startswith("--")), "a flag is cut short"
    env = launch.processes[0].env
    assert env["SPARK_ENGRAM_MAX_IDS"] == "65536" and env["SGLANG_DSV41_REASONING_EFFORT"] == "100"


def test_every_rank_has_its_own_place(seed_lane: LaneOf, sparks: list[Node]) -> None:
    launch = launched(seed_lane(), sparks[0])
    assert [following(p.argv, "--node-rank") for p in launch.processes] == ["0", "1", "2", "3"]
    assert {following(p.argv, "--dist-init-addr") for p in launch.processes} == {"10.0.0.1:20001"}
    network = [(p.env["SGLANG_HOST_IP"], p.env["NCCL_SOCKET_IFNAME"]) for p in launch.processes]
    assert network == [(f"10.0.0.{r + 1}", f"enp{r}") for r in range(4)]
    assert [p.env["NCCL_IB_GID_INDEX"] for p in launch.processes] == ["3", "4", "5", "6"]
    assert [p.env["NCCL_IB_HCA"] for p in launch.processes] == [f"roce{r},roceP{r}" for r in range(4)]
    assert all(p.env["GLOO_SOCKET_IFNAME"] == p.env["NCCL_SOCKET_IFNAME"] for p in launch.processes)
    # Only the head listens for clients.
    assert ["--host" in p.argv for p in launch.processes] == [True, False, False, False]
    assert launch.endpoint is not None and launch.endpoint.url == "http://10.0.0.1:30001"


def test_the_head_starts_last_and_stops_first(seed_lane: LaneOf, sparks: list[Node]) -> None:
    lane = seed_lane()
    launch = launched(lane, sparks[0])
    assert launch.start_order == (3, 2, 1, 0)
    assert lanes_stop(lane, launch).order == (0, 1, 2, 3)


def test_the_launchers_container(seed_lane: LaneOf, sparks: list[Node]) -> None:
    lane = seed_lane()
    container = launched(lane, sparks[0]).processes[2].container
    assert container is not None and lane.recipe is not None
    assert container.image == "dsv41-sglang-1017:v1" and container.gpus == "all"
    assert (container.network, container.ipc, container.cap_add) == ("host", "host", ("IPC_LOCK",))
    assert (container.shm_bytes, container.memory_bytes) == (32 * GIB, 112 * GIB)
    assert container.memlock_bytes == -1 and container.devices == ("/dev/infiniband",)
    assert container.mounts == lane.recipe.mounts != ()


def test_a_large_host_needs_no_limit(lane_of: LaneOf, sparks: list[Node]) -> None:
    lane = lane_of(image="lmsysorg/sglang:latest", recipe={"mounts": (Mount(source="/a", target="/b"),)})
    large = attrs.evolve(sparks[0], memory_bytes=2000 * 10**9)
    container = launched(lane, large).processes[0].container
    assert container is not None and container.memory_bytes is None and container.devices == ()


def test_one_node_without_an_image(lane_of: LaneOf, sparks: list[Node]) -> None:
    launch = launched(lane_of(env={"A": "b"}), sparks[0], host="127.0.0.1")
    [process] = launch.processes
    assert process.container is None and process.env == {"A": "b"}
    assert process.argv == (
        *("sglang", "serve", "--model-path", "org/toy", "--served-model-name", "toy"),
        *("--host", "127.0.0.1", "--port", "30001", "--enable-metrics"),
    )
    assert launch.endpoint is not None
    assert launch.endpoint.dialect.metrics["queued"] == "sglang:num_queue_reqs"


def test_without_metrics_none_are_promised(lane_of: LaneOf, sparks: list[Node]) -> None:
    launch = launched(lane_of(enable_metrics=False), sparks[0])
    assert "--enable-metrics" not in launch.processes[0].argv
    assert launch.endpoint is not None and launch.endpoint.dialect.metrics_path is None
    assert launch.endpoint.dialect.flush_path == "/flush_cache"


def test_a_person_who_names_an_interface_means_it(lane_of: LaneOf, sparks: list[Node]) -> None:
    launch = launched(lane_of(nodes=2, env={"NCCL_SOCKET_IFNAME": "bond0"}), sparks[0])
    assert [p.env["NCCL_SOCKET_IFNAME"] for p in launch.processes] == ["bond0", "bond0"]


@pytest.mark.parametrize(("said", "address"), [("10.9.9.9:5000", "10.9.9.9:5000"), ("", None)])
def test_the_rendezvous_can_be_named(
    lane_of: LaneOf, sparks: list[Node], said: str, address: str | None
) -> None:
    argv = launched(lane_of(nodes=2, rendezvous=said), sparks[0]).processes[1].argv
    assert (following(argv, "--dist-init-addr") if "--dist-init-addr" in argv else None) == address


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"tp_size": 0}, "at least 1"),
        ({"chunked_prefill_size": 0}, "-1 for no chunks"),
        ({"mem_fraction_static": 1.5}, "less than 1"),
        ({"speculative_dspark_block_size": 0}, "at least 1"),
        ({"rendezvous": "head"}, "host:port"),
        ({"command": ()}, "the program"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    lane_of: LaneOf, option: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        lane_of(**option)


def test_options_are_flags_of_the_same_name() -> None:
    from lanes_sglang.options import NOT_FLAGS

    names = {field.name for field in attrs.fields(SglangOptions)} - NOT_FLAGS
    assert {f"--{name.replace('_', '-')}" for name in names} <= set(flags.known())


def test_four_nodes_have_a_default() -> None:
    info = Plugins().engine("sglang").ask("lanes_engine")
    assert info.default_recipes == {4: ("dsv41-flash-1017-4x-sglang",)}
