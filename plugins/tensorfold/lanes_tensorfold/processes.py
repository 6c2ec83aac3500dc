"""The processes of a lane, one on each node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
from lanes.types import (
    Container,
    Dialect,
    Endpoint,
    Lane,
    Launch,
    Placement,
    Process,
    Recipe,
    Seat,
)

from lanes_tensorfold.options import TensorFoldOptions

DIALECT = Dialect(
    name="tensorfold",
    # vLLM's: it takes a `prompt` and answers `count` and `tokens`.
    tokenize_path="/tokenize",
    tokenize_field="prompt",
    metrics_path="/metrics",
    # The names that are vLLM's behind the prefix; TensorFold's own say the same.
    metrics={
        "running": "tensorfold:num_requests_running",
        "queued": "tensorfold:num_requests_waiting",
        "kv_use": "tensorfold:kv_cache_usage_perc",
    },
    fixed_length={"ignore_eos": True},
)

_NOT_FLAGS = frozenset({"tp", "backend", "drafts", "metrics_open", "command", "extra_args"})
"""Options whose flag is not their name and their value."""


def options_of(lane: Lane) -> TensorFoldOptions:
    """The lane's options; a lane without a recipe has the defaults."""
    return lane.options if isinstance(lane.options, TensorFoldOptions) else TensorFoldOptions()


def launch(lane: Lane, placement: Placement, image: str | None) -> Launch:
    """Rank 0 serves, rank 1 follows it and answers nobody; it starts first, because rank 0 waits for it
    before it binds its port."""
    everywhere = placement.http_host in ("0.0.0.0", "::")
    host = placement.head.address if everywhere else placement.http_host
    return Launch(
        processes=tuple(_process(lane, placement, seat, image) for seat in placement.seats),
        endpoint=Endpoint(
            url=f"http://{host}:{placement.http_port}",
            model=lane.recipe.model.name if lane.recipe else lane.name,
            dialect=DIALECT,
        ),
        start_order=tuple(reversed(range(len(placement.seats)))),
    )


def _process(lane: Lane, placement: Placement, seat: Seat, image: str | None) -> Process:
    recipe, ranks = lane.recipe, len(placement.seats)
    return Process(
        rank=seat.rank,
        argv=(*options_of(lane).command, *_arguments(lane, placement, seat)),
        env=_environment(recipe, seat, ranks),
        container=_container(recipe, image, ranks) if recipe and image else None,
    )


def _arguments(lane: Lane, placement: Placement, seat: Seat) -> Iterator[str]:
    options, head = options_of(lane), placement.head
    model = lane.recipe.model if lane.recipe else None
    yield (model and (model.path or model.repo or model.name)) or "MODEL"
    if seat.rank == head.rank:
        yield from ("--host", placement.http_host, "--port", placement.http_port)
        yield from ("--name", model.name if model else lane.name)
    if len(placement.seats) > 1:
        yield from ("--tp", str(options.tp or len(placement.seats)), "--rank", str(seat.rank))
        yield from ("--master", head.address, "--master-port", placement.rendezvous_port)
    elif options.tp is not None:
        yield from ("--tp", str(options.tp))
    yield from _options(options)


def _options(options: TensorFoldOptions) -> Iterator[str]:
    for field in attrs.fields(TensorFoldOptions):
        value = getattr(options, field.name)
        if field.name not in _NOT_FLAGS and value is not None:
            yield from (f"--{field.name.replace('_', '-')}", str(value))
    if options.backend != "auto":
        yield from ("--backend", options.backend)
    if not options.drafts:
        yield "--no-drafts"
    if options.metrics_open:
        yield "--metrics-open"
    yield from options.extra_args


def _environment(recipe: Recipe | None, seat: Seat, ranks: int) -> Mapping[str, str]:
    """Each rank's own network, then what the recipe says: a person who names an interface means it."""
    env: dict[str, str] = {}
    if ranks > 1:
        if seat.interface is not None:
            env |= {"NCCL_SOCKET_IFNAME": seat.interface, "GLOO_SOCKET_IFNAME": seat.interface}
        if seat.gid_index is not None:
            env["NCCL_IB_GID_INDEX"] = str(seat.gid_index)
        if seat.hcas:
            env["NCCL_IB_HCA"] = ",".join(seat.hcas)
    return {**env, **(recipe.env if recipe else {})}


def _container(recipe: Recipe, image: str, ranks: int) -> Container:
    """The container of the launcher for DSV4.1 on two Sparks. It has no limit of memory: on a GPU that
    shares the host's, what CUDA takes is not charged to the container."""
    return Container(
        image=image,
        mounts=recipe.mounts,
        gpus="all",
        devices=("/dev/infiniband",) if ranks > 1 else (),
        network="host",
        ipc="host",
        cap_add=("IPC_LOCK",),
        memlock_bytes=-1,
    )
