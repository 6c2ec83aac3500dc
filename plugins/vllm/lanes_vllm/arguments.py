"""The command line of a rank, from the lane's options: full names of flags only, since a name cut short
works until vLLM gains another that begins so."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from lanes.types import Lane

from lanes_vllm.options import NOT_FLAGS, VllmOptions


def options_of(lane: Lane) -> VllmOptions:
    """The lane's options; a lane without a recipe has the defaults."""
    return lane.options if isinstance(lane.options, VllmOptions) else VllmOptions()


def model(lane: Lane) -> str:
    """What vLLM is told to serve: a folder, or a repository."""
    named = lane.recipe.model if lane.recipe else None
    return (named and (named.path or named.repo or named.name)) or "MODEL"


def flags(
    lane: Lane, *, rank: int, ranks: int, port: str, rendezvous: tuple[str, str], host: str | None
) -> list[str]:
    """All flags of one rank; `rendezvous` is the (host, port) that "auto" stands for."""
    options = options_of(lane)
    words = [*_model(lane)]
    if host is not None:
        words += ["--host", host, "--port", port]
    if ranks > 1:
        words += ["--nnodes", str(ranks), "--node-rank", str(rank)]
        if options.rendezvous:
            at, _, number = options.rendezvous.rpartition(":")
            address, master_port = rendezvous if options.rendezvous == "auto" else (at, number)
            words += ["--master-addr", address, "--master-port", master_port]
        # Only the head serves; the others have no API server at all.
        words += ["--headless"] if rank > 0 else []
    return [*words, *_options(options), *options.extra_args]


def _model(lane: Lane) -> Iterator[str]:
    named = lane.recipe.model if lane.recipe else None
    if named and named.repo and named.revision:
        yield from ("--revision", named.revision)
    yield from ("--served-model-name", named.name if named else lane.name)


def _options(options: VllmOptions) -> Iterator[str]:
    defaults = VllmOptions()
    for field in attrs.fields(VllmOptions):
        value = getattr(options, field.name)
        flag = f"--{field.name.replace('_', '-')}"
        if field.name in NOT_FLAGS or value is None or value is False:
            continue
        if value is True:
            yield flag
        elif value != getattr(defaults, field.name):
            yield from (flag, str(value))
