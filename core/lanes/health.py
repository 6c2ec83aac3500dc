"""Climb an engine's ladder: wait until a lane is ready, and notice at once when it never will be."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING

from lanes.errors import LaneError
from lanes.executors import process
from lanes.types import CanaryRung, Endpoint, ExecRung, HttpRung, Ladder, LogRung, Rung

if TYPE_CHECKING:
    import httpx2

POLL_S = 0.1
_LINE = 10_000
WRONG_STATUS_GRACE_S = 3.0
"""How long a status that means neither ready nor loading may last: a server may pass through one."""


class Died(LaneError):
    """A process of the lane ended before, or while, it was needed."""


class NotReady(LaneError):
    """The lane did not become ready in time, or answers in a way that says it never will."""


def death(folder: Path) -> str | None:
    """How the first rank that ended did, in a sentence; None while all live."""
    if (first := process.first_ended(folder)) is None:
        return None
    rank, ended = first
    who = f"rank {rank}: " if rank or len(list(folder.glob("rank*"))) > 1 else ""
    return who + ended.sentence()


def wait_until_ready(
    ladder: Ladder, endpoint: Endpoint | None, folder: Path, on_progress: Callable[[str], None]
) -> None:
    """Return when every rung holds. `on_progress` hears what the boot is at.

    Raises `Died` as soon as a process has ended, `NotReady` at the ladder's deadline or when the log
    has been silent for the ladder's `quiet_s`.
    """
    watch = _Watch(ladder, folder, on_progress)
    for rung in ladder.rungs:
        climb = _climber(rung, endpoint, folder)
        pending: str | None = "no answer yet"
        while pending is not None:
            attempt = _beside(climb)
            # A server may take its time to answer, or never do: deaths and deadlines do not wait for it.
            while not wait([attempt], POLL_S).done:
                _alive(folder)
                watch.look(rung.name, pending)
            _alive(folder)
            if (pending := attempt.result()) is not None:
                watch.look(rung.name, pending)
                time.sleep(POLL_S)


def _alive(folder: Path) -> None:
    if (how := death(folder)) is not None:
        raise Died(how)


def _beside(climb: Climb) -> Future[str | None]:
    """Try a rung in a thread, which nobody need wait for when it is no longer of interest."""
    attempt: Future[str | None] = Future()

    def work() -> None:
        try:
            attempt.set_result(climb())
        except BaseException as error:
            attempt.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return attempt


class _Watch:
    """Follows the log for progress and keeps the deadlines."""

    def __init__(self, ladder: Ladder, folder: Path, on_progress: Callable[[str], None]) -> None:
        self.ladder, self.folder, self.on_progress = ladder, folder, on_progress
        self.started = self.last_growth = time.monotonic()
        self.size = -1

    def look(self, rung: str, pending: str) -> None:
        now = time.monotonic()
        size = sum(log.stat().st_size for log in self.folder.glob("rank*/log"))
        if size != self.size:
            self.size, self.last_growth = size, now
            self.on_progress(self.phase() or pending)
        if now - self.started > self.ladder.deadline_s:
            raise NotReady(
                f"not ready after {self.ladder.deadline_s:g} s: {rung}: {pending}",
                "`lanes logs` shows what it was at",
            )
        if self.ladder.quiet_s is not None and now - self.last_growth > self.ladder.quiet_s:
            raise NotReady(
                f"its log has been silent for {self.ladder.quiet_s:g} s: {rung}: {pending}",
                "`lanes logs` shows what it was at",
            )

    def phase(self) -> str | None:
        latest = None
        for phase in self.ladder.phases:
            text = "\n".join(process.tail(self.folder, phase.rank))
            for match in re.finditer(phase.pattern, text):
                latest = phase.name + _share(match.groupdict())
        return latest


def _share(groups: dict[str, str | None]) -> str:
    """How far a phase has come, from its pattern's group `percent` or `fraction`."""
    if percent := groups.get("percent"):
        return f" {percent} %"
    if fraction := groups.get("fraction"):
        try:
            return f" {float(fraction):.0%}".replace("%", " %")
        except ValueError:
            return f" {fraction}"  # such as 3/8
    return ""


Climb = Callable[[], str | None]
"""Try a rung: None when it holds, else what is still pending. Raises `NotReady` when it never will."""


def _climber(rung: Rung, endpoint: Endpoint | None, folder: Path) -> Climb:
    if isinstance(rung, HttpRung):
        return _http(rung, _needed(endpoint, rung))
    if isinstance(rung, LogRung):
        return _log(rung, folder)
    if isinstance(rung, ExecRung):
        return _exec(rung)
    return _canary(rung, _needed(endpoint, rung))


def _needed(endpoint: Endpoint | None, rung: Rung) -> Endpoint:
    if endpoint is None:
        raise NotReady(
            f"{rung.name} needs a server, and the engine has none", "report this to the plugin's author"
        )
    return endpoint


def _http(rung: HttpRung, endpoint: Endpoint) -> Climb:
    import httpx2

    client = httpx2.Client(trust_env=False, timeout=10.0)
    url = endpoint.url.rstrip("/") + rung.path
    wrong_since: list[float] = []

    def climb() -> str | None:
        try:
            answer = client.get(url, headers=_authorization(endpoint))
        except httpx2.ConnectError:
            wrong_since.clear()
            return "nothing answers yet"
        except httpx2.HTTPError as error:
            wrong_since.clear()
            return f"GET {rung.path} brings no answer ({str(error) or type(error).__name__})"
        if answer.status_code == 200:
            client.close()
            return None
        said = _said(answer)
        if answer.status_code in rung.loading:
            wrong_since.clear()
            return said
        wrong_since.append(time.monotonic())
        if wrong_since[-1] - wrong_since[0] > WRONG_STATUS_GRACE_S:
            raise NotReady(f"GET {rung.path} answers {answer.status_code} ({said})", "`lanes logs` shows why")
        return said

    return climb


def _authorization(endpoint: Endpoint) -> dict[str, str]:
    key = os.environ.get(endpoint.dialect.api_key_env or "")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _said(answer: httpx2.Response) -> str:
    """What a server says beside its status: `error.message` where it has one."""
    try:
        said = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        said = answer.text
    return " ".join(process.uncoloured(said).split())[:200] or answer.reason_phrase


def _log(rung: LogRung, folder: Path) -> Climb:
    read = process.reader(folder, rung.rank)
    last = ""

    def climb() -> str | None:
        nonlocal last
        text = last + read()
        lines = text.splitlines()
        if any(re.search(rung.pattern, line) for line in lines):
            return None
        # The last line may go on, or be one of those that never end.
        last = lines[-1][-_LINE:] if lines and text[-1] not in "\r\n" else ""
        return f"rank {rung.rank}'s log does not show it yet"

    return climb


def _exec(rung: ExecRung) -> Climb:
    def climb() -> str | None:
        try:
            code = subprocess.run(
                rung.argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{rung.argv[0]}: {error}"
        return None if code == 0 else f"{rung.argv[0]} exits with {code}"

    return climb


def _canary(rung: CanaryRung, endpoint: Endpoint) -> Climb:
    def climb() -> str | None:
        from lanes.bench.smoke import smoke

        smoke(endpoint, max_tokens=rung.max_tokens)
        return None

    return climb
