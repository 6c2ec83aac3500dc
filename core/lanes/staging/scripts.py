"""Host scripts: what a recipe wants run on its nodes, when the user allowed it by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from lanes import paths
from lanes.errors import LaneError, StagingError
from lanes.staging.crew import Station, work
from lanes.types import HostScript


@frozen(kw_only=True)
class Text:
    """A script as it was read: exactly this is shown, and run."""

    script: HostScript
    file: Path
    text: str


def refused(scripts: Iterable[HostScript], allowed: Collection[str]) -> list[str]:
    """The names of scripts that nobody allowed."""
    return [script.name for script in scripts if script.name not in allowed]


def read(script: HostScript, origin: str = "") -> Text:
    """The script's text; a relative path is meant beside the recipe's file. Raises StagingError."""
    file = paths.under(Path(origin).parent, script.path)
    try:
        return Text(script=script, file=file, text=file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StagingError(
            f"script {script.name}: {file}: {said}",
            f"put the path of the script into the recipe, or under [scripts] in {paths.settings()}",
        ) from None


def run(
    text: Text, stations: Sequence[Station], logs: Path, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Run a script on every node at once, its output in a file a node. Raises LaneError when one fails."""
    logs.mkdir(parents=True, exist_ok=True)
    name = text.script.name
    output = _Output(name, logs, tell)
    environment = {"LANES_NODES": str(len(stations))}
    ranks = {station.name: rank for rank, station in enumerate(stations)}

    def job(station: Station) -> Mapping[str, Any]:
        own = {"LANES_NODE": station.name, "LANES_RANK": str(ranks[station.name])}
        return {"do": "script", "name": name, "text": text.text, "env": {**environment, **own}}

    try:
        work(stations, job, output)
    except StagingError as error:
        raise StagingError(f"script {name} {error.message}", error.next_step) from None
    finally:
        output.close()
    output.complain()


class _Output:
    def __init__(self, name: str, logs: Path, tell: Callable[[str], None]) -> None:
        self._name, self._logs, self._tell = name, logs, tell
        self._files: dict[str, IO[str]] = {}
        self._last: dict[str, str] = {}
        self._codes: dict[str, int] = {}

    def heard(self, node: str, event: Mapping[str, Any]) -> None:
        if event["event"] == "line":
            if node not in self._files:
                self._files[node] = self.file(node).open("w", encoding="utf-8")
            self._files[node].write(event["text"] + "\n")
            self._files[node].flush()
            if event["text"].strip():
                self._last[node] = event["text"].strip()
            self._tell(f"{self._name} on {node}: {event['text']}")
        elif event["event"] == "exit":
            self._codes[node] = event["code"]

    def tick(self) -> None:
        pass

    def file(self, node: str) -> Path:
        return self._logs / f"{_plain(self._name)}-{_plain(node)}.log"

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def complain(self) -> None:
        for node, code in self._codes.items():
            if code:
                how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
                last = self._last.get(node, "it printed nothing")
                raise LaneError(
                    f"script {self._name} on {node} {how}: {last[-300:]}",
                    f"its output is in {self.file(node)}",
                )


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)
