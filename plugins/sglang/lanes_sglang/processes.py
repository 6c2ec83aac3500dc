"""The processes of a lane, one on each node."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from lanes.types import (
    Container,
    Dialect,
    Endpoint,
    Lane,
    Launch,
    Node,
    Placement,
    Process,
    Recipe,
    Seat,
)

from lanes_sglang import arguments

GIB = 2**30

DIALECT = Dialect(
    name="sglang",
    tokenize_path="/tokenize",
    tokenize_field="prompt",
    flush_path="/flush_cache",
    fixed_length={"ignore_eos": True},
)
_METRICS = {
    "running": "sglang:num_running_reqs",
    "queued": "sglang:num_queue_reqs",
    "kv_use": "sglang:token_usage",
    "acceptance": "sglang:spec_accept_length",
    "generated": "sglang:generation_tokens_total",
}


def launch(lane: Lane, placement: Placement, image: str | None) -> Launch:
    """Rank 0 serves; the others wait for its broadcast. They start first, so that the head, which meets
    them, is the last: the order of the launcher whose container this is."""
    ranks = len(placement.seats)
    everywhere = placement.http_host in ("0.0.0.0", "::")
    host = placement.head.address if everywhere else placement.http_host
    return Launch(
        processes=tuple(_process(lane, placement, seat, image) for seat in placement.seats),
        endpoint=Endpoint(
            url=f"http://{host}:{placement.http_port}",
            model=lane.recipe.model.name if lane.recipe else lane.name,
            dialect=_dialect(lane),
        ),
        start_order=tuple(reversed(range(ranks))),
    )


def _dialect(lane: Lane) -> Dialect:
    if not arguments.options_of(lane).enable_metrics:
        return DIALECT
    return attrs.evolve(DIALECT, metrics_path="/metrics", metrics=_METRICS)


def _process(lane: Lane, placement: Placement, seat: Seat, image: str | None) -> Process:
    head = placement.head
    flags = arguments.flags(
        lane,
        rank=seat.rank,
        ranks=len(placement.seats),
        # The head's address is no address of a worker's; a worker serves nobody anyway.
        host=placement.http_host if seat.rank == head.rank else None,
        port=placement.http_port,
        rendezvous=f"{head.address}:{placement.rendezvous_port}",
    )
    recipe = lane.recipe
    return Process(
        rank=seat.rank,
        argv=(*arguments.options_of(lane).command, *flags),
        env=_environment(recipe, seat, len(placement.seats)),
        container=_container(recipe, seat.node, image, len(placement.seats)) if recipe and image else None,
    )


def _environment(recipe: Recipe | None, seat: Seat, ranks: int) -> Mapping[str, str]:
    """Each rank's own network, then what the recipe says: a person who names an interface means it."""
    env: dict[str, str] = {}
    if ranks > 1:
        env["SGLANG_HOST_IP"] = seat.address
        if seat.interface is not None:
            env |= {"NCCL_SOCKET_IFNAME": seat.interface, "GLOO_SOCKET_IFNAME": seat.interface}
        if seat.gid_index is not None:
            env["NCCL_IB_GID_INDEX"] = str(seat.gid_index)
        if seat.hcas:
            env["NCCL_IB_HCA"] = ",".join(seat.hcas)
    return {**env, **(recipe.env if recipe else {})}


def _container(recipe: Recipe, node: Node, image: str, ranks: int) -> Container:
    """The container of sparkrun-recipes' launcher for DSV4.1 on Sparks."""
    # The limit keeps a host alive whose GPU shares its memory (128 GB); larger hosts need none.
    small = node.memory_bytes is None or node.memory_bytes <= 128 * GIB
    return Container(
        image=image,
        mounts=recipe.mounts,
        gpus="all",
        devices=("/dev/infiniband",) if ranks > 1 else (),
        network="host",
        ipc="host",
        cap_add=("IPC_LOCK",),
        shm_bytes=32 * GIB,
        memory_bytes=112 * GIB if small else None,
        memlock_bytes=-1,
    )
