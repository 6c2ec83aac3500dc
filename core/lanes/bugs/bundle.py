"""Collect what is known of a lane's failure, and write it without secrets: a folder, or a `.tar.gz`."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from lanes import paths
from lanes.bugs import markdown
from lanes.bugs.secrets import Redactor, known
from lanes.errors import LanesError, UsageError

_LOG_BYTES = 4 << 20
"""How much of the end of each log is worth sending."""
_GOOD = ("measured", "running", "serving", "rehearsed", "interrupted")


@frozen(kw_only=True)
class Bundle:
    """What was written: where, its files, and how many secrets were taken out."""

    path: Path
    files: tuple[str, ...]
    hidden: int


def choose(document: Mapping[str, Any], name: str | None = None) -> int:
    """The index of the lane that failed, or of the one that is named. Raises `UsageError` when none or
    several fit."""
    lanes: Sequence[Mapping[str, Any]] = document["lanes"]
    fitting = [
        index
        for index, lane in enumerate(lanes)
        if (name is None and (lane["status"] not in _GOOD or any(faults(lane)))) or lane["name"] == name
    ]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(lane["name"] for lane in lanes) or "none"
    if fitting and name is not None:
        return fitting[0]
    if fitting:
        raise UsageError(
            f"several lanes of run {document['run']} failed: {', '.join(lanes[i]['name'] for i in fitting)}",
            "name one with --lane",
        )
    if name is None:
        raise UsageError(
            f"no lane of run {document['run']} failed", f"name one all the same with --lane: {names}"
        )
    raise UsageError(f"run {document['run']} has no lane {name!r}", f"it has {names}")


def faults(lane: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of all instruments that count against the server."""
    for instrument in lane["instruments"]:
        yield from (row for row in instrument.get("rows", ()) if row["fault"])


def write(document: Mapping[str, Any], index: int, target: Path) -> Bundle:
    """Write the bundle of a lane to `target`, which must not exist.

    Raises `UsageError` when it does, `LanesError` when it cannot be written, or a known secret is left.
    """
    if target.exists():
        raise UsageError(f"{target} exists already", "name another place with --output, or remove it")
    lane = _without_passes(document["lanes"][index])
    redact = Redactor(known(document["lanes"][index]))
    folder = paths.artefacts() / document["run"] / f"lane{index}"
    result = {**document, "lanes": [lane]}
    texts = {name: redact(text) for name, text in _logs(lane, folder)}
    for name, data in (*_requests(folder), ("result.json", result)):
        texts[name] = json.dumps(redact.data(data), indent=1)
    texts["README.md"] = redact(markdown.page(document, lane, sorted(texts)))
    files = {name: text.encode() for name, text in texts.items()}
    if any(redact.left(data) for data in files.values()):
        raise LanesError("a secret is left in the bundle, so it was not written", "report this")
    stem = target.name.removesuffix(".tar.gz")
    try:
        _store(files, target, stem)
    except OSError as error:
        raise LanesError(
            f"{target} cannot be written: {error.strerror}", "name another place with --output"
        ) from None
    return Bundle(path=target, files=tuple(sorted(files)), hidden=redact.count)


def _store(files: Mapping[str, bytes], target: Path, stem: str) -> None:
    """All of it or nothing: under another name first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.name.endswith(".tar.gz"):
        made = Path(tempfile.mkdtemp(prefix=f".{stem}-", dir=target.parent))
        try:
            for name, data in files.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_bytes(data)
            made.chmod(0o755)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return
    partial = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(partial, "w:gz") as archive:
            for name, data in sorted(files.items()):
                member = tarfile.TarInfo(f"{stem}/{name}")
                member.size, member.mtime = len(data), int(time.time())
                archive.addfile(member, io.BytesIO(data))
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def _without_passes(lane: Mapping[str, Any]) -> dict[str, Any]:
    """The lane as in its result, without the timelines, which are long."""
    instruments = [
        {**one, "cells": [{k: v for k, v in cell.items() if k != "passes"} for cell in one["cells"]]}
        for one in lane["instruments"]
    ]
    return {**lane, "instruments": instruments}


def _logs(lane: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """What is left of the engine's logs: of each launch, and the ends that an instrument kept."""
    record = Path(lane.get("folder") or "/nowhere")
    for log in sorted(record.glob("**/rank*/log")):
        where = "-".join(log.parent.relative_to(record).parts)
        if text := _end(log):
            yield f"logs/{where}.log", text
    for log in sorted(folder.glob("*/rank*.log")):
        yield f"logs/{log.parent.name}-{log.name}", _end(log)


def _requests(folder: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted(folder.glob("*/request*.json")):
        with contextlib.suppress(OSError, ValueError):
            yield f"requests/{file.parent.name}-{file.name}", json.loads(file.read_text(encoding="utf-8"))


def _end(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(could not be read: {error.strerror})\n"
    # A line that was cut might hold half a secret, which nothing would find.
    return (
        text
        if size <= _LOG_BYTES
        else f"(the first {size - _LOG_BYTES:,} bytes are left out)\n" + text.partition("\n")[2]
    )
