"""The processes of a lane, one on each node, by the command that the recipe gives."""

from __future__ import annotations

from lanes.errors import UsageError
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

from lanes_flare import template
from lanes_flare.options import FlareOptions

UNPUBLISHED = "FLARE's flags, ports and health paths are published nowhere"

DIALECT = Dialect(name="flare")
"""OpenAI's API is all that is known of FLARE's server."""


def options_of(lane: Lane) -> FlareOptions:
    """The lane's options; a lane without a recipe has the defaults."""
    return lane.options if isinstance(lane.options, FlareOptions) else FlareOptions()


def launch(lane: Lane, placement: Placement, image: str | None) -> Launch:
    """The ranks as the recipe's command starts them. Raises `UsageError` where it does not say how."""
    options, recipe = options_of(lane), lane.recipe
    # Without a health path a first answer is still proof; without command and port nothing can be started.
    lacking = [(name, what) for name, what in options.missing() if name != "health"]
    if recipe is None or lacking:
        name, what = lacking[0] if lacking else ("a recipe", "")
        raise UsageError(
            f"{lane.name} does not say how FLARE is started: {name} is missing, and {UNPUBLISHED}",
            f"set {name} under [options]: {what}" if what else "name one with --recipe",
        )
    everywhere = placement.http_host in ("0.0.0.0", "::")
    host = placement.head.address if everywhere else placement.http_host
    port = placement.http_port if options.port is None else str(options.port)
    return Launch(
        processes=tuple(_process(recipe, options, placement, seat, port, image) for seat in placement.seats),
        endpoint=Endpoint(url=f"http://{host}:{port}", model=recipe.model.name, dialect=DIALECT),
    )


def _process(
    recipe: Recipe, options: FlareOptions, placement: Placement, seat: Seat, port: str, image: str | None
) -> Process:
    model = recipe.model
    values = {
        "model": model.path or model.repo or model.name,
        "name": model.name,
        "host": placement.http_host,
        "port": port,
        "rank": str(seat.rank),
        "nnodes": str(len(placement.seats)),
        "address": seat.address,
        "head": placement.head.address,
        "rendezvous_port": placement.rendezvous_port,
    }
    return Process(
        rank=seat.rank,
        argv=template.fill(options.command, values),
        env=dict(recipe.env),
        container=_container(recipe, image, len(placement.seats)) if image else None,
    )


def _container(recipe: Recipe, image: str, ranks: int) -> Container:
    """What RDMA between hosts needs; of FLARE's own wishes nothing is known."""
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
