"""Programs of others, run as they are: found, asked for their version, started, watched, ended.

Each runs in its own interpreter and its own process group, through `programs_start.py`, which ends it when lanes
dies. What it writes lies in a folder that is thrown away; `keep` takes what is worth keeping, without secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from lanes.errors import LaneError

KEY_VARIABLE = "LANES_PROGRAM_KEY"
"""Holds the API key for `programs_start.py`, which takes it out of the environment at once."""

_POLL_S = 0.2
_VERSION_S = 60.0
_PATIENCE_S = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
"""How a program is asked to end, and how long each time: the first lets it save what it has."""


@frozen(kw_only=True)
class Program:
    """A program of others: the name of its command, of its package on PyPI, and the versions that were tried."""

    command: str
    package: str
    tried: tuple[str, ...]

    @property
    def install(self) -> str:
        """The command that installs it, in a version that was tried."""
        return f"pip install {self.package}=={self.tried[0]}"

    def find(self) -> Path | None:
        """Where it is: on PATH, or beside the interpreter that runs lanes."""
        beside = Path(sys.executable).parent / self.command
        found = shutil.which(self.command) or (str(beside) if os.access(beside, os.X_OK) else None)
        return Path(found) if found else None

    def lacking(self) -> str | None:
        """What is missing, in one sentence with the command that installs it, or None."""
        if self.find() is not None:
            return None
        return f"{self.command} is neither on PATH nor beside lanes: `{self.install}` brings it, in an environment of its own if need be"

    def installed(self) -> Installed:
        """The program with its version. Raises `LaneError` when it is not there, or does not run."""
        found = self.find()
        if found is None:
            raise LaneError(f"{self.lacking()}", self.install)
        # Its own --version may load all of it first.
        interpreter = interpreter_of(found)
        asked = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        argv = [interpreter, "-c", asked] if interpreter else [str(found), "--version"]
        try:
            said = subprocess.run(
                argv, capture_output=True, text=True, timeout=_VERSION_S, env=clean_environment(), check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaneError(f"{found} does not run: {error}", f"install it anew: {self.install}") from None
        version = re.search(r"\d+(?:\.\d+)+\S*", said.stdout)
        if said.returncode or version is None:
            words = (said.stderr or said.stdout).strip().splitlines()
            raise LaneError(
                f"{found} does not tell its version: {words[-1] if words else 'it printed nothing'}",
                f"install it anew: {self.install}",
            )
        return Installed(program=self, path=found, version=version[0])


@frozen(kw_only=True)
class Installed:
    """A program that was found, with the version that it says it has."""

    program: Program
    path: Path
    version: str

    @property
    def note(self) -> str | None:
        """What to say of a version that nobody tried."""
        if self.version in self.program.tried:
            return None
        tried = " and ".join(self.program.tried)
        return f"{self.program.command} is {self.version} here, and what is known of it was seen with {tried}"

    def argv(self, arguments: Sequence[str]) -> list[str]:
        """How to start it so that it ends with lanes; as it stands when its interpreter cannot be told."""
        interpreter = interpreter_of(self.path)
        start = [interpreter, str(Path(__file__).with_name("programs_start.py"))] if interpreter else []
        return [*start, str(self.path), *arguments]


def interpreter_of(script: Path) -> str | None:
    """The Python that a console script names in its first line, or in its second where the path is long."""
    try:
        with script.open("rb") as file:
            head = file.read(2048).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    first = head[0] if head else ""
    if (
        first == "#!/bin/sh"
        and len(head) > 1
        and (quoted := re.match(r"'''exec' \"?([^\"]+?)\"? \"\$0\"", head[1]))
    ):
        first = f"#!{quoted[1]}"
    path = first[2:].strip() if first.startswith("#!") else ""
    return path if "python" in Path(path).name and os.access(path, os.X_OK) else None


def clean_environment(**more: str) -> dict[str, str]:
    """The environment for a program of others: without settings that would change what it does, where it connects
    to, or where it finds its packages, unseen."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOOL_EVAL_", "PYTHON"))
    }
    return kept | {"NO_PROXY": "*", "no_proxy": "*", "PYTHONUNBUFFERED": "1"} | more


@frozen(kw_only=True)
class Ended:
    """How a program ended: its exit code, and the last lines that it printed."""

    code: int
    lines: tuple[str, ...]

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else "it printed nothing"


class Folder:
    """A folder in which a program runs, thrown away after the `with` block."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self.redact = redact
        self._held = tempfile.TemporaryDirectory(prefix="lanes-program-", ignore_cleanup_errors=True)
        self.path = Path(self._held.name)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.cleanup()

    def read(self, name: str) -> str:
        """A file's text without secrets; empty when there is none."""
        try:
            return self.redact((self.path / name).read_text("utf-8", "replace"))
        except OSError:
            return ""

    def keep(self, name: str, target: Path) -> None:
        """Copy a file's text, without secrets, to where the result's files are."""
        if text := self.read(name):
            target.write_text(text, "utf-8")


def run(
    argv: Sequence[str],
    folder: Folder,
    env: Mapping[str, str],
    watch: Callable[[], None],
    quiet_s: float,
    log: str = "log",
) -> Ended:
    """Run a program to its end in `folder`, with what it prints in the file `log`.

    `watch` is called several times a second, and may raise to end the program. KeyboardInterrupt and any
    other exception end it and its children, once it had the time to save what it has, and pass through.
    Raises `LaneError` when it printed and wrote nothing for `quiet_s` seconds.
    """
    from lanes.interrupts import held_off

    # A Ctrl-C just here would leave a program that nobody ends.
    with (folder.path / log).open("wb") as output, held_off() as hurry:
        process = subprocess.Popen(
            argv,
            cwd=folder.path,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        if hurry():
            raise KeyboardInterrupt
        seen, since = -1, time.monotonic()
        while process.poll() is None:
            watch()
            size = sum(_size(path) for path in folder.path.iterdir())
            if size != seen:
                seen, since = size, time.monotonic()
            elif time.monotonic() - since > quiet_s:
                raise LaneError(
                    f"the program said nothing for {quiet_s:.0f} s",
                    "look whether the server still answers",
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
    except BaseException:
        end(process)
        raise
    # Its children would outlive it.
    _signal(process.pid, signal.SIGKILL)
    lines = [line for line in folder.read(log).splitlines() if line.strip()]
    return Ended(code=process.returncode, lines=tuple(lines[-20:]))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started, the gentle way first."""
    from lanes.interrupts import held_off

    with held_off() as hurry:
        for number, patience_s in _PATIENCE_S:
            _signal(process.pid, number)
            until = time.monotonic() + patience_s
            while process.poll() is None and time.monotonic() < until:
                if hurry() and number != signal.SIGKILL:
                    break
                time.sleep(0.05)
            if process.poll() is not None:
                break
        _signal(process.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def lines_of(path: Path) -> Iterator[str]:
    """Yield the whole lines of a file that grows, those that came since the last `next`; for ever."""
    at = 0
    while True:
        try:
            with path.open("rb") as file:
                file.seek(at)
                new = file.read()
        except OSError:
            new = b""
        whole = new[: new.rfind(b"\n") + 1]
        at += len(whole)
        yield whole.decode("utf-8", "replace")
