"""The command line of a rank, from the lane's options: full names of flags only, since a name cut short
works until SGLang gains another that begins so."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from lanes.types import Lane

from lanes_sglang.options import NOT_FLAGS, SglangOptions


def options_of(lane: Lane) -> SglangOptions:
    """The lane's options; a lane without a recipe has the defaults."""
    return lane.options if isinstance(lane.options, SglangOptions) else SglangOptions()


def flags(lane: Lane, *, rank: int, ranks: int, port: str, rendezvous: str, host: str | None) -> list[str]:
    """All flags of one rank; `rendezvous` is what "auto" stands for."""
    options = options_of(lane)
    words = [*_model(lane)]
    if host is not None:
        words += ["--host", host]
    words += ["--port", port]
    if ranks > 1:
        words += ["--nnodes", str(ranks), "--node-rank", str(rank)]
        address = rendezvous if options.rendezvous == "auto" else options.rendezvous
        words += ["--dist-init-addr", address] if address else []
    return [*words, *_options(options), *options.extra_args]


def _model(lane: Lane) -> Iterator[str]:
    model = lane.recipe.model if lane.recipe else None
    yield from ("--model-path", (model and (model.path or model.repo or model.name)) or "MODEL")
    if model and model.repo and model.revision:
        yield from ("--revision", model.revision)
    yield from ("--served-model-name", model.name if model else lane.name)


def _options(options: SglangOptions) -> Iterator[str]:
    defaults = SglangOptions()
    for field in attrs.fields(SglangOptions):
        value = getattr(options, field.name)
        flag = f"--{field.name.replace('_', '-')}"
        if field.name in NOT_FLAGS or value is None or value is False:
            continue
        if value is True:
            yield flag
        elif value != getattr(defaults, field.name):
            yield from (flag, _number(value) if isinstance(value, float) else str(value))


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)
