"""The timelines of requests, packed small enough to keep them all."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from lanes.bench.arrivals import Arrivals
from lanes.bench.cells import Pass
from lanes.bench.codec import as_json, from_json
from lanes.bench.loads import Sent
from lanes.bench.plan import Cell
from lanes.bench.stream import Stream

_LEVEL = 1
"""Of zlib: the first one already takes three quarters, and the higher ones cost ten times as much."""
_DEFAULTS = {name: getattr(Stream(t0_ns=-1), name) for name in (a.name for a in attrs.fields(Stream))}


@attrs.frozen(kw_only=True)
class Batch:
    """Requests of one pass, packed: of a burst all of them, of a load those of about a second, in the
    order in which they ended. `number` and `warmup` are the pass's."""

    cell: Cell
    number: int
    warmup: bool = False
    count: int
    packed: str


def line(sent: Sent) -> bytes:
    """Return one request as a line of JSON: what differs from the defaults of its fields."""
    stream: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(sent.stream, name)
        if value != default:
            stream[name] = as_json(value)
    first = sent.first_delta and [sent.first_delta.tokens, sent.first_delta.source]
    return json.dumps([sent.number, sent.due_ns, first, stream], separators=(",", ":")).encode()


def pack(lines: Iterable[bytes]) -> str:
    """Return the lines as a short text."""
    return base64.b64encode(zlib.compress(b"\n".join(lines), _LEVEL)).decode()


def burst(one: Pass) -> Batch:
    """Return the requests of a burst, numbered as its streams are."""
    sent = (
        Sent(number=number, stream=stream, first_delta=first)
        for number, (stream, first) in enumerate(zip(one.streams, one.first_deltas, strict=True))
    )
    lines = [line(each) for each in sent]
    return Batch(cell=one.cell, number=one.number, warmup=one.warmup, count=len(lines), packed=pack(lines))


def without(one: Pass) -> dict[str, Any]:
    """Return the pass as JSON data, without its streams' timelines."""
    bare = attrs.evolve(one, streams=_bare(one.streams), prefixes=_bare(one.prefixes))
    data: dict[str, Any] = as_json(bare)
    for stream in (*data["streams"], *data["prefixes"]):
        del stream["arrivals"]
    return data


def _bare(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    return tuple(attrs.evolve(one, arrivals=Arrivals()) for one in streams)


def unpack(packed: str) -> Iterator[Sent]:
    """Yield the requests of `pack`. Raises ValueError for what it did not make."""
    try:
        lines = zlib.decompress(base64.b64decode(packed, validate=True)).splitlines()
    except zlib.error as error:
        raise ValueError(f"the timelines are damaged: {error}") from None
    for each in lines:
        number, due_ns, first, stream = json.loads(each)
        k1 = {"tokens": first[0], "source": first[1]} if first else None
        yield from_json(Sent, {"number": number, "due_ns": due_ns, "first_delta": k1, "stream": stream})
