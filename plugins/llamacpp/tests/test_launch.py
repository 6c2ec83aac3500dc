"""The command line that llama.cpp is started with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from lanes.types import Lane, Node, Placement, Seat, Staged
from lanes_llamacpp.engine import lanes_launch

LaneOf = Callable[..., Lane]


def argv(lane: Lane, here: Node, host: str = "127.0.0.1") -> tuple[str, ...]:
    placement = Placement(
        seats=(Seat(rank=0, node=here, address="10.0.0.7"),),
        http_host=host,
        http_port="<port>",
        rendezvous_port="<other>",
    )
    launch = lanes_launch(lane, placement, Staged(paths={"model": "/staged/toy.gguf"}))
    assert launch.endpoint is not None
    assert launch.endpoint.url == f"http://{'10.0.0.7' if host == '0.0.0.0' else host}:<port>"
    return launch.processes[0].argv


def following(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_context_is_what_one_request_may_use(lane_of: LaneOf, here: Node, tmp_path: Path) -> None:
    words = argv(lane_of(tmp_path, context=4096, parallel=4), here)
    assert following(words, "-c") == "16384" and following(words, "-np") == "4"


def test_without_llama_server_it_is_xllamacpp(
    lane_of: LaneOf, here: Node, tmp_path: Path, no_llama_server: None
) -> None:
    words = argv(lane_of(tmp_path), here)
    assert words[:4] == (sys.executable, "-P", "-m", "lanes_llamacpp.server")
    assert following(words[4:], "-m") == "/staged/toy.gguf" and following(words, "--port") == "<port>"


def test_llama_server_on_the_path_is_preferred(
    lane_of: LaneOf, here: Node, tmp_path: Path, llama_server: Path
) -> None:
    words = argv(lane_of(tmp_path, extra_args=("--mlock",)), here)
    assert words[0] == str(llama_server) and words[-1] == "--mlock"


def test_only_what_differs_is_said(lane_of: LaneOf, here: Node, tmp_path: Path) -> None:
    assert not {"-t", "-ngl", "-fa", "-ctk", "-ctv"} & set(argv(lane_of(tmp_path), here))
    words = argv(
        lane_of(tmp_path, threads=3, gpu_layers="all", flash_attention="on", cache_type_k="q8_0"), here
    )
    said = [following(words, flag) for flag in ("-t", "-ngl", "-fa", "-ctk")]
    assert said == ["3", "all", "on", "q8_0"] and "-ctv" not in words


def test_listening_everywhere_is_reached_at_the_node(lane_of: LaneOf, here: Node, tmp_path: Path) -> None:
    assert following(argv(lane_of(tmp_path), here, "0.0.0.0"), "--host") == "0.0.0.0"


def test_a_lane_without_a_recipe_can_be_shown(here: Node) -> None:
    assert following(argv(Lane(name="llamacpp", engine="llamacpp"), here), "-c") == "8192"


@pytest.mark.parametrize("option", [{"context": 0}, {"parallel": -1}, {"gpu_layers": -2}])
def test_options_that_make_no_sense_are_refused(lane_of: LaneOf, option: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="should be at least"):
        lane_of(Path("x"), **option)
    assert attrs.asdict(lane_of(Path("x")).options)["context"] == 8192
