"""The timelines of many requests, packed small enough to keep them all."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from lanes.bench.codec import as_json, from_json
from lanes.bench.loads import Sent
from lanes.bench.plan import Cell
from lanes.bench.stream import Stream

_LEVEL = 1
"""Of zlib: the first one already takes three quarters, and the higher ones cost ten times as much."""
_DEFAULTS = {a.name: a.default for a in attrs.fields(Stream)}


@attrs.frozen(kw_only=True)
class Batch:
    """Requests of one pass of a load, in the order in which they ended, packed."""

    cell: Cell
    number: int
    count: int
    packed: str


def line(sent: Sent) -> bytes:
    """Return one request as a line of JSON: what differs from the defaults of its fields."""
    stream: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(sent.stream, name)
        if value != default:
            # The arrivals are tuples, which JSON writes as they are.
            stream[name] = as_json(value) if name == "usage" else value
    first = sent.first_delta and [sent.first_delta.tokens, sent.first_delta.source]
    return json.dumps([sent.number, sent.due_ns, first, stream], separators=(",", ":")).encode()


def pack(lines: Iterable[bytes]) -> str:
    """Return the lines as a short text."""
    return base64.b64encode(zlib.compress(b"\n".join(lines), _LEVEL)).decode()


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
