"""What a client on another host sends, and what of it goes into the journal: nothing that is not of the right
form, and nothing without bound."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import cattrs

from lanes.measuring import Session
from lanes.results.document import REQUESTS
from lanes.types import Endpoint, Finding

BEAT_S = 5.0
"""How often both give a sign of life."""
SILENCE_S = 45.0
"""After how long without one the other is given up."""
LINE_BYTES = 64 << 20
"""The longest message: the timelines of one burst are in one."""
TOTAL_BYTES = 8 << 30
FILE_BYTES = 16 << 20
FILES = 200
"""The largest file of an instrument, and how many in all."""
_UNPACKED_BYTES = 1 << 30
_SENTENCE = 2000

_STATUSES = ("done", "skipped", "unrunnable", "unmeasurable", "crashed", "failed")
_VERDICTS = ("runnable", "degraded", "unknown", "unrunnable")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")

Data = dict[str, Any]


class Refused(Exception):
    """A message that is not believed; `str()` says what is wrong with it."""


def write(kind: str, data: Mapping[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps([kind, data], separators=(",", ":")).encode() + b"\n"


def read(line: bytes) -> tuple[str, Data]:
    """The kind of a message and its data. Raises `Refused`."""
    try:
        found = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(f"{_shown(line)} is no message of lanes") from None
    if not (
        isinstance(found, list)
        and len(found) == 2
        and isinstance(found[0], str)
        and isinstance(found[1], dict)
    ):
        raise Refused(f"{_shown(line)} is no message of lanes")
    return found[0], found[1]


def event(kind: str, data: Data, instruments: Collection[str]) -> Data:
    """The data of an event as it goes into the journal (see `results/document.py`), made anew from the values that
    it describes: whatever else was sent is dropped. `instruments` are the names of those that were asked for.

    Raises `Refused` for a kind that a client has no business with, and for data of another form.
    """
    check = _EVENTS.get(kind)
    if check is None:
        raise Refused(f"{kind[:40]!r} is nothing that a measurement has")
    try:
        made = check(data)
        if kind != REQUESTS:
            json.dumps(made, allow_nan=False)
        if kind == "findings":
            return made
        if data["instrument"] not in instruments:
            raise ValueError("it names an instrument that was not asked for")
        return {"instrument": data["instrument"], **made}
    except Exception as error:
        why = error.args[0] if isinstance(error, ValueError) and error.args else type(error).__name__
        raise Refused(f"a {kind!r} has not the form of one ({str(why)[:200]})") from None


def progress(data: Data) -> str:
    """A line of progress."""
    return str(data.get("text", ""))[:200]


def file(data: Data, instruments: Collection[str]) -> tuple[str, str, bytes]:
    """A file that an instrument left: the instrument, the file's name, what is in it. Raises `Refused`."""
    instrument, name, content = data.get("instrument"), data.get("name"), data.get("content")
    if instrument not in instruments or not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise Refused("a file has a name that no instrument gives")
    try:
        held = base64.b64decode(str(content), validate=True)
    except (binascii.Error, ValueError):
        raise Refused("a file is damaged") from None
    if len(held) > FILE_BYTES:
        raise Refused(f"a file is larger than {FILE_BYTES >> 20} MiB")
    return str(instrument), name, held


def as_json(value: Any) -> Any:
    """A value of the contract as plain data."""
    return _converter().unstructure(value)


def endpoint(data: Any) -> Endpoint:
    """The endpoint that `as_json` made data of. Raises `Refused`."""
    made: Endpoint = _made(Endpoint, data)
    return made


def findings(data: Any) -> tuple[Finding, ...]:
    """Findings likewise."""
    made: tuple[Finding, ...] = _made(tuple[Finding, ...], data)
    return made


def sentence(value: Any) -> str | None:
    """A text that is shown to a person, or None."""
    return None if value is None else "".join(c if c.isprintable() else " " for c in str(value)[:_SENTENCE])


def _made(kind: Any, data: Any) -> Any:
    try:
        return _converter().structure(data, kind)
    except Exception as error:
        raise Refused(f"a description of {kind} is damaged ({type(error).__name__})") from None


@functools.cache
def _converter() -> cattrs.Converter:
    import cattrs.preconf.json

    return cattrs.preconf.json.make_converter()


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _shown(line: bytes) -> str:
    text = line[:80].decode("utf-8", "replace").strip()
    return repr(text) + (" ..." if len(line) > 80 else "")


# -- Events ------------------------------------------------------------------------------------------


def _instrument(data: Data) -> Data:
    from lanes.bench.codec import from_json
    from lanes.bench.slo import Slo

    # Figures are computed anew by it.
    if slo := data["plan"].get("slo"):
        from_json(Slo, slo)
    return {"plan": dict(data["plan"])}


def _row(data: Data) -> Data:
    from lanes.bench.codec import as_json, from_json
    from lanes.bench.statistics import Interval
    from lanes.instruments.base import Row

    row = from_json(Row, data["row"])
    for figure in row.figures.values():
        if isinstance(figure, Mapping):
            from_json(Interval, figure)
        elif figure is not None and not isinstance(figure, int | float):
            raise ValueError("a figure is no number")
    return {"row": as_json(row)}


def _pass(data: Data) -> Data:
    from lanes.bench import timelines
    from lanes.bench.cells import Pass
    from lanes.bench.codec import as_json, from_json
    from lanes.bench.plan import Cell

    return {
        "cell": as_json(from_json(Cell, data["cell"])),
        "measured": timelines.without(from_json(Pass, data["measured"])),
    }


def _requests(data: Data) -> Data:
    from lanes.bench.codec import as_json, from_json
    from lanes.bench.timelines import Batch

    batch = from_json(Batch, data)
    unpacker = zlib.decompressobj()
    try:
        # Looked through in parts, so that little that unpacks to much takes no memory.
        packed, size = base64.b64decode(batch.packed, validate=True), 0
        while packed and not unpacker.eof:
            size += len(unpacker.decompress(packed, 1 << 20))
            packed = unpacker.unconsumed_tail
            if size > _UNPACKED_BYTES:
                raise ValueError("its timelines are too long")
    except (zlib.error, binascii.Error):
        raise ValueError("its timelines are damaged") from None
    if not unpacker.eof:
        raise ValueError("its timelines are cut")
    made: Data = as_json(batch)
    return made


def _cell(data: Data) -> Data:
    from lanes.bench.cells import CellResult
    from lanes.bench.codec import as_json, from_json

    return {"cell": as_json(from_json(CellResult, {**data["cell"], "passes": ()}))}


def _instrument_end(data: Data) -> Data:
    if data["status"] not in _STATUSES:
        raise ValueError("its status is none")
    return {"status": data["status"], "reason": sentence(data["reason"])}


def _findings(data: Data) -> Data:
    from lanes import describe

    if data["verdict"] not in _VERDICTS:
        raise ValueError("its verdict is none")
    return {
        "verdict": data["verdict"],
        "findings": [describe.finding(one) for one in findings(data["findings"])],
        "overrides": [str(one)[:_SENTENCE] for one in data["overrides"]],
    }


_EVENTS: dict[str, Callable[[Data], Data]] = {
    "instrument": _instrument,
    "row": _row,
    "pass": _pass,
    "requests": _requests,
    "cell": _cell,
    "instrument-end": _instrument_end,
    "findings": _findings,
}


def ended(data: Any) -> Session:
    """What an `end` says. Raises `Refused`."""
    found: Session = _made(Session, data)
    if found.status not in ("measured", *_STATUSES[2:]):
        raise Refused("the status of an end is none")
    return attrs.evolve(found, reason=sentence(found.reason) or "", next_step=sentence(found.next_step))
