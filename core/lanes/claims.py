"""Claims: who holds a node of a cluster, kept on the node itself, so that any two controllers see each other.

A claim is one file in a folder that the node names (LANES_CLAIMS in its environment, else /var/tmp/lanes).
It comes to be, changes hands and goes under a lock of the node's kernel, which a killed shell lets go of.
While its lane lives, `claim_keeper.py` touches it; every age is told by the node's own clock.
A claim is *live*; or *dead* when that is proven (the node has booted since, or its owner ran on this
machine and is gone); or *stale* when its owner has given no sign of life for longer than its lease.
A dead one may be replaced, a stale one only by an explicit act, a live one never.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from lanes import hosts, paths
from lanes.errors import Claimed, LaneError
from lanes.executors import keeper, process
from lanes.hosts import Host
from lanes.owners import Owner

if TYPE_CHECKING:
    import cattrs

LEASE_S = 300
"""For how long a claim counts as live without a sign of life."""
BEAT_S = 60.0
ASK_S = 30.0

SCRIPT = """
folder="${LANES_CLAIMS:-/var/tmp/lanes}"
claim="$folder/claim"
boot="$(cat /proc/sys/kernel/random/boot_id)"
held_by() { [ -n "$1" ] && grep -qsF "\\"token\\": \\"$1\\"" "$claim"; }
if [ "$1" != look ]; then
  command -v flock >/dev/null || { echo "there is no flock (util-linux)" >&2; exit 1; }
  [ -d "$folder" ] || mkdir -p -m 1777 "$folder" || exit 1
  exec 9<"$folder" || exit 1
  flock -w 20 9 || { echo "$folder stays locked" >&2; exit 1; }
fi
case "$1" in
claim)
  if ! held_by "$2" && { [ ! -e "$claim" ] || held_by "$4"; }; then
    new="$folder/.claim.$2"
    printf '{"boot": "%s", "since": %s, "claim": %s}\\n' "$boot" "$(date +%s)" "$3" >"$new" &&
      mv -f "$new" "$claim" || { rm -f "$new"; exit 1; }
  fi ;;
beat) held_by "$2" && touch "$claim" ;;
release) if held_by "$2"; then rm -f "$claim" || exit 1; fi ;;
esac
printf '%s %s %s\\n' "$boot" "$(date +%s)" "$(stat -c %Y "$claim" 2>/dev/null || echo 0)"
cat "$claim" 2>/dev/null
exit 0
"""
"""Run on the node as `sh -c SCRIPT lanes-claim look | claim TOKEN JSON REPLACED | beat TOKEN | release TOKEN`.
It prints the node's boot, its clock, the last sign of life, and the claim as it then is."""


@frozen(kw_only=True)
class Controller:
    """The machine of a `lanes`, and its processes there: the one that claimed, and the keeper of the claim."""

    host: str
    user: str
    boot: str
    pids: str
    owner: Owner
    keeper: Owner

    def here(self) -> bool:
        """Whether its processes are among those that we can see."""
        return (self.boot, self.pids) == _here()

    def seen_alive(self) -> bool:
        """Whether one of its processes is seen to live."""
        return self.here() and (self.owner.alive() or self.keeper.alive())


@frozen(kw_only=True)
class Claim:
    """What a lane's owner wrote down. `folder` is the lane's record, as labels of containers name it."""

    token: str
    cluster: str
    lane: str
    run: str
    folder: str
    controller: Controller
    lease_s: int = LEASE_S
    took_over: str | None = None


@frozen(kw_only=True)
class Sight:
    """A node's claim as it was seen: `claim` is None when it is free, or not to be read (`unreadable`).

    `boot` is the node's now, `claim_boot` when it was claimed; times are Unix seconds of the node's clock.
    """

    boot: str
    now: float
    claim: Claim | None = None
    unreadable: bool = False
    claim_boot: str = ""
    since: float = 0.0
    beat: float = 0.0

    @property
    def age_s(self) -> float:
        return max(0.0, self.now - self.since)

    @property
    def silent_s(self) -> float:
        return max(0.0, self.now - self.beat)

    @property
    def death(self) -> str | None:
        """The proof that its owner is gone."""
        if self.claim is None:
            return None
        if self.claim_boot != self.boot:
            return "the node has booted since"
        if _gone(self.claim):
            return f"lanes (pid {self.claim.controller.owner.pid}) on this machine is gone"
        return None

    @property
    def state(self) -> str:
        """`free`, `live`, `stale`, `dead`, or `unreadable`."""
        if self.claim is None:
            return "unreadable" if self.unreadable else "free"
        if self.death:
            return "dead"
        silent = self.silent_s > self.claim.lease_s and not self.claim.controller.seen_alive()
        return "stale" if silent else "live"

    def holder(self) -> str:
        """Who holds it, in words."""
        if self.claim is None:
            return "somebody whose claim cannot be read" if self.unreadable else "nobody"
        by = self.claim.controller
        return _printable(f"lane {self.claim.lane} of {by.user}@{by.host}")

    def sentence(self) -> str:
        """Who holds it since when, and whether they live."""
        if self.claim is None:
            return self.holder() if self.unreadable else "free"
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() - self.age_s))
        known = {
            "dead": f"dead: {self.death}",
            "stale": f"no sign of life for {_span(self.silent_s)}",
        }.get(self.state, f"alive {_span(self.silent_s)} ago")
        return f"{self.holder()} since {since} ({_span(self.age_s)} ago; {known})"


@frozen(kw_only=True)
class Hold:
    """What a lane holds, in its folder as `claims.json`; written before a node is touched."""

    token: str
    cluster: str
    file: str | None
    nodes: tuple[tuple[str, Host], ...]
    keeper: Owner | None = None


# -- On the nodes ---------------------------------------------------------------------------------


def look(host: Host) -> Sight:
    """A node's claim. Raises LaneError when the node cannot be asked."""
    return _ask(host, "look")


def _ask(host: Host, *words: str) -> Sight:
    said = hosts.run(host, ["sh", "-c", SCRIPT, "lanes-claim", *words], ASK_S)
    head, _, body = said.partition("\n")
    try:
        boot, now, beat = head.split()
        sight = Sight(boot=boot, now=float(now), beat=float(beat))
    except ValueError:
        raise LaneError(
            f"{hosts.name(host)} did not say who holds it: {_printable(said[:200])!r}",
            "its login shell may print something of its own: it should not",
        ) from None
    if not body.strip():
        return sight
    import cattrs

    try:
        told = json.loads(body)
        claim = _converter().structure(told["claim"], Claim)
        return evolve(sight, claim=claim, claim_boot=str(told["boot"]), since=float(told["since"]))
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError):
        return evolve(sight, unreadable=True)


# -- For a lane -----------------------------------------------------------------------------------


def acquire(
    folder: Path,
    nodes: Mapping[str, Host],
    *,
    cluster: str,
    file: str | None,
    run: str,
    owner: process.Owner,
    take_over: str | None = None,
) -> list[str]:
    """Claim all nodes, by name and in the order of their names, or none; return what was taken over.

    Of two controllers that want the same nodes, the one that gets the first of them gets all. Raises
    Claimed when somebody holds one, LaneError when one cannot be asked.
    """
    ordered = sorted(nodes.items())
    hosts.reach(host for _, host in ordered)
    hold = Hold(token=secrets.token_hex(8), cluster=cluster, file=file, nodes=tuple(ordered))
    _write(folder, hold)
    hold = evolve(hold, keeper=_start_keeper(folder, owner))
    _write(folder, hold)
    boot, pids = _here()
    assert hold.keeper is not None
    controller = Controller(
        host=platform.node(), user=_user(), boot=boot, pids=pids, owner=Owner.me(), keeper=hold.keeper
    )
    claim = Claim(
        token=hold.token,
        cluster=cluster,
        lane=folder.name,
        run=run,
        folder=os.path.realpath(folder),
        controller=controller,
    )
    taken = []
    try:
        for name, host in ordered:
            if said := _claim(name, host, claim, take_over):
                taken.append(said)
    except BaseException:
        release(folder)
        raise
    return taken


def _claim(name: str, host: Host, claim: Claim, take_over: str | None) -> str | None:
    """Claim one node; return whom it was taken from."""
    taken = None
    seen = _ask(host, "claim", claim.token, _json(claim), "")
    while seen.claim is None or seen.claim.token != claim.token:
        if seen.claim is None or not (seen.state == "dead" or (seen.state == "stale" and take_over)):
            raise _refusal(name, seen, claim, take_over)
        # What a dead lane left there would be in the way of ours. Its claim comes last: whoever is stopped
        # in between leaves something to see.
        _clear(name, host, seen.claim)
        taken = f"{name} from {seen.sentence()}"
        ours = evolve(claim, took_over=f"{seen.holder()}: {take_over or seen.death}")
        seen = _ask(host, "claim", claim.token, _json(ours), seen.claim.token)
    return taken


def _json(claim: Claim) -> str:
    return json.dumps(asdict(claim))


def _refusal(name: str, seen: Sight, claim: Claim, take_over: str | None) -> Claimed:
    what = f"cluster {claim.cluster!r} is claimed: {name} by {seen.sentence()}"
    if seen.claim is None:
        return Claimed(what, f"look at the folder LANES_CLAIMS (else /var/tmp/lanes) on {name}")
    if seen.state == "stale":
        return Claimed(
            what,
            f"when its owner is surely gone: --take-over REASON, or `lanes clusters release {claim.cluster}`",
        )
    if take_over:
        return Claimed(what, "who lives is not taken over from: ask for that lane to be stopped")
    if os.path.dirname(seen.claim.folder) == os.path.realpath(paths.lanes()):
        return Claimed(what, f"`lanes stop {_printable(seen.claim.lane)}` stops it")
    return Claimed(what, "wait, or ask for that lane to be stopped")


def _clear(name: str, host: Host, dead: Claim) -> None:
    """Remove the containers of a lane whose claim is taken."""
    from lanes.executors import docker

    try:
        stuck = docker.remove_on(host, dead.folder)
    except LaneError:
        if not _has_docker(host):
            return
        raise
    if stuck:
        raise LaneError(
            f"what {_printable(dead.lane)} left on {name} could not be removed: {', '.join(stuck)}",
            "remove it there, and try again",
        )


def _has_docker(host: Host) -> bool:
    script = 's="${1:-${DOCKER_HOST:-/var/run/docker.sock}}"; [ -S "${s#unix://}" ] && echo yes || echo no'
    return hosts.run(host, ["sh", "-c", script, "lanes", host.docker or ""], ASK_S).strip() == "yes"


def release(folder: Path) -> list[str]:
    """Let go of all that the lane holds; return what could not be let go of, in words. May be repeated."""
    hold = held(folder)
    if hold is None:
        return []
    if hold.keeper is not None and hold.keeper.alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(hold.keeper.pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(hold.keeper.pid, 0)
    failed = _each(hold.nodes, lambda host: _ask(host, "release", hold.token))
    if not failed:
        (folder / "claims.json").unlink(missing_ok=True)
        return []
    _write(folder, evolve(hold, nodes=tuple(one for one in hold.nodes if one[0] in failed), keeper=None))
    return [f"the claim on {name} ({why})" for name, why in sorted(failed.items())]


def beat(folder: Path) -> None:
    """Give a sign of life on every node; one that cannot be reached gets the next."""
    hold = held(folder)
    if hold is not None:
        _each(hold.nodes, lambda host: _ask(host, "beat", hold.token))


def held(folder: Path) -> Hold | None:
    """What a lane holds, as its folder says; None when nothing."""
    try:
        told = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
        return _converter().structure(told, Hold)
    except OSError:
        return None


# -- For whoever cleans up ------------------------------------------------------------------------


def release_dead(name: str, host: Host, seen: Sight) -> None:
    """Clean up after a claim whose owner is dead or silent: its containers, and then the claim itself.

    Raises Claimed when somebody lives who holds it, LaneError when something could not be removed.
    """
    if seen.claim is None or seen.state not in ("dead", "stale"):
        raise Claimed(f"{name} is claimed by {seen.sentence()}", "ask for that lane to be stopped")
    _clear(name, host, seen.claim)
    after = _ask(host, "release", seen.claim.token)
    if after.claim is not None and after.claim.token == seen.claim.token:
        raise LaneError(f"the claim on {name} could not be removed", "look at its folder there")


# -- Parts ----------------------------------------------------------------------------------------


def _each(nodes: Sequence[tuple[str, Host]], act: Callable[[Host], Any]) -> dict[str, str]:
    """Do something on all nodes at once; return the names of those where it failed, with the reason."""

    def attempt(one: tuple[str, Host]) -> str | None:
        try:
            act(one[1])
        except LaneError as error:
            return error.message
        return None

    with ThreadPoolExecutor(max_workers=16) as pool:
        reasons = list(pool.map(attempt, nodes))
    return {name: why for (name, _), why in zip(nodes, reasons, strict=True) if why is not None}


def _start_keeper(folder: Path, owner: process.Owner) -> Owner:
    pipe = owner.pipe()
    try:
        with open(folder / "claims.log", "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "lanes.claim_keeper", str(folder), str(pipe)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(pipe,),
                start_new_session=True,
            )
    finally:
        os.close(pipe)
    return Owner.of(child.pid)


def _gone(claim: Claim) -> bool:
    """Whether a claim's owner ran among the processes that we see, and nothing of it is left."""
    by = claim.controller
    if not by.here() or by.seen_alive():
        return False
    folder = Path(claim.folder)
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        return False
    return not process.survivors(folder)


def _here() -> tuple[str, str]:
    """What tells this machine's processes from others: its boot, and the namespace of their numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return platform.node(), ""


def _user() -> str:
    with contextlib.suppress(Exception):
        return getpass.getuser()
    return str(os.getuid())


def _write(folder: Path, hold: Hold) -> None:
    keeper.write_json(str(folder / "claims.json"), _converter().unstructure(hold))


@cache
def _converter() -> cattrs.Converter:
    import cattrs.preconf.json

    return cattrs.preconf.json.make_converter()


def _printable(text: str) -> str:
    """Text of others without what moves a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
