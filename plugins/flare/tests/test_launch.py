"""The processes that a recipe's command becomes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lanes.errors import LanesError
from lanes.types import CanaryRung, HttpRung, Image, Lane, Launch, Mount, Node, Placement, Seat, Staged
from lanes_flare.engine import lanes_healthcheck, lanes_launch, lanes_stage, lanes_stop

LaneOf = Callable[..., Lane]
COMMAND = (
    "go",
    "{model}",
    "{name}",
    "{host}:{port}",
    "{rank}/{nnodes}",
    "{address}",
    "{head}:{rendezvous_port}",
)


def launched(lane: Lane, node: Node, host: str = "0.0.0.0") -> Launch:
    assert lane.recipe is not None
    seats = tuple(Seat(rank=r, node=node, address=f"10.0.0.{r + 1}") for r in range(lane.recipe.nodes))
    placement = Placement(seats=seats, http_host=host, http_port="30001", rendezvous_port="20001")
    staged = Staged(
        paths={item.name: item.reference for item in lanes_stage(lane) if isinstance(item, Image)}
    )
    return lanes_launch(lane, placement, staged)


def test_each_rank_fills_in_its_own(lane_of: LaneOf, sparks: list[Node]) -> None:
    lane = lane_of(nodes=2, env={"A": "b"}, command=COMMAND, health="/ready")
    launch = launched(lane, sparks[0])
    assert [process.argv for process in launch.processes] == [
        ("go", "org/toy", "toy", "0.0.0.0:30001", "0/2", "10.0.0.1", "10.0.0.1:20001"),
        ("go", "org/toy", "toy", "0.0.0.0:30001", "1/2", "10.0.0.2", "10.0.0.1:20001"),
    ]
    assert all(process.env == {"A": "b"} and process.container is None for process in launch.processes)
    assert launch.endpoint is not None and launch.endpoint.url == "http://10.0.0.1:30001"
    assert lanes_stop(lane, launch).order == (0, 1)


def test_a_port_of_its_own(lane_of: LaneOf, sparks: list[Node]) -> None:
    launch = launched(lane_of(command=("go",), port=7000, health="/ready"), sparks[0], host="127.0.0.1")
    assert launch.processes[0].argv == ("go",)
    assert launch.endpoint is not None and launch.endpoint.url == "http://127.0.0.1:7000"


def test_in_a_container(lane_of: LaneOf, sparks: list[Node]) -> None:
    mounts = {"mounts": (Mount(source="/a", target="/b"),)}
    lane = lane_of(nodes=2, image="flare:gb10", recipe=mounts, command=COMMAND, health="/ready")
    container = launched(lane, sparks[0]).processes[1].container
    assert container is not None and (container.image, container.gpus) == ("flare:gb10", "all")
    assert (container.network, container.ipc, container.memlock_bytes) == ("host", "host", -1)
    assert container.devices == ("/dev/infiniband",) and container.mounts == mounts["mounts"]


def test_ready_is_what_the_recipe_says_and_an_answer(lane_of: LaneOf) -> None:
    http, canary = lanes_healthcheck(lane_of(command=COMMAND, health="/ready")).rungs
    assert isinstance(http, HttpRung) and http.path == "/ready" and isinstance(canary, CanaryRung)
    [canary] = lanes_healthcheck(lane_of()).rungs
    assert isinstance(canary, CanaryRung)


@pytest.mark.parametrize(("options", "says"), [({}, "set command"), ({"command": ("go",)}, "set port")])
def test_what_cannot_be_known_is_not_started(
    lane_of: LaneOf, sparks: list[Node], options: dict[str, object], says: str
) -> None:
    with pytest.raises(LanesError, match="published nowhere") as refused:
        launched(lane_of(**options), sparks[0])
    assert says in (refused.value.next_step or "")


def test_the_shipped_recipe_waits_for_a_person(seed_lane: LaneOf, sparks: list[Node]) -> None:
    with pytest.raises(LanesError, match="command is missing"):
        launched(seed_lane(), sparks[0])
    added = {"command": '["go", "{port}", "{rank}"]', "health": "/ready"}
    assert len(launched(seed_lane(**added), sparks[0]).processes) == 4
