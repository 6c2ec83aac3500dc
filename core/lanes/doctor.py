"""What would keep a lane from running on a cluster: every node is asked, all at once, and nothing is changed.

What a node says is parsed by pure functions; each check is one question with its mend.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import frozen

from lanes import claims, clusters, hosts, nodes, paths
from lanes.clusters import Cluster, ClusterNode
from lanes.errors import LaneError, LanesError
from lanes.executors import process
from lanes.hosts import Host
from lanes.types import Node

SKEW_S = 2.0
DISK_LOW, DISK_FULL = 60e9, 5e9
"""Engines' images take up to 25 GB, and as much again while they are brought."""
API = (1, 40)
"""The first version of Docker's interface that can ask for GPUs."""
ASK_S = 20.0

# A section starts with a line "@@ name"; the words are the addresses of the other nodes.
SCRIPT = """
PATH="$PATH:/usr/sbin:/sbin"
section() { printf '@@ %s\\n' "$1"; }
gid="$1"; shift
section link; ip -o link show 2>/dev/null
section addr; ip -o addr show 2>/dev/null
section route; for a in "$@"; do printf '%s: %s\\n' "$a" "$(ip -o route get "$a" 2>&1 | head -n 1)"; done
section ports; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
section toolkit
command -v nvidia-container-runtime-hook nvidia-container-runtime
for f in /etc/cdi/*nvidia* /var/run/cdi/*nvidia*; do [ -e "$f" ] && echo "$f"; done
section gid
if [ -n "$gid" ]; then for d in /sys/class/infiniband/*/ports/*; do
  [ -r "$d/gids/$gid" ] && echo "$d $(cat "$d/gids/$gid" 2>/dev/null)"
done; fi
section clock; date +%s.%N
exit 0
"""


@frozen(kw_only=True)
class Check:
    """One answer: `state` is `ok`, `note` (worth knowing) or `wrong`, with what to do about it."""

    question: str
    state: str
    what: str
    mend: str | None = None


@frozen(kw_only=True)
class Told:
    """What a node said in the script, and the span of our clock in which it read its own."""

    sections: Mapping[str, list[str]]
    asked: float
    answered: float


def examine(cluster: Cluster) -> dict[str, list[Check]]:
    """All checks of all nodes, by the name of the node."""
    ways = clusters.hosts_of(cluster)

    def one(node: ClusterNode, way: Host) -> list[Check]:
        others = [n.address for n in cluster.nodes if n.address and n.name != node.name]
        return list(_examine(node, way, others))

    with ThreadPoolExecutor(max_workers=16) as pool:
        found = list(pool.map(one, cluster.nodes, ways))
    return {node.name: checks for node, checks in zip(cluster.nodes, found, strict=True)}


def _examine(node: ClusterNode, way: Host, others: list[str]) -> Iterator[Check]:
    try:
        told = _ask(node, way, others)
        facts = nodes.local() if way.ssh is None else nodes.asked(node.name, way)
    except LanesError as error:
        yield Check(question="reachable", state="wrong", what=error.message, mend=error.next_step)
        return
    seconds = told.answered - told.asked
    yield Check(question="reachable", state="ok", what=f"answered in {seconds:.1f} s")
    yield clock(told)
    yield from network(node, told, others)
    yield memory(facts)
    yield from gpus(node, facts)
    sight: claims.Sight | None = None
    try:
        sight = claims.look(way)
        yield claimed(sight)
    except LaneError as error:
        yield Check(question="claim", state="wrong", what=error.message, mend=error.next_step)
    yield from _docker(way, facts, told, sight)


def _ask(node: ClusterNode, way: Host, others: list[str]) -> Told:
    gid = "" if node.gid_index is None else str(node.gid_index)
    asked = time.time()
    said = hosts.run(way, ["sh", "-c", SCRIPT, "lanes-doctor", gid, *others], ASK_S)
    return Told(sections=sections(said), asked=asked, answered=time.time())


def sections(said: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in f"\n{said}".split("\n@@ ")[1:]:
        name, *lines = part.splitlines()
        found[name.strip()] = [line for line in lines if line.strip()]
    return found


# -- The questions --------------------------------------------------------------------------------


def clock(told: Told) -> Check:
    """The difference of the clocks, as far as the time of the answer leaves no doubt."""
    said = "".join(told.sections.get("clock", [])[:1]).strip()
    try:
        there = float(said.rstrip(".%N"))
    except ValueError:
        return Check(question="clock", state="note", what=f"it does not tell its time: {said!r}")
    if there > told.answered + SKEW_S or there + 1 < told.asked - SKEW_S:
        ahead = there - told.answered if there > told.answered else told.asked - there
        word = "ahead of" if there > told.answered else "behind"
        return Check(
            question="clock",
            state="wrong",
            what=f"its clock is {ahead:.0f} s {word} this machine's",
            mend="let chrony or systemd-timesyncd set it (timedatectl set-ntp true)",
        )
    return Check(question="clock", state="ok", what=f"within {SKEW_S:.0f} s of this machine's")


def network(node: ClusterNode, told: Told, others: list[str]) -> Iterator[Check]:
    """The interface and address that the file names, the ways to the other nodes, ports, RDMA."""
    links = {}
    for line in told.sections.get("link", []):
        words = line.split()
        if len(words) > 2:
            links[words[1].rstrip(":").partition("@")[0]] = "UP" in words[2].strip("<>").split(",")
    carried = {}
    for line in told.sections.get("addr", []):
        words = line.split()
        if len(words) > 3:
            carried[words[3].partition("/")[0]] = words[1]
    if not links:
        yield Check(
            question="interface", state="note", what="it has no program `ip` to ask", mend="install iproute2"
        )
    elif node.interface is not None:
        if node.interface not in links:
            yield Check(
                question="interface",
                state="wrong",
                what=f"there is no interface {node.interface}",
                mend=f"correct `interface` in the file: it has {', '.join(links)}",
            )
        elif not links[node.interface]:
            yield Check(
                question="interface",
                state="wrong",
                what=f"{node.interface} is down",
                mend=f"ip link set {node.interface} up",
            )
        else:
            yield Check(question="interface", state="ok", what=f"{node.interface} is up")
    if links and node.address is not None and _is_ip(node.address):
        on = carried.get(node.address)
        if on is None:
            yield Check(
                question="address",
                state="wrong",
                what=f"no interface has the address {node.address}",
                mend="correct `address` in the file, or set it there",
            )
        elif node.interface is not None and on != node.interface:
            yield Check(
                question="address",
                state="wrong",
                what=f"{node.address} is on {on}, not on {node.interface}",
                mend="correct `address` or `interface` in the file",
            )
        else:
            yield Check(question="address", state="ok", what=f"{node.address} is on {on}")
    yield from _routes(node, told, bool(links), others)
    yield _ports(told)
    if node.gid_index is not None:
        yield _gid(node.gid_index, told)


def _routes(node: ClusterNode, told: Told, asked: bool, others: list[str]) -> Iterator[Check]:
    if not asked or not others:
        return
    for line in told.sections.get("route", []):
        to, _, said = line.partition(": ")
        words = said.split()
        device = words[words.index("dev") + 1] if "dev" in words else None
        if device is None:
            yield Check(
                question="route",
                state="wrong",
                what=f"no way leads to {to}: {said[:120]}",
                mend="set its route, or correct the addresses in the file",
            )
            return
        if node.interface is not None and device != node.interface:
            yield Check(
                question="route",
                state="wrong",
                what=f"the way to {to} leaves by {device}, not by {node.interface}",
                mend="correct `interface` in the file, or the routes there",
            )
            return
    yield Check(question="route", state="ok", what=f"ways lead to {len(others)} other nodes")


def _ports(told: Told) -> Check:
    taken = set()
    for line in told.sections.get("ports", []):
        words = line.split()
        if len(words) > 3 and words[3] == "0A":
            taken.add(int(words[1].rpartition(":")[2], 16))
    low, high = process.PORTS
    busy = sorted(port for port in taken if low <= port < high)
    what = f"{high - low - len(busy)} of {low}-{high - 1} are free"
    if high - low - len(busy) < 16:
        return Check(question="ports", state="wrong", what=what, mend="end what listens there (ss -ltnp)")
    return Check(question="ports", state="ok", what=what)


def _gid(index: int, told: Told) -> Check:
    real = [
        line.split()[0]
        for line in told.sections.get("gid", [])
        if len(line.split()) > 1 and line.split()[1].strip("0:")
    ]
    if real:
        return Check(question="gid", state="ok", what=f"index {index} on {len(real)} ports of RDMA devices")
    return Check(
        question="gid",
        state="wrong",
        what=f"no RDMA device has a GID at index {index}",
        mend="show_gids, or /sys/class/infiniband/*/ports/1/gids: correct `gid_index` (it may change at a boot)",
    )


def memory(facts: Node) -> Check:
    total, free = facts.memory_bytes, facts.memory_available_bytes
    if not total or free is None:
        return Check(question="memory", state="note", what="it does not tell its memory")
    what = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB are available"
    if free < 0.5 * total:
        mend = "ps -eo rss,comm --sort -rss | head: something holds the rest"
        return Check(
            question="memory", state="wrong" if free < 0.05 * total else "note", what=what, mend=mend
        )
    return Check(question="memory", state="ok", what=what)


def gpus(node: ClusterNode, facts: Node) -> Iterator[Check]:
    """The GPUs that it shows, against those that the file declares."""
    if facts.gpus is None:
        why = next((f"{fact.source}" for fact in facts.facts if fact.name == "gpus"), "")
        yield Check(
            question="gpu",
            state="wrong",
            what=f"a driver is there that does not answer {why}".rstrip(),
            mend="nvidia-smi there tells why; after an update of the driver, boot it",
        )
        return
    names = ", ".join(sorted({gpu.name for gpu in facts.gpus}))
    if node.gpu is not None and len(facts.gpus) != node.gpus:
        yield Check(
            question="gpu",
            state="wrong",
            what=f"it shows {len(facts.gpus)} GPUs, and the file says {node.gpus} ({node.gpu})",
            mend="nvidia-smi there; or correct `gpu` and `gpus` in the file",
        )
    elif facts.gpus:
        yield Check(question="gpu", state="ok", what=f"{len(facts.gpus)}: {names}")


def claimed(sight: claims.Sight) -> Check:
    mends = {
        "dead": "`lanes stop`, or `lanes clusters release` with the cluster's name",
        "stale": "when its owner is surely gone: `lanes clusters release` with the cluster's name",
        "unreadable": "look at the folder LANES_CLAIMS (else /var/tmp/lanes) there",
    }
    mend = mends.get(sight.state)
    return Check(question="claim", state="wrong" if mend else "ok", what=sight.sentence(), mend=mend)


def _docker(way: Host, facts: Node, told: Told, sight: claims.Sight | None) -> Iterator[Check]:
    from lanes.executors import docker as containers

    try:
        with containers.client(way, ASK_S) as engine:
            try:
                version, info = engine.version(), engine.info()
                made = containers.made(engine)
            except Exception as error:  # of docker, requests, urllib3: what it says is all there is
                raise LaneError(f"the Docker engine does not answer: {error}", "is it running?") from None
    except LaneError as error:
        mend = (
            error.next_step
            if way.ssh is None
            else f"systemctl status docker on {way.ssh}; may its user use it?"
        )
        yield Check(question="docker", state="wrong", what=error.message, mend=mend)
        return
    yield docker_version(version)
    if facts.gpus:
        yield toolkit(info, told)
    yield _disk(way, str(info.get("DockerRootDir") or "/"))
    yield leftovers(made, sight)


def docker_version(version: Mapping[str, Any]) -> Check:
    api = str(version.get("ApiVersion", ""))
    what = f"{version.get('Version')}, API {api}, {version.get('Arch')}"
    with contextlib.suppress(ValueError):
        if tuple(int(part) for part in api.split(".")) < API:
            return Check(question="docker", state="wrong", what=what, mend="install Docker 19.03 or later")
    return Check(question="docker", state="ok", what=what)


def toolkit(info: Mapping[str, Any], told: Told) -> Check:
    """Whether containers can be given NVIDIA GPUs."""
    signs = [*told.sections.get("toolkit", [])]
    signs += [name for name in info.get("Runtimes") or {} if "nvidia" in name]
    if signs:
        return Check(question="toolkit", state="ok", what=signs[0].strip())
    return Check(
        question="toolkit",
        state="wrong",
        what="Docker cannot give its containers the GPUs",
        mend="install the NVIDIA Container Toolkit (nvidia-ctk runtime configure --runtime=docker)",
    )


def _disk(way: Host, root: str) -> Check:
    try:
        line = hosts.run(way, ["df", "-Pk", "--", root], ASK_S).splitlines()[1].split()
        free = int(line[3]) * 1024
    except (LaneError, IndexError, ValueError):
        return Check(question="disk", state="note", what=f"it does not tell the space of {root}")
    what = f"{free / 1e9:.0f} GB are free in {root}"
    state = "wrong" if free < DISK_FULL else "note" if free < DISK_LOW else "ok"
    mend = None if state == "ok" else "docker image prune there: engines' images take up to 25 GB"
    return Check(question="disk", state=state, what=what, mend=mend)


def leftovers(made: Mapping[str, str], sight: claims.Sight | None) -> Check:
    """Containers of ours whose lane is gone; `made` are those on the node, with their lane's folder."""
    holder = sight.claim.folder if sight and sight.claim and sight.state == "live" else None
    left = {name: folder for name, folder in made.items() if folder != holder and not _here_alive(folder)}
    if not left:
        return Check(question="leftovers", state="ok", what="none of ours")
    own = os.path.realpath(paths.lanes())
    if all(os.path.dirname(folder) == own for folder in left.values()):
        mend = "`lanes stop`"
    elif sight and sight.claim and set(left.values()) == {sight.claim.folder}:
        mend = "`lanes clusters release` with the cluster's name"
    else:
        mend = f"there: docker rm -f {' '.join(sorted(left))}"
    return Check(
        question="leftovers",
        state="wrong",
        what=f"of lanes that are gone: {', '.join(sorted(left))}",
        mend=mend,
    )


def _here_alive(folder: str) -> bool:
    """Whether a lane of this machine, which needs no claim where it uses no cluster, still has processes."""
    from pathlib import Path

    return os.path.isdir(folder) and bool(process.survivors(Path(folder)))


def _is_ip(address: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
