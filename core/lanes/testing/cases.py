"""What the suite asks engines about: nodes, a harmless log, and the words of a placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from lanes.errors import LanesError
from lanes.plugins import Engine
from lanes.types import Gpu, Lane, Launch, Node, Placement, Seat, Staged

_GB = 10**9
NODES = (
    Node(
        name="gb10",
        arch="aarch64",
        os="linux",
        cpus=20,
        memory_bytes=128 * _GB,
        gpus=(Gpu(name="NVIDIA GB10", target="12.1"),),
        hypothetical=True,
    ),
    Node(
        name="h200",
        arch="x86_64",
        os="linux",
        cpus=192,
        memory_bytes=2000 * _GB,
        gpus=(Gpu(name="NVIDIA H200", target="9.0", memory_bytes=141 * _GB),) * 8,
        hypothetical=True,
    ),
    Node(
        name="mi300x",
        arch="x86_64",
        os="linux",
        cpus=192,
        memory_bytes=2000 * _GB,
        gpus=(Gpu(name="AMD Instinct MI300X", target="gfx942", memory_bytes=192 * _GB),),
        hypothetical=True,
    ),
    Node(name="no-gpu", arch="x86_64", os="linux", cpus=4, memory_bytes=16 * _GB, gpus=(), hypothetical=True),
)
UNKNOWN_NODE = Node(name="unknown", hypothetical=True)
"""A node of which nothing is known."""

NOISE = (
    "INFO: starting up",
    "W some option is deprecated and will be removed",
    "progress: 42% (17/40), eta 00:03",
    "GET /health 503",
)
"""Lines of a log in which nothing is wrong."""

WORDS = {
    "@HTTP@": "8123",
    "@RENDEZVOUS@": "29511",
    "@ADDRESS@": "10.11.12.1",
    "@INTERFACE@": "enp1s0f0np0",
    "@HOST@": "127.0.0.1",
}
"""What only a launch knows: the symbolic word of a dry run, and a real one."""


class _Anything(Mapping[str, str]):
    """Staged paths for items that cannot be staged where the tests run: every name has one."""

    def __getitem__(self, name: str) -> str:
        return f"<{name}>"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def launched(engine: Engine, lane: Lane, words: Mapping[str, str]) -> Launch:
    """The launch of a lane on as many nodes as its recipe asks for, with these `WORDS`."""
    try:
        items = engine.ask("lanes_stage", lane=lane)
        staged = Staged(paths={item.name: f"<{item.name}>" for item in items})
    except LanesError:
        staged = Staged(paths=_Anything())
    nodes = lane.recipe.nodes if lane.recipe else 1
    placement = Placement(
        seats=tuple(
            Seat(
                rank=rank,
                node=attrs.evolve(NODES[0], name=f"node{rank}"),
                address=f"{words['@ADDRESS@']}{rank}",
                interface=words["@INTERFACE@"],
                gid_index=3,
            )
            for rank in range(nodes)
        ),
        http_host=words["@HOST@"],
        http_port=words["@HTTP@"],
        rendezvous_port=words["@RENDEZVOUS@"],
    )
    launch: Launch = engine.ask("lanes_launch", lane=lane, placement=placement, staged=staged)
    return launch
