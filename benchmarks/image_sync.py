"""How long an image takes to the nodes of a cluster, against `docker save | ssh docker load`, and what crosses the wire.

    python benchmarks/image_sync.py [--megabytes N] [--rounds N] [--rate MB/s]

Needs root, dockerd, sshd and ip: it makes the four machines of the tests, each with a Docker engine and an sshd of its
own, and a Docker engine for this one. The image has N megabytes in four layers of random bytes; a second one shares
all of them but the last, a tenth. Goals:

- a first sync to one node takes no longer than `docker save | ssh NODE docker load`, in turns, medians of the rounds;
- of the second image only its last layer crosses the wire, counted by the interfaces: at most 5% more than its bytes;
- over links throttled to one speed each way, this machine's too, four nodes take at most 1.5 times as long as one;
  the speed is one at which the links, and not this machine that does the work of five, are what is measured.

Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from lanes import lines
from lanes.executors import images
from lanes.hosts import Host
from lanes.types import Image

MOST_OF_SAVE = 1.0
MOST_OF_ONE = 1.5
MOST_OF_LAYER = 1.05


def kit() -> ModuleType:
    """The tests' own machines and engines."""
    file = Path(__file__).parents[1] / "tests" / "containers" / "conftest.py"
    spec = importlib.util.spec_from_file_location("machines", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Site:
    """Four machines and this one, with images of random layers."""

    def __init__(self, made: ModuleType, bed: Any, socket: Path, folder: Path) -> None:
        self.docker, self.bed, self.socket, self.folder = made.docker_cli, bed, socket, folder

    def image(self, tag: str, base: str, layers: int, size: int) -> str:
        """An image of further layers of random bytes, this large each; returns its tag."""
        context = Path(tempfile.mkdtemp(dir=self.folder))
        lines = [f"FROM {base}"]
        for number in range(layers):
            (context / f"f{number}").write_bytes(os.urandom(size))
            lines.append(f"COPY f{number} /{tag.replace(':', '-')}-{number}")
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        self.docker(self.socket, "build", "-q", "-t", tag, str(context))
        return tag

    def empty(self, *names: str) -> None:
        for name in names:
            self.docker(self.bed.sockets[name], "image", "prune", "-af")
        subprocess.run(["sync"], check=True)

    def sync(self, tag: str, *names: str) -> float:
        """Seconds until all have it."""
        spots = [
            images.Spot(name=name, host=Host(ssh=name), address=self.bed.address(name), machine="x86_64")
            for name in names
        ]
        began = time.perf_counter()
        images.ready(Image(name="image", reference=tag), spots, lambda _: None)
        took = time.perf_counter() - began
        lines.hang_up()  # save and load opens its connection each time too
        return took

    def save_and_load(self, tag: str, name: str) -> float:
        began = time.perf_counter()
        with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as save:
            subprocess.run(
                ["ssh", name, "docker load -q"], stdin=save.stdout, check=True, stdout=subprocess.DEVNULL
            )
        return time.perf_counter() - began

    def received(self, name: str) -> int:
        """Bytes that have come over the wire to a machine."""
        return int(Path(f"/sys/class/net/lanes-{name}/statistics/tx_bytes").read_text())

    def throttle(self, rate: float) -> None:
        """Bytes a second, to and from each machine, and from this one."""
        shape = ["root", "tbf", "rate", f"{int(rate * 8)}", "burst", "256kb", "latency", "50ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", "lanes-br", *shape], check=True)
        for name in self.bed.names:
            subprocess.run(["tc", "qdisc", "add", "dev", f"lanes-{name}", *shape], check=True)
            inside = ["tc", "-n", f"lanes-{name}", "qdisc", "add", "dev", f"veth-{name}"]
            subprocess.run([*inside, *shape], check=True)


def first_sync(site: Site, tag: str, rounds: int) -> float:
    """The share that a sync takes of the time of save and load."""
    seconds: dict[str, list[float]] = {"lanes": [], "save | load": []}
    for number in range(rounds + 1):
        for name, values in seconds.items():
            site.empty("n1")
            took = site.sync(tag, "n1") if name == "lanes" else site.save_and_load(tag, "n1")
            if number:  # the first one reads the layers from disk
                values.append(took)
    for name, values in seconds.items():
        print(
            f"  {name:12} median {statistics.median(values):.2f} s   {min(values):.2f} to {max(values):.2f} s"
        )
    return statistics.median(seconds["lanes"]) / statistics.median(seconds["save | load"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10.0, help="of the throttled links, MB/s")
    arguments = parser.parse_args()
    made = kit()
    part = arguments.megabytes * 1_000_000 // 10
    with tempfile.TemporaryDirectory(prefix="lanes-sync-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "bed").mkdir()
        with made.machines(folder / "bed") as bed, made.engine() as engine:
            os.environ["PATH"] = f"{bed.ssh(folder / 'ssh')}:{os.environ['PATH']}"
            os.environ["DOCKER_HOST"] = f"unix://{engine.socket}"
            site = Site(made, bed, engine.socket, folder)
            site.image("base:1", "scratch", 3, 3 * part)
            site.image("first:1", "base:1", 1, part)
            site.image("second:1", "base:1", 1, part)
            print(
                f"an image of {arguments.megabytes} MB to one node that has nothing of it, {arguments.rounds} rounds"
            )
            of_save = first_sync(site, "first:1", arguments.rounds)
            print(f"  lanes takes {of_save:.2f} of save and load (goal: at most {MOST_OF_SAVE})")
            before = {one: site.received(one) for one in bed.names}
            site.sync("first:1", *bed.names)
            whole = {one: site.received(one) - before[one] for one in bed.names}
            before = {one: site.received(one) for one in bed.names}
            site.sync("second:1", *bed.names)
            moved = {one: site.received(one) - before[one] for one in bed.names}
            print(
                "to four nodes, of which one has it: "
                + ", ".join(f"{n} got {b / 1e6:.1f} MB" for n, b in whole.items())
            )
            print(
                f"an image that shares all but {part / 1e6:.0f} MB: "
                + ", ".join(f"{n} got {b / 1e6:.1f} MB" for n, b in moved.items())
            )
            of_layer = max(moved.values()) / part
            print(f"  at most {of_layer:.3f} of its own layer (goal: at most {MOST_OF_LAYER})")
            site.throttle(arguments.rate * 1e6)
            site.empty(*bed.names)
            one = site.sync("first:1", "n1")
            site.empty(*bed.names)
            four = site.sync("first:1", *bed.names)
            print(f"over links of {arguments.rate:g} MB/s: one node {one:.1f} s, four nodes {four:.1f} s")
            print(f"  four take {four / one:.2f} of one (goal: at most {MOST_OF_ONE})")
    return int(of_save > MOST_OF_SAVE or of_layer > MOST_OF_LAYER or four / one > MOST_OF_ONE)


if __name__ == "__main__":
    sys.exit(main())
