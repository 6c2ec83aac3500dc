"""The processes of a lane, one on each node, from the recipe's command."""

from __future__ import annotations

from collections.abc import Mapping

from lanes.errors import UsageError
from lanes.types import Container, Endpoint, Lane, Launch, Placement, Process, Recipe, Seat

from lanes_flare import template
from lanes_flare.options import FlareOptions

UNKNOWN_COMMAND = ("<the option command>",)
"""What stands in a launch for the command that nobody has said; staging refuses before it is used."""


def options_of(lane: Lane) -> FlareOptions:
    """The lane's options; a lane without a recipe has the defaults."""
    return lane.options if isinstance(lane.options, FlareOptions) else FlareOptions()


def launch(lane: Lane, placement: Placement, image: str | None) -> Launch:
    """A process for each rank; rank 0 answers. In which order they start is not known to matter."""
    everywhere = placement.http_host in ("0.0.0.0", "::")
    host = placement.head.address if everywhere else placement.http_host
    return Launch(
        processes=tuple(_process(lane, placement, seat, image) for seat in placement.seats),
        endpoint=Endpoint(
            url=f"http://{host}:{_port(lane, placement)}",
            model=lane.recipe.model.name if lane.recipe else lane.name,
        ),
    )


def _port(lane: Lane, placement: Placement) -> str:
    port = options_of(lane).port
    return placement.http_port if port is None else str(port)


def _process(lane: Lane, placement: Placement, seat: Seat, image: str | None) -> Process:
    options, recipe = options_of(lane), lane.recipe
    values = _values(lane, placement, seat)
    words = (*options.command, *options.rank_env.values())
    for name in sorted(template.names(words) - values.keys()):
        raise UsageError(
            f"the lane's command asks for {{{name}}}, which is not known for {seat.node.name}",
            "set model.path or model.repo in the recipe"
            if name == "model"
            else "say it in the cluster's file",
        )
    ranks_own = {key: template.fill(value, values) for key, value in options.rank_env.items()}
    return Process(
        rank=seat.rank,
        argv=tuple(template.fill(word, values) for word in options.command or UNKNOWN_COMMAND),
        env={**ranks_own, **(recipe.env if recipe else {})},
        container=_container(recipe, image, len(placement.seats)) if recipe and image else None,
    )


def _values(lane: Lane, placement: Placement, seat: Seat) -> Mapping[str, str]:
    """What the placeholders stand for on this rank; what is not known is left out."""
    model = lane.recipe.model if lane.recipe else None
    values = {
        "host": placement.http_host,
        "port": _port(lane, placement),
        "head": placement.head.address,
        "rendezvous_port": placement.rendezvous_port,
        "rank": str(seat.rank),
        "nnodes": str(len(placement.seats)),
        "address": seat.address,
        "interface": seat.interface,
        "model": (model.path or model.repo) if model else None,
        "name": model.name if model else lane.name,
    }
    return {name: value for name, value in values.items() if value is not None}


def _container(recipe: Recipe, image: str, ranks: int) -> Container:
    """What RDMA between containers needs: the host's network, its devices and locked memory."""
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
