"""Images on the nodes of a cluster: real Docker engines and sshd's, and only what is missing moves."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import attrs
import psutil
import pytest
from lanes.errors import StagingError
from lanes.executors import images
from lanes.executors.images import courier
from lanes.hosts import HERE, Host
from lanes.types import Build, Image

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

MB = 1 << 20
READY = """
import sys
from lanes.executors import images
from lanes.hosts import Host
from lanes.types import Image
spots = [images.Spot(name=n, host=Host(ssh=n), address=a) for n, a in zip(sys.argv[2::2], sys.argv[3::2])]
images.ready(Image(name="image", reference=sys.argv[1]), spots, lambda _: None)
"""


class Fleet:
    """The machines of the bed and this one, in this process."""

    def __init__(self, bed, dockerd, docker, folder):
        self.bed, self.dockerd, self.folder = bed, dockerd, folder
        self.docker = lambda name, *words: docker(bed.sockets.get(name, dockerd), *words)

    def image(self, tag, base="scratch", layers=3, size=MB, on="here"):
        """An image of further layers of random bytes."""
        context = self.folder / tag.replace(":", "-")
        context.mkdir()
        lines = [f"FROM {base}"]
        for number in range(layers):
            (context / str(number)).write_bytes(os.urandom(size))
            lines.append(f"COPY {number} /{tag.replace(':', '-')}-{number}")
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        self.docker(on, "build", "-q", "-t", tag, str(context))
        return tag

    def spots(self, *names, **more):
        return [
            images.Spot(**{"name": n, "host": Host(ssh=n), "address": self.bed.address(n)} | more)
            for n in names
        ]

    def ready(self, item, *names, origin="", **more):
        item = Image(name="image", reference=item) if isinstance(item, str) else item
        told = []
        return images.ready(item, self.spots(*names, **more), told.append, origin)

    def id(self, name, reference):
        return self.docker(name, "image", "inspect", "-f", "{{.Id}}", reference).strip()

    def names(self, name):
        return self.docker(name, "images", "--format", "{{.Repository}}:{{.Tag}}").split()

    def empty(self, *names):
        for name in names:
            self.docker(name, "image", "prune", "-af")

    def couriers(self):
        """Our programs on the machines."""
        found = []
        for sshd in self.bed.sshds.values():
            found += [
                p for p in psutil.Process(sshd.pid).children(recursive=True) if p.name().startswith("python")
            ]
        return found


@pytest.fixture
def fleet(bed, dockerd, docker, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{bed.ssh(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{dockerd}")
    made = Fleet(bed, dockerd, docker, tmp_path)
    kept = made.names("here")
    yield made
    for name in bed.names:
        made.empty(name)
    for name in set(made.names("here")) - set(kept):
        made.docker("here", "rmi", "-f", name)


def test_a_second_image_moves_only_the_layer_that_it_does_not_share(fleet):
    fleet.image("base:1")
    fleet.image("first:1", "base:1", 1, 2 * MB)
    fleet.image("second:1", "base:1", 1, 2 * MB)
    first = fleet.ready("first:1", *fleet.bed.names)
    assert [one.layers for one in first.nodes] == [4, 4, 4, 4]
    # It crosses to the nodes once; then each hands it on.
    assert [one.fed_by for one in first.nodes] == ["this machine", "n1", "n2", "n3"]
    second = fleet.ready("second:1", *fleet.bed.names)
    assert [one.layers for one in second.nodes] == [1, 1, 1, 1]
    assert all(2 * MB < one.bytes < 2.1 * MB for one in second.nodes)
    again = fleet.ready("second:1", *fleet.bed.names)
    assert [(one.bytes, one.layers) for one in again.nodes] == [(0, 0)] * 4
    for name in fleet.bed.names:
        assert fleet.id(name, "second:1") == second.pinned == second.id == fleet.id("here", "second:1")
        assert sorted(fleet.names(name)) == ["first:1", "second:1"], "something was left"
    assert not fleet.couriers()


def test_what_an_interrupted_sync_brought_is_not_brought_again(fleet, wait_for):
    fleet.image("large:1", layers=5, size=4 * MB)
    slow = ["root", "tbf", "rate", "40mbit", "burst", "64kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", "lanes-n1", *slow], check=True)
    try:
        words = [word for name in ("n1", "n2") for word in (name, fleet.bed.address(name))]
        run = subprocess.Popen([sys.executable, "-c", READY, "large:1", *words])
        wait_for(lambda: any("lanes-partial" in name for name in fleet.names("n2")), "a layer on n2", 60)
        run.kill()
        assert run.wait() == -signal.SIGKILL
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lanes-n1", "root"], check=True)
    assert "large:1" not in fleet.names("n2")
    wait_for(lambda: not fleet.couriers(), "our programs on the nodes to be gone", 20)
    ready = fleet.ready("large:1", "n1", "n2")
    assert all(0 < one.layers < 5 and one.bytes < one.layers * 4.1 * MB for one in ready.nodes)
    assert fleet.names("n1") == fleet.names("n2") == ["large:1"]


def test_an_image_that_a_node_has_goes_from_node_to_node(fleet):
    fleet.image("own:1", on="n2")
    ready = fleet.ready("own:1", "n1", "n2", "n3")
    assert ready.source == "n2"
    assert {one.node: one.fed_by for one in ready.nodes} == {"n1": "n2", "n2": None, "n3": "n1"}
    assert fleet.id("n1", "own:1") == fleet.id("n3", "own:1") == fleet.id("n2", "own:1") == ready.pinned


def test_nodes_that_do_not_reach_each_other_are_fed_from_here(fleet):
    fleet.image("apart:1")
    ready = fleet.ready("apart:1", "n1", "n2", address="192.0.2.1")
    assert [one.fed_by for one in ready.nodes] == ["this machine", "this machine"]
    fleet.image("apart:2", on="n1")
    ready = fleet.ready("apart:2", "n1", "n2", address="192.0.2.1")
    assert [one.fed_by for one in ready.nodes] == [None, "this machine"]
    assert fleet.id("n2", "apart:2") == ready.id


def test_another_image_under_the_same_name_is_replaced(fleet):
    fleet.image("app:1", on="n1")
    fleet.docker("here", "tag", fleet.image("new:1"), "app:1")
    ready = fleet.ready("app:1", "n1", "n2")
    assert fleet.id("n1", "app:1") == fleet.id("n2", "app:1") == fleet.id("here", "app:1") == ready.pinned


def test_an_image_for_another_processor_is_refused_before_anything_moves(fleet):
    fleet.image("amd:1")
    with pytest.raises(StagingError, match="image amd:1 is made for x86_64, and n1 is aarch64") as caught:
        fleet.ready("amd:1", "n1", machine="aarch64")
    assert caught.value.next_step == "name an image that is made for that host"
    assert fleet.names("n1") == []


def test_an_image_of_another_digest_is_refused(fleet):
    fleet.image("pinned:1", on="n1")
    wanted = Image(name="image", reference="pinned:1", digest="sha256:" + "0" * 64)
    with pytest.raises(
        StagingError, match=f"image pinned:1 on n1 is sha256:.*, and {wanted.digest} is wanted"
    ):
        fleet.ready(wanted, "n1", "n2")
    assert fleet.names("n2") == []
    right = Image(name="image", reference="pinned:1", digest=fleet.id("n1", "pinned:1"))
    assert fleet.ready(right, "n1", "n2").pinned == right.digest


def test_a_layer_that_was_damaged_on_its_way_is_refused(fleet, dockerd):
    """By the engine that it is loaded into: a courier is fed by hand here."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        entry = tarfile.TarInfo("x")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    right = courier.sha256(content.getvalue())
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [right]}}
    )
    head = courier.archive(config.encode(), [{"digest": right, "size": 0, "mediaType": "x"}], ["damaged:1"])
    wrong = content.getvalue().replace(b"hello", b"hullo")
    archive = head + courier._file(courier._path(right), wrong) + courier.END_OF_ARCHIVE
    job = {
        "socket": str(dockerd), "layers": [right], "have": 0, "export": None, "listen": None, "token": "t", "root": "/",
        "needed": 0, "tags": [], "architecture": "amd64", "os": "linux", "oci": False,
    }  # fmt: skip
    frame = json.dumps({"layer": 0, "bytes": len(archive)}).encode()
    said = b"\n".join(
        [
            json.dumps(job).encode(),
            b"null",
            b'{"stdout": null, "upstream": false}',
            frame + b"\n" + archive + b'{"end": true}\n',
        ]
    )
    ran = subprocess.run([sys.executable, courier.__file__], input=said, capture_output=True, check=False)
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    assert ran.returncode == 1
    assert events[-1]["event"] == "problem"
    assert "its Docker engine refuses the image: invalid diffID for layer 0" in events[-1]["message"]
    assert "damaged:1" not in fleet.names("here")


def test_a_disk_without_room_is_told_before_anything_moves(fleet, monkeypatch):
    fleet.image("huge:1")
    monkeypatch.setattr(images, "_left", lambda *_: {0: 10**15})
    with pytest.raises(
        StagingError, match=r"on .*: the image.* needs 1,000,000\.0 GB in /.*, and .* GB are free"
    ):
        fleet.ready("huge:1", "n1")
    assert fleet.names("n1") == []


def test_a_node_that_is_lost_on_the_way_is_named(fleet, wait_for):
    fleet.image("lost:1", layers=4, size=4 * MB)
    slow = ["root", "tbf", "rate", "20mbit", "burst", "64kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", "lanes-n1", *slow], check=True)
    link = ["ip", "-n", "lanes-n2", "link", "set", "veth-n2"]
    caught = []

    def run():
        with pytest.raises(StagingError) as error:
            fleet.ready("lost:1", "n1", "n2")
        caught.append(error.value)

    thread = threading.Thread(target=run)
    try:
        thread.start()
        wait_for(lambda: any("lanes-partial" in name for name in fleet.names("n2")), "a layer on n2", 60)
        subprocess.run([*link, "down"], check=True)
        thread.join(90)
    finally:
        subprocess.run([*link, "up"], check=True)
        subprocess.run(["tc", "qdisc", "del", "dev", "lanes-n1", "root"], check=True)
    assert caught[0].message.startswith("image lost:1: on n2: the connection broke: ")
    assert caught[0].next_step == "run again when it is back: the layers that are there are not sent again"
    assert fleet.ready("lost:1", "n1", "n2").pinned == fleet.id("n2", "lost:1")


# -- Builds ---------------------------------------------------------------------------------------

PATCH = """--- a/greeting
+++ b/greeting
@@ -1 +1 @@
-hello
+{word}
"""


@pytest.fixture
def build(fleet, tmp_path):
    """A build of a patched file upon an image that only this machine has; `origin` is the recipe's file."""
    fleet.image("upstream:1", layers=2)
    context = tmp_path / "context"
    context.mkdir()
    (context / "greeting").write_text("hello\n")
    (context / "Dockerfile").write_text("FROM upstream:1\nCOPY greeting /greeting\n")
    (tmp_path / "1017.patch").write_text(PATCH.format(word="patched"))
    fleet.origin = str(tmp_path / "recipe.toml")
    return Build(name="image", tag="baked:1", context="context", patches=("1017.patch",))


def content(fleet, name, image, file):
    made = fleet.docker(name, "create", image, "none").strip()
    try:
        packed = subprocess.run(
            ["docker", "-H", f"unix://{fleet.bed.sockets[name]}", "cp", f"{made}:{file}", "-"], capture_output=True, check=True
        ).stdout  # fmt: skip
    finally:
        fleet.docker(name, "rm", made)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return tar.extractfile(file.lstrip("/")).read().decode()


def test_a_patched_image_is_built_on_the_head_once_and_brought_to_the_others(fleet, build, tmp_path):
    first = fleet.ready(build, "n1", "n2", origin=fleet.origin)
    assert (first.built.on, first.source) == ("n1", "n1")
    assert content(fleet, "n2", "baked:1", "/greeting") == "patched\n"
    assert (tmp_path / "context" / "greeting").read_text() == "hello\n", "what a person keeps stays as it is"
    # The images that it is built upon were brought, since no registry has them.
    assert "upstream:1" in fleet.names("n1")
    again = fleet.ready(build, "n1", "n2", origin=fleet.origin)
    assert (again.pinned, again.built.seconds) == (first.pinned, 0)
    (tmp_path / "1017.patch").write_text(PATCH.format(word="otherwise"))
    changed = fleet.ready(build, "n1", "n2", origin=fleet.origin)
    assert changed.pinned != first.pinned
    assert content(fleet, "n2", changed.pinned, "/greeting") == "otherwise\n"
    assert [one.layers for one in changed.nodes] == [0, 1]


def test_a_patch_that_does_not_apply_is_named(fleet, build, tmp_path):
    (tmp_path / "context" / "greeting").write_text("good morning\n")
    with pytest.raises(
        StagingError, match=r"baked:1 cannot be built: 1017\.patch does not apply to context: .*greeting"
    ):
        fleet.ready(build, "n1", origin=fleet.origin)
    assert fleet.names("n1") == []


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("COPY no-such-file /", r"COPY failed: .*no-such-file.* at COPY no-such-file /\. mend that"),
        ("RUN true", r".*/bin/sh: no such file or directory.* at RUN true\. mend that"),
        ("COPPY greeting /", r"dockerfile parse error line 3: unknown instruction: COPPY\. mend that"),
    ],
    ids=["file", "run", "word"],
)
def test_a_build_that_fails_is_one_sentence(fleet, build, tmp_path, step, problem):
    with (tmp_path / "context" / "Dockerfile").open("a") as file:
        file.write(f"{step}\n")
    with pytest.raises(StagingError, match=f"baked:1 cannot be built on n1: {problem}") as caught:
        fleet.ready(build, "n1", origin=fleet.origin)
    assert "\n" not in caught.value.message
    assert caught.value.next_step == "mend that and run again"


def test_what_a_build_printed_before_it_failed_is_told(fleet, build, tmp_path):
    shell = shutil.which("sh")
    needs = re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", shell], capture_output=True, text=True).stdout)
    copies = ""
    for file in (shell, *needs):
        shutil.copy(file, tmp_path / "context")
        copies += f"COPY {Path(file).name} {file if file != shell else '/bin/sh'}\n"
    with (tmp_path / "context" / "Dockerfile").open("a") as file:
        file.write(f"{copies}RUN exec >&2; echo all is well; echo patching; echo hunk 3 FAILED; exit 7\n")
    with pytest.raises(StagingError) as caught:
        fleet.ready(build, "n1", origin=fleet.origin)
    assert "returned a non-zero code: 7 at RUN exec >&2; echo all is well;" in caught.value.message
    assert caught.value.message.endswith(". It printed: all is well; patching; hunk 3 FAILED")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"context": "nowhere"}, "there is no folder .*/nowhere"),
        ({"patches": ("no.patch",)}, "there is no patch .*/no.patch"),
        ({"dockerfile": "Other"}, "there is no Other in .*/context"),
    ],
    ids=["context", "patch", "dockerfile"],
)
def test_what_is_not_there_is_named(fleet, build, change, problem):

    with pytest.raises(StagingError, match=f"baked:1 cannot be built: {problem}") as caught:
        fleet.ready(attrs.evolve(build, **change), "n1", origin=fleet.origin)
    assert caught.value.next_step.startswith("correct the recipe's build.")


def test_this_machine_alone_needs_no_ssh(fleet):
    fleet.image("alone:1")
    spot = images.Spot(name="here", host=HERE)
    ready = images.ready(Image(name="image", reference="alone:1"), [spot], lambda _: None)
    assert (ready.source, ready.pinned) == ("here", fleet.id("here", "alone:1"))


def test_a_recipe_with_a_build_is_run_and_its_result_says_what_was_staged(clustered, bed, image, tmp_path):
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {image}\nCOPY note /note\n")
    (context / "note").write_text("hello\n")
    recipe = Path(clustered.recipe)
    recipe.write_text(
        recipe.read_text().replace(f'image = "{image}"', 'image = "baked:2"')
        + '[build]\ncontext = "context"\n'
    )
    (tmp_path / "pair.toml").write_text(bed.cluster("n1", "n2"))
    words = [
        "--recipe",
        str(recipe),
        "--cluster",
        str(tmp_path / "pair.toml"),
        "--set",
        "nodes=2",
        "--despite",
        "nodes",
    ]
    dry = clustered("run", *words, "--dry-run")
    assert "stage build image baked:2 from context" in dry.out
    ran = clustered(
        "run", *words, "--pp", "96", "--tg", "24", "--passes", "1", "--warmups", "0", "--json", timeout=180
    )
    assert ran.code == 0, ran.said
    (lane,) = ran.json["lanes"]
    (staged,) = lane["staging"]
    assert (staged["kind"], staged["reference"], staged["architecture"]) == ("image", "baked:2", "amd64")
    assert staged["built"]["on"] == "n1"
    assert [one["node"] for one in staged["nodes"]] == ["n1", "n2"]
    assert staged["nodes"][1]["bytes"] > 0 and staged["nodes"][1]["fed_by"] == "n1"
    assert {one["id"] for one in lane["images"].values()} == {staged["pinned"]}
