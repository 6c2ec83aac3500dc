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

from lanes_vllm import arguments

GIB = 2**30

DIALECT = Dialect(
    name="vllm",
    tokenize_path="/tokenize",
    tokenize_field="prompt",
    metrics_path="/metrics",
    metrics={
        "running": "vllm:num_requests_running",
        "queued": "vllm:num_requests_waiting",
        "kv_use": "vllm:kv_cache_usage_perc",
        "generated": "vllm:generation_tokens",
        "accepted": "vllm:spec_decode_num_accepted_tokens",
        "drafts": "vllm:spec_decode_num_drafts",
    },
    fixed_length={"ignore_eos": True},
)


def launch(lane: Lane, placement: Placement, image: str | None) -> Launch:
    """Rank 0 serves; the others run without an API server."""
    everywhere = placement.http_host in ("0.0.0.0", "::")
    host = placement.head.address if everywhere else placement.http_host
    return Launch(
        processes=tuple(_process(lane, placement, seat, image) for seat in placement.seats),
        endpoint=Endpoint(
            url=f"http://{host}:{placement.http_port}",
            model=lane.recipe.model.name if lane.recipe else lane.name,
            dialect=_dialect(lane.recipe),
        ),
    )


def _dialect(recipe: Recipe | None) -> Dialect:
    # vLLM has the way to flush its prefix cache in development mode only.
    if recipe is not None and recipe.env.get("VLLM_SERVER_DEV_MODE") == "1":
        return attrs.evolve(DIALECT, flush_path="/reset_prefix_cache")
    return DIALECT


def _process(lane: Lane, placement: Placement, seat: Seat, image: str | None) -> Process:
    head, recipe = placement.head, lane.recipe
    flags = arguments.flags(
        lane,
        rank=seat.rank,
        ranks=len(placement.seats),
        host=placement.http_host if seat.rank == head.rank else None,
        port=placement.http_port,
        rendezvous=(head.address, placement.rendezvous_port),
    )
    return Process(
        rank=seat.rank,
        argv=(*arguments.options_of(lane).command, arguments.model(lane), *flags),
        env=_environment(recipe, seat, len(placement.seats)),
        container=_container(recipe, seat.node, image, len(placement.seats)) if recipe and image else None,
    )


def _environment(recipe: Recipe | None, seat: Seat, ranks: int) -> Mapping[str, str]:
    """Each rank's own network, then what the recipe says: a person who names an interface means it."""
    env: dict[str, str] = {}
    if ranks > 1:
        env["VLLM_HOST_IP"] = seat.address
        if seat.interface is not None:
            env |= {"NCCL_SOCKET_IFNAME": seat.interface, "GLOO_SOCKET_IFNAME": seat.interface}
        if seat.gid_index is not None:
            env["NCCL_IB_GID_INDEX"] = str(seat.gid_index)
        if seat.hcas:
            env["NCCL_IB_HCA"] = ",".join(seat.hcas)
    return {**env, **(recipe.env if recipe else {})}


def _container(recipe: Recipe, node: Node, image: str, ranks: int) -> Container:
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
