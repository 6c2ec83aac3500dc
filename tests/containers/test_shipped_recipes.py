"""The recipes that come with SGLang and TensorFold on four real machines, with nothing replaced but the
image and the model.

The image holds a stand-in for the engine, a real server that takes the engine's own command line. What
Docker says of each container must be what the engine's launch data say.
"""

from __future__ import annotations

import difflib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

MEMLOCK = 8 << 20
QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")
PLUGINS = Path(__file__).parents[2] / "plugins"
UNUSED = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "site-packages",
    "dist-packages",
)


class Rootfs:
    """A tar of an image's files; whatever lies where in it is found by its path on this machine."""

    def __init__(self, file: Path) -> None:
        self._tar = tarfile.open(file, "w")  # noqa: SIM115
        self._held: set[str] = set()

    def __enter__(self) -> Rootfs:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def text(self, path: str, text: str) -> None:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.size, entry.mode = len(text.encode()), 0o755
        self._tar.addfile(entry, io.BytesIO(text.encode()))

    def link(self, path: str, target: str) -> None:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def folder(self, path: str) -> None:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
        self._tar.addfile(entry)

    def file(self, path: Path, at: str | None = None) -> None:
        at = at or str(path)
        if at not in self._held:
            self._held.add(at)
            self._tar.add(os.path.realpath(path), at.lstrip("/"), recursive=False)

    def package(self, folder: Path, at: str, unused: tuple[str, ...] = ()) -> None:
        for found, folders, files in os.walk(folder):
            folders[:] = [one for one in folders if one not in unused and one != "__pycache__"]
            for name in files:
                self.file(Path(found, name), os.path.join(at, os.path.relpath(found, folder), name))


def python(rootfs: Rootfs) -> tuple[str, str]:
    """Put the Python that runs the tests into an image, with the libraries that it needs. Returns the paths
    of the interpreter and of its modules there."""
    interpreter = Path(os.path.realpath(sys.executable))
    modules = Path(sysconfig.get_paths(vars={"base": sys.base_prefix})["stdlib"])
    rootfs.file(interpreter)
    rootfs.package(modules, str(modules), UNUSED)
    for binary in (interpreter, *(modules / "lib-dynload").glob("*.so")):
        said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        for word in said.split():
            if word.startswith("/"):
                rootfs.file(Path(word))
    rootfs.folder("/tmp")
    return str(interpreter), str(modules)


@pytest.fixture(scope="session")
def stand_in(dockerd: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The image of a stand-in for an engine, by the engine's name."""
    made: dict[str, str] = {}

    def image(engine: str) -> str:
        if find_spec(f"lanes_{engine}") is None:
            pytest.skip(f"needs the plugin: pip install -e plugins/{engine}")
        if engine not in made:
            tar = tmp_path_factory.mktemp(engine) / "rootfs.tar"
            with Rootfs(tar) as rootfs:
                interpreter, modules = python(rootfs)
                for name in ("attr", "attrs", "pluggy", "lanes", f"lanes_{engine}"):
                    found = find_spec(name)
                    assert found is not None and found.submodule_search_locations
                    rootfs.package(Path(next(iter(found.submodule_search_locations))), f"{modules}/{name}")
                program = (PLUGINS / engine / "tests" / "stand_in.py").read_text()
                rootfs.text(f"{modules}/{engine}/__main__.py", program)
                rootfs.text(f"{modules}/{engine}/__init__.py", "")
                rootfs.link("/usr/local/bin/python", interpreter)
                rootfs.text(f"/usr/local/bin/{engine}", f"#!{interpreter}\n{program}")
            subprocess.run(
                ["docker", "-H", f"unix://{dockerd}", "import", str(tar), f"stand-in-{engine}:1"], check=True
            )
            made[engine] = f"stand-in-{engine}:1"
        return made[engine]

    return image


@pytest.fixture
def sparks(bed: Any, tmp_path: Path) -> Callable[[int], str]:
    """Write the file of a cluster of the first machines, as a site would."""

    def write(count: int) -> str:
        nodes = "".join(
            f'[[nodes]]\nname = "{name}"\nssh = "{name}"\naddress = "{bed.address(name)}"\n'
            f'interface = "veth-{name}"\ngid_index = {3 + rank}\nhcas = ["rocep1s0f{rank}"]\n'
            for rank, name in enumerate(bed.names[:count])
        )
        file = tmp_path / "sparks.toml"
        # Nobody here may raise memlock, so the site gives it what the host has.
        file.write_text(f'name = "sparks"\n[limits]\nmemlock_bytes = {MEMLOCK}\n{nodes}')
        return str(file)

    return write


def inspected(bed: Any, docker: Callable[..., str], ranks: int) -> list[dict[str, Any]]:
    """What the Docker engine of each machine says of its one container, by rank."""
    found = []
    for name in bed.names[:ranks]:
        (ident,) = docker(bed.sockets[name], "ps", "-q").split()
        (one,) = json.loads(docker(bed.sockets[name], "inspect", ident))
        found.append(one)
    return found


def processes(launch: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(launch["processes"], key=lambda one: one["rank"])


def same_container(is_: dict[str, Any], data: dict[str, Any]) -> None:
    """Hold a real container against the launch data of its rank: all that it was asked for, and no more."""
    wanted, host = data["container"], is_["HostConfig"]
    assert is_["Config"]["Cmd"] == data["argv"]
    assert not is_["Config"]["Entrypoint"]
    assert dict(one.split("=", 1) for one in is_["Config"]["Env"]) == data["env"]
    assert is_["Config"]["Image"] == wanted["image"]
    assert sorted((m["Type"], m["Source"], m["Destination"], m["RW"]) for m in is_["Mounts"]) == sorted(
        ("bind", m["source"], m["target"], not m["read_only"]) for m in wanted["mounts"]
    )
    assert [(one["Name"], one["Soft"], one["Hard"]) for one in host["Ulimits"]] == [
        ("memlock", wanted["memlock_bytes"], wanted["memlock_bytes"])
    ]
    assert wanted["nofile"] is None and not wanted["ulimits"]
    assert (host["NetworkMode"], host["IpcMode"]) == (wanted["network"], wanted["ipc"])
    assert host["CapAdd"] == wanted["cap_add"]
    assert host["Memory"] == (wanted["memory_bytes"] or 0)
    assert wanted["shm_bytes"] is None or host["ShmSize"] == wanted["shm_bytes"]
    (gpus,) = host["DeviceRequests"]
    assert (gpus["Count"], gpus["Capabilities"]) == (-1, [["gpu"]]) and wanted["gpus"] == "all"
    # The only device asked for is the fabric, which these machines lack.
    assert wanted["devices"] == ["/dev/infiniband"] and not host["Devices"]
    assert not host["Privileged"] and not host["AutoRemove"] and host["Init"]


def same_process(pid: int, data: dict[str, Any]) -> None:
    """Hold the program in a container against the launch data of its rank, as the kernel tells of it."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    argv = Path(f"/proc/{child}/cmdline").read_text().split("\0")[:-1]
    # A program that is a script is run by its interpreter.
    assert argv[-len(data["argv"]) + 1 :] == data["argv"][1:]
    env = dict(one.split("=", 1) for one in Path(f"/proc/{child}/environ").read_text().split("\0")[:-1])
    assert data["env"].items() <= env.items()
    mounted = {line.split()[4] for line in Path(f"/proc/{child}/mountinfo").read_text().splitlines()}
    assert {one["target"] for one in data["container"]["mounts"]} <= mounted
    limits = Path(f"/proc/{child}/limits").read_text()
    assert re.search(rf"^Max locked memory +{MEMLOCK} +{MEMLOCK} ", limits, re.MULTILINE)


def as_shown(real: Any, shown: Any, image: str) -> Any:
    """What was launched, with the words of the dry run where that could not know better: free ports, and the
    `image` by its content."""
    if isinstance(real, dict):
        return {key: as_shown(value, shown[key], image) for key, value in real.items()}
    if isinstance(real, list):
        return [as_shown(one, other, image) for one, other in zip(real, shown, strict=True)]
    if real == image:
        return shown
    if isinstance(shown, str) and "<free port>" in shown:
        return re.sub(r"\b\d{5}$", "<free port>", str(real))
    return real


def differing(one: Any, other: Any) -> list[str]:
    """The lines in which two documents differ."""
    left, right = (json.dumps(value, indent=1, sort_keys=True).splitlines() for value in (one, other))
    return [line for line in difflib.ndiff(left, right) if line[0] in "+-"]


class Lived:
    """The whole life of a lane that was served from a shipped recipe."""

    def __init__(
        self, lanes: Any, recipe: str, cluster: str, *replaced: str, despite: tuple[str, ...]
    ) -> None:
        self.lanes, self.cluster = lanes, cluster
        self._arguments = ["--recipe", recipe, "--cluster", cluster, "--json"]
        for one in replaced:
            self._arguments += ["--set", one]
        for question in despite:
            self._arguments += ["--despite", question]

    def shown(self) -> dict[str, Any]:
        ran = self.lanes("serve", *self._arguments, "--dry-run")
        assert ran.code in (0, 3), ran.said
        (preview,) = ran.json
        assert preview["problem"] is None, preview
        return preview

    def serve(self) -> dict[str, Any]:
        ran = self.lanes("serve", *self._arguments, timeout=180)
        assert ran.code == 0, ran.said
        return ran.json

    def document(self, run: str) -> dict[str, Any]:
        (lane,) = self.lanes("history", "show", run, "--json").json["lanes"]
        return lane


ROWS = b"rows of Engram" * 4096
PREPARE = """
mkdir -p /var/lib/lanes/dsv41-1017-exl3 /var/lib/lanes/dsv41-1017-engram
echo "rank $LANES_RANK" > /var/lib/lanes/dsv41-1017-exl3/prepared
"""


@pytest.fixture
def disks(bed: Any, lanes: Any) -> Iterator[None]:
    """What the recipes' folders hold on these machines, and the user's own script, allowed in the settings."""
    for name in ("huggingface", "engram"):
        (bed.nas / name).mkdir()
    (bed.nas / "engram" / "rows").write_bytes(ROWS)
    lanes.home.mkdir()
    (lanes.home / "prepare.sh").write_text(PREPARE)
    (lanes.home / "settings.toml").write_text('[scripts]\ntensorfold_1017_prepare = "prepare.sh"\n')
    yield
    for name in ("huggingface", "engram"):
        shutil.rmtree(bed.nas / name)
    for name in bed.names:
        shutil.rmtree(bed.var_lib(name) / "lanes", ignore_errors=True)


@pytest.mark.parametrize(
    ("engine", "recipe", "ranks", "model", "despite"),
    [
        ("sglang", "dsv41-flash-1017-4x-sglang", 4, ("model.name=toy", "model.repo=org/toy"), ("sm", "gpus")),
        (
            "tensorfold",
            "dsv41-flash-1017-2x-tensorfold",
            2,
            ("model.name=DeepSeek-V4.1-toy",),
            ("sm", "free-memory"),
        ),
    ],
)
def test_a_shipped_recipe_becomes_the_containers_that_its_launch_data_say(
    reaching, bed, disks, stand_in, sparks, docker, dockerd, engine, recipe, ranks, model, despite
):
    reaching.env["DOCKER_HOST"] = f"unix://{dockerd}"
    lane = Lived(reaching, recipe, sparks(ranks), f"image={stand_in(engine)}", *model, despite=despite)
    shown = lane.shown()
    served = lane.serve()
    assert {name: brought(bed, name) for name in bed.names[:ranks]} == expected(engine, ranks)
    document = lane.document(served["run"])
    real = document["launch"]
    content = docker(dockerd, "inspect", "--format", "{{.Id}}", stand_in(engine)).strip()
    assert differing(as_shown(real, shown["launch"], content), shown["launch"]) == []
    containers = inspected(bed, docker, ranks)
    for container, data in zip(containers, processes(real), strict=True):
        same_container(container, data)
        same_process(container["State"]["Pid"], data)
    began = {rank: one["State"]["StartedAt"] for rank, one in enumerate(containers)}
    assert sorted(began, key=began.__getitem__) == real["start_order"]
    # In order, and ready by the engine's own ladder, whose last rung is an answer.
    phases = [one["phase"] for one in document["boot"]]
    assert phases == ["checking", "claiming", "staging", "launching", "loading"]
    overridden = [one for one in document["overrides"] if one.startswith("memlock_bytes of rank")]
    assert len(overridden) == ranks and set(despite) < set(document["overrides"])
    assert states(reaching, lane) == {"live"}
    bench = reaching("bench", served["id"], *QUICK, "--json")
    assert bench.json["lanes"][0]["status"] == "measured", bench.said
    assert reaching("stop").code == 0
    assert not any(docker(socket, "ps", "-aq") for socket in bed.sockets.values())
    assert states(reaching, lane) == {"free"}


def brought(bed: Any, name: str) -> dict[str, bytes]:
    """The files that lie on a machine's own disk where the recipes want them."""
    lanes = bed.var_lib(name) / "lanes"
    return {str(file.relative_to(lanes)): file.read_bytes() for file in lanes.rglob("*") if file.is_file()}


def expected(engine: str, ranks: int) -> dict[str, dict[str, bytes]]:
    """Those that staging and the script bring."""
    if engine == "sglang":
        return {f"n{rank + 1}": {"engram/rows": ROWS} for rank in range(ranks)}
    return {f"n{rank + 1}": {"dsv41-1017-exl3/prepared": b"rank %d\n" % rank} for rank in range(ranks)}


def states(lanes: Any, lane: Lived) -> set[str]:
    """How the lane's nodes are claimed."""
    (row,) = lanes("clusters", "--cluster", lane.cluster, "--json").json
    return {node["state"] for node in row["nodes"]}
