"""How long it takes to bring a lane up and down on 1, 2, 4, 8 and 16 nodes.

    python benchmarks/orchestration.py [--nodes 1,2,4,8,16] [--rounds N]

Needs root, dockerd and sshd. Each node is an sshd of its own on the loopback, at its defaults (MaxStartups 10:30:100,
MaxSessions 10); the nodes' containers run on one Docker engine, so that two cores can carry them. The engine is echo,
one server a rank, which loads nothing: what is timed is claims, image, start in order, readiness, stop, release.

Goals: 16 nodes take less than four times as long as 4, and no sshd refuses anything. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen

_REFUSALS = re.compile(r"MaxStartups|drop connection|no more sessions|maximum authentication|penalty")


def kit() -> ModuleType:
    """The tests' own Docker engine, image and recipe."""
    file = Path(__file__).parents[1] / "tests" / "containers" / "conftest.py"
    spec = importlib.util.spec_from_file_location("machines", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Farm:
    """Nodes that are an sshd each, on an address of the loopback: `box1`, `box2` ..."""

    def __init__(self, folder: Path, engine: Path) -> None:
        self.folder, self._engine = folder, engine
        self._sshds: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def running(self, count: int, more: str = "") -> Iterator[Farm]:
        """Start the first `count` sshds, and end them; `more` are lines of their settings."""
        for key in ("host", "client"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)], check=True
            )
        shutil.copy(self.folder / "client.pub", self.folder / "authorized")
        Path("/run/sshd").mkdir(exist_ok=True)
        try:
            for number in range(1, count + 1):
                self._start(number, more)
            yield self
        finally:
            for sshd in self._sshds:
                sshd.kill()
                sshd.wait()

    def _start(self, number: int, more: str) -> None:
        address = f"127.0.1.{number}"
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        config = self.folder / f"sshd-{number}"
        config.write_text(
            f"Port {port}\nListenAddress {address}\nHostKey {self.folder}/host\nLogLevel VERBOSE\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nUsePAM no\nStrictModes no\nPidFile none\n"
            f"SetEnv DOCKER_HOST=unix://{self._engine} LANES_CLAIMS={self.folder}/claims-{number}\n{more}"
        )
        with (self.folder / "ssh_config").open("a") as client:
            client.write(
                f"Host box{number}\n  HostName {address}\n  Port {port}\n  User root\n  IdentitiesOnly yes\n"
                f"  IdentityFile {self.folder}/client\n  UserKnownHostsFile {self.folder}/known\n"
                "  StrictHostKeyChecking accept-new\n"
            )
        with (self.folder / f"sshd-{number}.log").open("wb") as log:
            self._sshds.append(
                subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
            )
        deadline = time.monotonic() + 20
        while not _listens(address, port):
            if time.monotonic() > deadline:
                raise SystemExit(f"sshd {number} did not start: {self.log(number)}")
            time.sleep(0.02)

    def ssh(self) -> Path:
        """A folder with an `ssh` that knows the nodes, for the front of PATH."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        client = folder / "ssh"
        client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        client.chmod(0o755)
        return folder

    def cluster(self, count: int) -> Path:
        """The file of a cluster of the first nodes."""
        file = self.folder / f"cluster-{count}.toml"
        nodes = "".join(
            f'[[nodes]]\nname = "box{n}"\nssh = "box{n}"\naddress = "127.0.1.{n}"\n'
            for n in range(1, count + 1)
        )
        file.write_text(f'name = "farm"\n{nodes}')
        return file

    def limits(self, number: int) -> dict[str, str]:
        """The settings of an sshd, as it tells them."""
        said = subprocess.run(
            ["/usr/sbin/sshd", "-T", "-f", str(self.folder / f"sshd-{number}")],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)

    def log(self, number: int) -> str:
        return (self.folder / f"sshd-{number}.log").read_text(errors="replace")

    def logs(self) -> list[str]:
        """What each sshd logged."""
        return [self.log(number) for number in range(1, len(self._sshds) + 1)]

    def refusals(self) -> list[str]:
        """What the sshds logged when they refused something."""
        return [line for log in self.logs() for line in log.splitlines() if _REFUSALS.search(line)]

    def connections(self) -> int:
        """How many connections all sshds have let in."""
        return sum(log.count("Accepted publickey") for log in self.logs())


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
        return True
    return False


@frozen(kw_only=True)
class Times:
    """Seconds that a lane of so many nodes took. `phases` are those of the boot, as the result has them."""

    nodes: int
    up: float
    down: float
    phases: dict[str, float]
    connections: int

    @property
    def total(self) -> float:
        return self.up + self.down


class Bench:
    """`lanes` with a home of its own, before a farm of nodes."""

    def __init__(self, folder: Path, farm: Farm, engine: Path, recipe: str, plugin: str) -> None:
        self._farm = farm
        site = folder / "site"
        (site / "contained-1.0.dist-info").mkdir(parents=True)
        (site / "contained_plugin.py").write_text(plugin)
        (site / "contained-1.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: contained\nVersion: 1.0\n"
        )
        (site / "contained-1.0.dist-info" / "entry_points.txt").write_text(
            "[lanes.extensions]\ncontained = contained_plugin\n"
        )
        self._recipe = folder / "boxed.toml"
        self._recipe.write_text(recipe)
        self.env = {
            **os.environ,
            "LANES_HOME": str(folder / "home"),
            "DOCKER_HOST": f"unix://{engine}",
            "PATH": f"{farm.ssh()}:{os.environ['PATH']}",
            "PYTHONPATH": str(site),
        }

    def lanes(self, *words: str) -> Any:
        """Run `lanes` and return what it printed as JSON. Raises SystemExit with what it said when it fails."""
        ran = subprocess.run(
            [sys.executable, "-m", "lanes", *words, "--json"], env=self.env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if ran.returncode:
            raise SystemExit(f"lanes {' '.join(words)}: {ran.stderr}")
        return json.loads(ran.stdout)

    def once(self, nodes: int) -> Times:
        """Bring a lane up on so many nodes, and down."""
        before = self._farm.connections()
        began = time.monotonic()
        served = self.lanes(
            "serve", "--recipe", str(self._recipe), "--cluster", str(self._farm.cluster(nodes)),
            "--set", f"nodes={nodes}", "--despite", "nodes", "--set", "load_seconds=0",
        )  # fmt: skip
        up = time.monotonic()
        self.lanes("stop", served["id"])
        down = time.monotonic()
        connections = self._farm.connections() - before
        (lane,) = self.lanes("history", "show", served["run"])["lanes"]
        phases = {one["phase"]: one["seconds"] for one in lane["boot"]}
        return Times(nodes=nodes, up=up - began, down=down - up, phases=phases, connections=connections)


@contextlib.contextmanager
def bench(most: int) -> Iterator[tuple[Bench, Farm]]:
    """A bench before `most` nodes."""
    machines = kit()
    with (
        tempfile.TemporaryDirectory(prefix="lanes-farm-") as folder,
        machines.engine() as engine,
        Farm(Path(folder), engine.socket).running(most) as farm,
    ):
        image = machines.empty_image(engine.socket, Path(folder) / "rootfs.tar")
        yield Bench(Path(folder), farm, engine.socket, machines.boxed(image), machines.CONTAINED), farm


def quickest(times: Sequence[Times]) -> Times:
    """The round that was disturbed least: what else a machine does only ever adds to a time."""
    return min(times, key=lambda one: one.total)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="1,2,4,8,16", help="how many nodes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the quickest counts (default: 3)")
    given = parser.parse_args()
    counts = [int(word) for word in given.nodes.split(",")]
    found: dict[int, Times] = {}
    with bench(max(counts)) as (made, farm):
        made.once(counts[0])  # what is imported and read for the first time
        print("nodes      up    down   total  a node  of it: claim  stage  launch  load   connections a node")
        rounds = [[made.once(count) for count in counts] for _ in range(given.rounds)]
        for count, times in zip(counts, zip(*rounds, strict=True), strict=True):
            one = found[count] = quickest(times)
            parts = "  ".join(
                f"{one.phases.get(name) or 0.0:5.1f}"
                for name in ("claiming", "staging", "launching", "loading")
            )
            print(
                f"{count:5} {one.up:7.1f} {one.down:7.1f} {one.total:7.1f} {one.total / count:7.2f}         {parts}"
                f"   {one.connections / count:8.1f}"
            )
        refusals = farm.refusals()
    for line in refusals[:5]:
        print(f"refused: {line}")
    missed = bool(refusals)
    if {4, 16} <= found.keys():
        times = found[16].total / found[4].total
        missed = missed or times >= 4
        print(f"16 nodes take {times:.2f} times as long as 4 (less than 4 is less than linear)")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
