"""The page that a maintainer reads first: what fails, how to see it again, with which versions."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 40
"""Lines of a log on the page; the files beside it have more."""


def page(document: Mapping[str, Any], lane: Mapping[str, Any], files: Sequence[str]) -> str:
    """The page, in Markdown."""
    return "\n".join(_page(document, lane, files)) + "\n"


def _page(document: Mapping[str, Any], lane: Mapping[str, Any], files: Sequence[str]) -> Iterator[str]:
    version = (lane.get("environment") or {}).get("engine_version")
    engine = " ".join(filter(None, (lane["engine"] or "a server", version)))
    yield f"# {engine}: {_first_clause(lane)}"
    yield ""
    yield f"Lane `{lane['name']}`, {lane['status']}: {lane['reason'] or 'no reason was given'}"
    if causes := lane.get("causes"):
        yield ""
        yield from (f"- {one['meaning']}" for one in causes)
    yield from _again(lane, files)
    yield from _found(lane)
    yield from _versions(document, lane)
    yield from _launch(lane)
    if log := _log(lane):
        yield from ("", "## The log's telling lines", "", *fenced(log[-_SHOWN:]))
    yield from ("", "## Files", "")
    yield from (f"- `{name}`" for name in files)
    yield ""
    yield (
        "Secrets are replaced by `(hidden)`: values of variables, keys and flags whose names tell of one, and what "
        "looks like a token. Read it once more before you send it."
    )


def _first_clause(lane: Mapping[str, Any]) -> str:
    return str(lane["reason"] or lane["status"]).partition(": ")[0]


def _again(lane: Mapping[str, Any], files: Sequence[str]) -> Iterator[str]:
    """How to see it again: the command, then the request."""
    launch = lane.get("launch") or {}
    processes = launch.get("processes") or []
    requests = [name for name in files if name.startswith("requests/")]
    if not processes and not requests:
        return
    yield from ("", "## How to see it again", "")
    for process in processes:
        yield f"Rank {process['rank']}:" if len(processes) > 1 else "Start the server:"
        yield from ("", *fenced([_command(process)], "sh"), "")
    url = (launch.get("endpoint") or {}).get("url") or lane.get("url") or "http://HOST:PORT"
    if requests:
        yield from ("Send what kills it:" if len(requests) == 1 else "Send at once what kills it:", "")
        send = f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d @"
        ends = [" &"] * (len(requests) - 1) + [""]
        yield from fenced([send + name + end for name, end in zip(requests, ends, strict=True)], "sh")


def _command(process: Mapping[str, Any]) -> str:
    env = "".join(f"{k}={shlex.quote(v)} " for k, v in (process.get("env") or {}).items())
    return env + shlex.join(process["argv"])


def _found(lane: Mapping[str, Any]) -> Iterator[str]:
    for instrument in lane["instruments"]:
        rows = instrument.get("rows") or []
        if not rows:
            continue
        yield from ("", f"## What was tried: {instrument['name']}", "")
        yield "| step | what became of it | why |"
        yield "|---|---|---|"
        for row in rows:
            yield f"| {_cell(row['name'])} | {_cell(row['status'])} | {_cell(row['reason'] or '')} |"


def _versions(document: Mapping[str, Any], lane: Mapping[str, Any]) -> Iterator[str]:
    environment = lane.get("environment") or {}
    rows = [
        ("engine", " ".join(filter(None, (lane["engine"], environment.get("engine_version"))))),
        ("plugin", environment.get("plugin")),
        ("lanes", environment.get("lanes")),
        ("run", document["run"]),
        ("kernel", environment.get("kernel")),
        ("Python", environment.get("python")),
    ]
    for rank, image in (lane.get("images") or {}).items():
        rows.append((f"image, rank {rank}", image["reference"]))
        rows.append(("its digest", ", ".join(image.get("digests") or ()) or None))
        rows.append(("its id", image.get("id")))
    recipe = lane.get("recipe") or {}
    model = recipe.get("model") or {}
    rows.append(("recipe", recipe.get("name")))
    rows.append(
        ("model", model.get("repo") or model.get("path") or model.get("package") or model.get("name"))
    )
    rows.append(("revision", model.get("revision")))
    rows.append(("quantization", model.get("quantization")))
    for node in environment.get("nodes") or ():
        gpus = node.get("gpus") or ()
        held = ", ".join(
            f"{gpu['name']} ({gpu.get('target') or '?'}, driver {gpu.get('driver') or '?'})" for gpu in gpus
        )
        about = (
            node.get("os"),
            node.get("arch"),
            held or "no GPU",
            node.get("cuda") and f"CUDA {node['cuda']}",
        )
        rows.append((f"node {node['name']}", ", ".join(filter(None, about))))
    yield from ("", "## Versions", "", "| | |", "|---|---|")
    yield from (f"| {_cell(name)} | {_cell(str(value))} |" for name, value in rows if value)


def _launch(lane: Mapping[str, Any]) -> Iterator[str]:
    options = (lane.get("recipe") or {}).get("options") or {}
    if options:
        yield from ("", "## Options of the recipe", "")
        yield from fenced([f"{name} = {value!r}" for name, value in options.items() if value is not None])


def _log(lane: Mapping[str, Any]) -> list[str]:
    rows = [row for one in lane["instruments"] for row in one.get("rows") or () if row["fault"]]
    kept = [line for row in rows for line in (row.get("evidence") or {}).get("log") or ()]
    return list(lane.get("log") or ()) or kept


def fenced(lines: Iterable[str], kind: str = "") -> list[str]:
    """A block that no line of it can end."""
    lines = list(lines)
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return [fence + kind, *lines, fence]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
