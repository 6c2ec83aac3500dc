"""Copies on the nodes that go wrong: a disk that fills up, a NAS that slows down, a file that changes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
from lanes.staging import worker

pytestmark = [pytest.mark.docker, pytest.mark.cluster]

MB = 1 << 20
FOLDER = "/var/lib/rows"


@pytest.fixture
def staged(scene, bed):
    """The scene with a recipe that copies a file from the NAS to each node's own disk, and mounts it."""
    for name in bed.names:
        (bed.var_lib(name) / "rows").mkdir(exist_ok=True)
    with Path(scene.lanes.recipe).open("a") as file:
        file.write(f'[[mounts]]\nsource = "{FOLDER}"\ntarget = "/own"\n')
        file.write('[[staging]]\nname = "rows"\nsource = "/mnt/nas/rows/file"\n')
        file.write(f'target = "{FOLDER}/file"\nsparse = true\n')
    (bed.nas / "rows").mkdir(exist_ok=True)
    yield scene
    for folder in (*(bed.var_lib(name) / "rows" for name in bed.names), bed.nas / "rows"):
        for left in folder.iterdir():
            left.unlink()


@pytest.fixture
def source(staged, bed):
    """What is copied: many pieces, so that a copy can be stopped in the middle."""
    path = bed.nas / "rows" / "file"
    with path.open("wb") as file:
        for piece in range(0, 60, 2):
            file.seek(piece * worker.PIECE)
            file.write(os.urandom(8 * MB))
        file.truncate(60 * worker.PIECE)
    return path


def inside(bed, name, path):
    """A path of a node, as this machine sees it, whatever is mounted there."""
    return Path(f"/proc/{bed.mounts[name].pid}/root{path}")


def programs(bed):
    """Our programs under the sshd's of the bed."""
    found = []
    for sshd in bed.sshds.values():
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(sshd.pid).children(recursive=True)
            found += [process for process in below if process.name().startswith("python")]
    return found


@contextlib.contextmanager
def stopped_while_copying(staged, bed):
    """A run whose programs stand still in the middle of a copy; they go on when the block ends."""
    run = staged.start("run", *staged.QUICK)
    journal = inside(bed, "n2", f"{FOLDER}/file{worker.JOURNAL}")
    staged.wait_for(
        lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2, "a part to be copied", 90
    )
    found = programs(bed)
    for process in found:
        process.suspend()
    try:
        assert not journal.with_name("file").exists(), "it was too quick for this test"
        yield run
    finally:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.resume()


def copied(bed, name):
    return inside(bed, name, f"{FOLDER}/file")


def test_a_disk_that_fills_up(staged, source, bed):
    disk = ("mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", FOLDER)
    subprocess.run([*bed.inside("n2"), *disk], check=True)
    try:
        with stopped_while_copying(staged, bed) as run:
            (inside(bed, "n2", FOLDER) / "strangers").write_bytes(bytes(200 * MB))
        lane = staged.fails(run)
        assert lane["reason"] == f"on n2: rows: the disk of {FOLDER}/file is full"
        assert lane["next_step"] == "free some space there and run again: what was copied is kept"
        assert not copied(bed, "n2").exists()
        assert not programs(bed)
        staged.clean()
        (inside(bed, "n2", FOLDER) / "strangers").unlink()
        staged.runs_again()
        assert copied(bed, "n2").stat().st_size == source.stat().st_size
    finally:
        subprocess.run([*bed.inside("n2"), "umount", "-l", FOLDER], check=True)


def test_a_file_that_changes_under_the_copy(staged, source, bed):
    with stopped_while_copying(staged, bed) as run, source.open("r+b") as file:
        file.write(b"somebody else's")
    lane = staged.fails(run)
    assert lane["reason"].endswith("rows: /mnt/nas/rows/file changed while it was copied")
    assert lane["next_step"] == "run again when nobody writes to it any more"
    assert not copied(bed, "n2").exists()
    assert not programs(bed)
    staged.clean()
    staged.runs_again()
    assert subprocess.run(["cmp", source, copied(bed, "n2")], check=False).returncode == 0


def test_a_node_that_is_lost_while_copying(staged, source, bed):
    with stopped_while_copying(staged, bed) as run, bed.cut_off("n2"):
        lane = staged.fails(run, 90)
    assert lane["reason"].startswith("on n2: the connection broke: ")
    assert "the claim on n2" in lane["next_step"]
    assert not copied(bed, "n2").exists()
    staged.wait_for(lambda: not programs(bed), "the programs to be gone", 90)
    staged.runs_again()
    assert subprocess.run(["cmp", source, copied(bed, "n2")], check=False).returncode == 0


class Throttle:
    """A disk whose reads by some processes, and all that they start, have a limit (a control group's)."""

    def __init__(self, device: str, pids: list[int]) -> None:
        number = os.stat(device).st_rdev
        self._device = f"{os.major(number)}:{os.minor(number)}"
        first = Path("/sys/fs/cgroup/blkio")
        if first.is_dir():
            self._group, self._limit = first / "lanes-nas", "blkio.throttle.read_bps_device"
        else:
            root = Path("/sys/fs/cgroup")
            if "io" not in (root / "cgroup.controllers").read_text().split():
                pytest.skip("no control group can slow a disk down here")
            (root / "cgroup.subtree_control").write_text("+io")
            self._group, self._limit = root / "lanes-nas", "io.max"
        self._before = {pid: self._of(pid) for pid in pids}
        self._group.mkdir()
        for pid in pids:
            (self._group / "cgroup.procs").write_text(str(pid))

    def _of(self, pid: int) -> Path:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if "blkio" in kinds.split(","):
                return self._group.parent / path.lstrip("/")
        return self._group.parent / Path(f"/proc/{pid}/cgroup").read_text().split("::")[-1].strip().lstrip(
            "/"
        )

    def at(self, rate: int | None) -> None:
        """Read no faster than so many bytes a second; None: as fast as can be."""
        if self._limit == "io.max":
            text = f"{self._device} rbps={rate or 'max'}"
        else:
            text = f"{self._device} {rate or 0}"
        (self._group / self._limit).write_text(text)

    def end(self) -> None:
        for pid in (self._group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self._before.get(int(pid), self._group.parent) / "cgroup.procs").write_text(pid)
        self._group.rmdir()


@pytest.fixture
def nas(staged, bed, tmp_path):
    """A disk of its own for the NAS, with a file of 300 MB on it, that both nodes mount; and its throttle."""
    file = tmp_path / "disk"
    file.touch()
    os.truncate(file, 512 * MB)
    subprocess.run(["mkfs.ext4", "-q", file], check=True)
    try:
        made = subprocess.run(
            ["losetup", "--find", "--show", file], capture_output=True, text=True, check=True
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device: {error.stderr}")
    device = made.stdout.strip()
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["losetup", "-d", device], check=True)
        for name in ("n1", "n2"):
            subprocess.run([*bed.inside(name), "mount", device, "/mnt/nas/rows"], check=True)
            stack.callback(subprocess.run, [*bed.inside(name), "umount", "-l", "/mnt/nas/rows"], check=True)
        inside(bed, "n1", "/mnt/nas/rows/file").write_bytes(os.urandom(300 * MB))
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("1")
        throttle = Throttle(device, [bed.sshds[name].pid for name in ("n1", "n2")])
        stack.callback(throttle.end)
        yield throttle


def test_a_nas_that_slows_down_to_a_sixth(staged, nas, bed):
    def done():
        with contextlib.suppress(OSError):
            return inside(bed, "n2", f"{FOLDER}/file{worker.PARTIAL}").stat().st_blocks * 512
        return 0

    nas.at(12 * MB)
    run = staged.start("run", *staged.QUICK)
    told: list[str] = []
    hearing = threading.Thread(target=lambda: told.extend(run.stderr))
    hearing.start()
    staged.wait_for(lambda: done() > 130 * MB, "the usual rate to be known", 90)
    nas.at(12 * MB // 7)
    staged.wait_for(lambda: any("collapsed" in line for line in told), "the collapse to be told", 60)
    nas.at(None)
    (lane,) = json.loads(run.stdout.read())["lanes"]
    assert staged.came_up(lane), lane["reason"]
    run.wait(60)
    hearing.join()
    (line, *_) = [line for line in told if "collapsed" in line]
    assert re.search(
        r"rows on n[12]: the rate has collapsed from 1\d\.\d MB/s to [12]\.\d MB/s: "
        "the source's storage is overloaded, or its network is",
        line,
    )
    staged.clean()
    staged.runs_again()
