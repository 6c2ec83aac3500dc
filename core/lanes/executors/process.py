"""The process executor: starts, watches and stops the processes of a lane on this machine.

Each rank gets a folder and a keeper (see `keeper.py`), which outlives this program and writes down how
the rank ended. Everything here works from those folders alone, so any later command can take over.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from lanes import hosts
from lanes.errors import StartError
from lanes.executors import keeper
from lanes.hosts import HERE, Host
from lanes.nodes import Place
from lanes.types import Exit, Placement, Process, StopPlan

MARK = "LANES_LANE"
"""Environment variable that tells every process of a lane the lane's id."""

PORTS = (20000, 32768)
"""Those that a lane takes on other machines: below what Linux uses for connections that go out."""

KEEPERS_S = 5.0

_LISTENS = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""

_FOLDER = "LANES_FOLDER"
"""Environment variable that marks every process of a lane as this lane's: ids are not unique over all
homes of a machine."""

_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])")


@attrs.frozen(kw_only=True)
class Ended:
    """How a rank's process ended: `reason` is `exited`, `stopped`, `owner-died`, `not-started`, `vanished`
    when nobody saw it end; and of a container `lost` (its node does not answer any more), `cut-off` (its
    Docker engine ended), or `removed`. `step` says what to do, where that is known."""

    reason: str
    exit: Exit
    error: str | None = None
    step: str | None = None
    at_ns: int | None = None

    def sentence(self) -> str:
        """Say it, as in "the process was killed by SIGKILL (out of memory)"."""
        if self.reason == "lost":
            return f"its node is lost: {self.error}"
        if self.reason in ("cut-off", "removed"):
            return str(self.error)
        if self.error:
            return f"the process could not be started: {self.error}"
        if self.reason == "vanished":
            return "the process is gone, and nobody saw it end"
        if self.exit.signal:
            why = " (the kernel was out of memory)" if self.exit.oom_killed else ""
            return f"the process was killed by {self.exit.signal}{why}"
        return f"the process exited with code {self.exit.code}"


class Owner:
    """This program's hold on the processes that it started: keepers stop theirs when it is let go of,
    which the end of this program does, however it ends."""

    def __init__(self) -> None:
        self._write_ends: list[int] = []

    def pipe(self) -> int:
        """The read end of a new pipe, for one keeper; the caller closes it."""
        read_end, write_end = os.pipe()
        self._write_ends.append(write_end)
        return read_end

    def detach(self) -> None:
        """Leave the processes running when this program ends."""
        for write_end in self._write_ends:
            with contextlib.suppress(BrokenPipeError):
                os.write(write_end, b"d")


def place(at: Place, ranks: int, http_port: int | None = None) -> Placement:
    """Seats for all ranks, with free ports on the head's node. Raises `StartError` when the port that was
    asked for is in use."""
    head = at.host(0)
    if head.ssh is not None:
        found = remote_ports(head, 2, http_port)
    else:
        if http_port is not None:
            check_port(at.http_host, http_port)
        found = free_ports(at.http_host, 2)
    # Ranks for which there is no node (somebody went on despite that) share the last one.
    more = (attrs.evolve(at.seats[-1], rank=rank) for rank in range(len(at.seats), ranks))
    return Placement(
        seats=(*at.seats[:ranks], *more),
        http_host=at.http_host,
        http_port=str(http_port or found[0]),
        rendezvous_port=str(found[1]),
    )


def remote_ports(host: Host, count: int, wanted: int | None = None) -> list[int]:
    """Ports of another machine that nobody uses now. Raises StartError when somebody listens on the one that
    is `wanted`, LaneError when the machine cannot be asked."""
    taken, listening = set(), set()
    for line in hosts.run(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]).splitlines():
        if "local_address" not in line:
            _, local, _, state, *_ = line.split()
            port = int(local.rpartition(":")[2], 16)
            taken.add(port)
            if state == _LISTENS:
                listening.add(port)
    if wanted in listening:
        raise StartError(
            f"port {wanted} on {hosts.name(host)} cannot be used: somebody listens there",
            f"`ssh {host.ssh} ss -tlnp` tells who; choose another with --port, or leave it out for a free one",
        )
    return random.sample([port for port in range(*PORTS) if port not in taken], count)


def free_ports(host: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def check_port(host: str, port: int) -> None:
    """Raise `StartError` naming who holds the port, when somebody does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartError(
                f"port {port} on {host} cannot be used: {_holder(port) or error.strerror}",
                "choose another with --port, or leave it out for a free one",
            ) from None


def _holder(port: int) -> str | None:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr
            if listens and listens.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid}) listens there"
    return None


def rank_folder(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}"


def start(
    folder: Path, process: Process, stop: StopPlan, owner: Owner, host: Host = HERE, amd: bool = False
) -> None:
    """Start one rank under a keeper, in a container where it asks for one. Returns when its pid is known.

    `host` is where, `amd` whether its GPUs are AMD's.

    Raises `StartError` when the program cannot be run.
    """
    begin(folder, process, stop, owner, host, amd)()


def begin(
    folder: Path,
    process: Process,
    stop: StopPlan,
    owner: Owner,
    host: Host = HERE,
    amd: bool = False,
    after: int | None = None,
) -> Callable[[], None]:
    """Begin to start one rank, as `start` does; the function that is returned returns when its pid is known.

    A container is made at once, and started when the rank `after` has been. Raises `StartError`.
    """
    if stop.signal not in signal.Signals.__members__:
        raise StartError(
            f"there is no signal {stop.signal!r} to stop it with", "report this to the plugin's author"
        )
    if process.container is None and host.ssh is not None:
        raise StartError(
            f"rank {process.rank} is a plain process, and {host.ssh} is another machine",
            "give the recipe an image: on other machines lanes starts containers",
        )
    own = rank_folder(folder, process.rank)
    own.mkdir(parents=True, mode=0o700)
    spec: dict[str, Any] = {
        "argv": process.argv,
        "cwd": process.cwd,
        "signal": stop.signal,
        "patience_s": stop.patience_s,
    }
    environment = {**os.environ, **process.env}
    program = [sys.executable, "-I", keeper.__file__]
    line: tuple[str, int, int] | None = None
    if process.container is not None:
        from lanes.executors import docker

        container = docker.arguments(process, host, folder, amd)
        # Its keeper takes our connection over, and opens one of its own when that breaks.
        line = hosts.hand_over(host)
        spec |= {"host": attrs.asdict(hosts.located(host)), "container": container, "after": after}
        environment = {**os.environ, docker.ENVIRONMENT: json.dumps(dict(process.env))}
        program = [sys.executable, "-P", "-m", "lanes.executors.docker_keeper"]
    keeper.write_json(str(own / "process.json"), spec)
    environment |= {
        MARK: folder.name,
        _FOLDER: os.path.realpath(folder),
        "LANES_RANK": str(process.rank),
    }
    hold = owner.pipe()
    try:
        with open(own / "keeper.log", "ab") as log:
            child = subprocess.Popen(
                [*program, str(own), str(hold), *map(str, line or ())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(hold, *(line[1:] if line else ())),
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise StartError(f"the process could not be started: {error}", "check the recipe's env") from None
    finally:
        os.close(hold)
    return lambda: _await_start(own, child)


def _await_start(own: Path, child: subprocess.Popen[bytes]) -> None:
    while not (own / "pid.json").exists():
        gone = child.poll() is not None
        how = how_ended(own)
        if how is None and gone:
            # A keeper that ends without a word gave up because of another rank.
            how = _not_started(own.parent)
        if how is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
            raise StartError(how.sentence(), how.step or "check the program's path and the recipe's options")
        if gone:
            said = (own / "keeper.log").read_text(errors="replace").strip().splitlines()
            raise StartError(f"the process's keeper died at once: {said[-1] if said else 'it said nothing'}")
        time.sleep(0.005)


def _not_started(folder: Path) -> Ended | None:
    """How the start of a rank failed, if one did."""
    return next((one for one in ended(folder).values() if one.reason == "not-started"), None)


def put_aside(folder: Path) -> None:
    """Move what the ranks of a lane that was stopped left (logs, how they ended) to `launch1`, `launch2` ...
    beside, so that they can be started anew."""
    number = next(n for n in itertools.count(1) if not (folder / f"launch{n}").exists())
    (folder / f"launch{number}").mkdir(mode=0o700)
    for own in folder.glob("rank*"):
        own.rename(folder / f"launch{number}" / own.name)


def how_ended(own: Path) -> Ended | None:
    """How a rank's process ended, or None while it lives (or was never started)."""
    if (record := _read(own / "exit.json")) is not None:
        return Ended(
            reason=record["reason"],
            exit=Exit(code=record["code"], signal=record["signal"], oom_killed=record["oom_killed"]),
            error=record["error"],
            step=record.get("step"),
            at_ns=record["at_ns"],
        )
    if (pids := _read(own / "pid.json")) is not None and not _lives(pids["pid"], pids["born"]):
        # The keeper writes its record just after the process is gone: look once more.
        for _ in range(40):
            if (own / "exit.json").exists():
                return how_ended(own)
            if not _lives(pids["keeper"], pids["keeper_born"]):
                break
            time.sleep(0.05)
        return Ended(reason="vanished", exit=Exit())
    return None


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else None
    return None


def _lives(pid: int, born: int) -> bool:
    """Whether a process lives, and is not a stranger who got its number. Its environment does not tell:
    programs that set their title write over it."""
    found = keeper.stat(pid)
    return found is not None and found[0] not in "ZX" and found[-1] == born


def survivors(folder: Path) -> list[int]:
    """All living processes of a lane, however they came loose: by their mark in the environment, and
    by the keepers' sessions (a program may overwrite its environment)."""
    import psutil

    mark = os.path.realpath(folder)
    found: set[int] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_FOLDER) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    for record in folder.glob("rank*/pid.json"):
        if (pids := _read(record)) is None:
            continue
        if _lives(pids["pid"], pids["born"]):
            found.add(pids["pid"])
        if _lives(pids["keeper"], pids["keeper_born"]):
            found.update((pids["keeper"], *keeper.kin(pids["keeper"])))
        elif keeper.stat(pids["keeper"]) is None:
            # The session outlives its keeper. Its number may be a stranger's by now, unless somebody
            # who is surely ours is in it.
            session = {pid for pid in keeper.kin(pids["keeper"]) if _session_of(pid) == pids["keeper"]}
            if session & found:
                found |= session
    return sorted(found)


def _session_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def stop(folder: Path, plan: StopPlan, hurry: Callable[[], bool] = lambda: False) -> list[str]:
    """Stop all ranks of a lane and return what is still there: pids that the kernel holds, containers
    that could not be removed (nothing, as a rule). Ranks are asked in the plan's order, one after the other, and
    those that it does not name all at once; what does not end in time, or when `hurry()` turns true, is killed."""
    rest = sorted(_ranks(folder) - set(plan.order))
    for ranks in (*((rank,) for rank in plan.order), rest):
        owns = [rank_folder(folder, rank) for rank in ranks if not hurry()]
        for own, patience_s in [(own, _ask_to_end(own, plan)) for own in owns]:
            _wait_for_end(own, patience_s, hurry)
    # A keeper that has written down the end has but a container to remove.
    _wait_until(lambda: not _keepers(folder), KEEPERS_S, hurry)
    for _ in range(100):
        left = survivors(folder)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    _reap(folder)
    return [*map(str, survivors(folder)), *_containers_left(folder)]


def _ask_to_end(own: Path, plan: StopPlan) -> float:
    """Ask a rank to end; how many seconds it may take, 0 where it has ended or never was."""
    pids = _read(own / "pid.json")
    if pids is None or how_ended(own) is not None:
        return 0.0
    if _lives(pids["keeper"], pids["keeper_born"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids["keeper"], signal.SIGTERM)
        # The keeper's own patience comes first; ours is for a keeper that hangs.
        return plan.patience_s + 5
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pids["pid"], getattr(signal, plan.signal))
    return plan.patience_s


def _containers_left(folder: Path) -> list[str]:
    """Remove what keepers could not: containers whose keeper was killed. Says what could not be removed."""
    if not in_containers(folder):
        return []
    from lanes.executors import docker

    return docker.remove(folder)


def in_containers(folder: Path) -> bool:
    """Whether any rank of the lane was to run in a container."""
    specs = (_read(file) or {} for file in folder.glob("rank*/process.json"))
    return any("container" in spec for spec in specs)


def _reap(folder: Path) -> None:
    """Take leave of the keepers that are our children, so that none stays as a zombie."""
    for record in folder.glob("rank*/pid.json"):
        if (pids := _read(record)) is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pids["keeper"], os.WNOHANG)


def _ranks(folder: Path) -> set[int]:
    return {int(p.name.removeprefix("rank")) for p in folder.glob("rank*")}


def _wait_for_end(own: Path, patience_s: float, hurry: Callable[[], bool]) -> None:
    _wait_until(lambda: how_ended(own) is not None, patience_s, hurry)


def _wait_until(done: Callable[[], bool], patience_s: float, hurry: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience_s
    while not done() and time.monotonic() < deadline and not hurry():
        time.sleep(0.05)


def _keepers(folder: Path) -> bool:
    """Whether a keeper lives whose process has ended."""
    for own in folder.glob("rank*"):
        pids = _read(own / "pid.json")
        if pids is not None and (own / "exit.json").exists() and _lives(pids["keeper"], pids["keeper_born"]):
            return True
    return False


def images(folder: Path) -> dict[str, Any]:
    """The images that ranks run in, where they run in containers: for each rank its reference, its id and its
    repository digests."""
    found = {}
    for rank in sorted(_ranks(folder)):
        own = rank_folder(folder, rank)
        container = (_read(own / "process.json") or {}).get("container")
        if container:
            found[str(rank)] = {
                "reference": container["image"],
                **((_read(own / "pid.json") or {}).get("image") or {}),
            }
    return found


def ended(folder: Path) -> Mapping[int, Ended]:
    """How those ranks ended that have."""
    how = {rank: how_ended(rank_folder(folder, rank)) for rank in sorted(_ranks(folder))}
    return {rank: one for rank, one in how.items() if one is not None}


def first_ended(folder: Path) -> tuple[int, Ended] | None:
    """The rank that ended before all others, and how it did: the others may have followed it."""
    return min(ended(folder).items(), key=lambda one: (one[1].at_ns or math.inf, one[0]), default=None)


def tail(folder: Path, rank: int, lines: int = 200) -> Sequence[str]:
    """The last lines of a rank's log, read from its end, without the codes that colour a terminal."""
    path = rank_folder(folder, rank) / "log"
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 400 * lines))
            return uncoloured(file.read().decode(errors="replace")).splitlines()[-lines:] if lines else ()
    except FileNotFoundError:
        return ()


def uncoloured(text: str) -> str:
    """Text without the codes that colour a terminal, or move about on it."""
    return _ANSI.sub("", text)


def reader(folder: Path, rank: int) -> Callable[[], str]:
    """A function that returns what a rank's log has grown by since it was last called."""
    path = rank_folder(folder, rank) / "log"
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    offset = 0

    def read() -> str:
        nonlocal offset
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                new = file.read()
        except FileNotFoundError:
            return ""
        offset += len(new)
        return uncoloured(decode(new))

    return read
