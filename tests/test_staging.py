"""A model's file appears under its name when it is whole and right, whatever happens on the way."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lanes import staging
from lanes.errors import StagingError
from lanes.types import Build, Copy, Files, HostScript, Image

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def parts(tmp_path):
    """A file in three parts."""
    paths = []
    for number, part in enumerate((CONTENT[:5000], CONTENT[5000:5001], CONTENT[5001:])):
        path = tmp_path / f"x.gguf.part{number}"
        path.write_bytes(part)
        paths.append(str(path))
    return tuple(paths)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "staged"


@pytest.fixture
def small_blocks(monkeypatch):
    """So that a small file is many blocks."""
    monkeypatch.setattr(staging.files, "_BLOCK", 1000)


def stage(item, folder, progress=lambda *_: None):
    return Path(staging.stage([item], folder, progress).paths[item.name])


def files(folder):
    """The names in a folder that could be taken for a finished file."""
    return [p.name for p in folder.rglob("*") if p.is_file() and p.suffix not in (".lock", ".partial")]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_parts_are_joined_in_order_and_checked(parts, folder, small_blocks):
    heard = []
    item = Files(name="model", parts=parts, target="x.gguf", size_bytes=len(CONTENT), sha256=sha256(CONTENT))
    path = stage(item, folder, lambda *told: heard.append(told))
    assert path.name == "x.gguf"
    assert path.read_bytes() == CONTENT
    assert heard[-1] == ("model", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


def test_what_is_there_already_is_not_copied_again(parts, folder):
    item = Files(name="model", parts=parts, target="x.gguf")
    first = stage(item, folder)
    before = first.stat()
    heard = []
    assert stage(item, folder, lambda *told: heard.append(told)) == first
    assert (first.stat().st_ino, first.stat().st_mtime_ns, heard) == (before.st_ino, before.st_mtime_ns, [])


def test_two_models_of_one_name_and_size_are_kept_apart(tmp_path, folder):
    paths = []
    for name, content in (("a", b"AAAA"), ("b", b"BBBB")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.gguf").write_bytes(content)
        paths.append(stage(Files(name="model", parts=(str(tmp_path / name / "x.gguf"),)), folder))
    assert [path.read_bytes() for path in paths] == [b"AAAA", b"BBBB"]


def test_a_source_that_was_replaced_is_staged_anew(tmp_path, folder):
    source = tmp_path / "x.gguf"
    item = Files(name="model", parts=(str(source),))
    source.write_bytes(b"old!")
    stage(item, folder)
    source.write_bytes(b"new!")
    os.utime(source, ns=(1, 1))
    assert stage(item, folder).read_bytes() == b"new!"


@pytest.mark.parametrize(
    "left_over",
    [CONTENT[:7000], b"\0" * 7000, CONTENT[:3000] + b"?" + CONTENT[3001:7000], CONTENT + b"too much", b""],
    ids=["as it was written", "zeros after a power cut", "one byte wrong", "too long", "empty"],
)
def test_what_a_killed_run_left_is_finished(left_over, parts, folder, small_blocks):
    item = Files(name="model", parts=parts, target="x.gguf", sha256=sha256(CONTENT))
    final = folder / sha256(CONTENT)[:16] / "x.gguf"
    final.parent.mkdir(parents=True)
    final.with_name("x.gguf.partial").write_bytes(left_over)
    assert stage(item, folder) == final
    assert final.read_bytes() == CONTENT
    assert not final.with_name("x.gguf.partial").exists()


def test_a_file_of_the_wrong_digest_never_gets_its_name(parts, folder):
    item = Files(name="model", parts=parts, target="x.gguf", sha256="0" * 64)
    with pytest.raises(StagingError) as caught:
        stage(item, folder)
    assert caught.value.message == f"model has sha256 {sha256(CONTENT)}, not {'0' * 64} as published"
    assert caught.value.next_step == "its source is damaged: install or download it again"
    assert files(folder) == []


@pytest.mark.parametrize("size", [len(CONTENT) + 1, len(CONTENT) - 1])
def test_a_file_of_the_wrong_size_never_gets_its_name(size, parts, folder):
    item = Files(name="model", parts=parts, target="x.gguf", size_bytes=size)
    with pytest.raises(StagingError, match=f"model has 16,384 bytes, not {size:,}"):
        stage(item, folder)
    assert files(folder) == []


def test_a_source_that_is_not_there_is_named_before_anything_is_copied(parts, folder):
    os.unlink(parts[1])
    with pytest.raises(StagingError, match=f"model: {parts[1]} does not exist") as caught:
        stage(Files(name="model", parts=parts), folder)
    assert caught.value.next_step
    assert not folder.exists()


def test_a_source_that_vanishes_meanwhile_is_named_and_nothing_is_lost(parts, folder, small_blocks):
    kept = Path(parts[2]).read_bytes()
    item = Files(name="model", parts=parts, target="x.gguf", sha256=sha256(CONTENT))
    with pytest.raises(StagingError, match=f"model: {parts[2]}: No such file or directory"):
        stage(item, folder, lambda *_: Path(parts[2]).unlink(missing_ok=True))
    assert files(folder) == []
    Path(parts[2]).write_bytes(kept)
    assert stage(item, folder).read_bytes() == CONTENT


def test_a_source_that_shrinks_meanwhile_is_not_taken_for_whole(parts, folder, small_blocks):
    with pytest.raises(StagingError, match="changes meanwhile"):
        stage(
            Files(name="model", parts=parts, target="x.gguf"), folder, lambda *_: os.truncate(parts[2], 100)
        )
    assert files(folder) == []


def test_a_file_that_lies_where_it_is_needed_is_used_in_place(parts, folder):
    item = Files(name="model", parts=parts[:1], in_place=True)
    assert str(stage(item, folder)) == parts[0]
    assert not folder.exists()


def test_a_file_may_have_a_folder_of_its_own(parts, folder):
    assert stage(Files(name="model", parts=parts, target="sub/x.gguf"), folder).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "item",
    [
        Image(name="server", reference="a/b:1"),
        Build(name="server", tag="a:1", context="/x"),
        Copy(name="server", source="/x", target="/y"),
        HostScript(name="server", path="/x", reason="because"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_plain_processes_cannot_have_is_refused_with_a_next_step(item, folder):
    with pytest.raises(StagingError, match="'server' cannot be staged by this version of lanes") as caught:
        staging.stage([item], folder)
    assert caught.value.next_step.endswith("or choose a recipe without it")


def test_a_file_made_of_nothing_is_the_plugins_fault(folder):
    with pytest.raises(StagingError, match="model has no file to come from"):
        stage(Files(name="model", parts=()), folder)


# -- Disks ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 KiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_too_small_is_told_before_anything_is_copied(small_disk, tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 100_000)
    with pytest.raises(StagingError) as caught:
        stage(Files(name="model", parts=(str(tmp_path / "x"),)), small_disk / "staged")
    assert "model needs 100,000 bytes in" in caught.value.message
    assert "are free" in caught.value.message
    assert caught.value.next_step == "free some space, or set LANES_HOME to another disk"


def test_a_disk_that_fills_up_meanwhile_loses_nothing(small_disk, tmp_path, small_blocks):
    content = os.urandom(40_000)
    (tmp_path / "x").write_bytes(content)
    other = small_disk / "other"

    def fill(_name, done, _total):
        if done == 8000:
            with pytest.raises(OSError):
                other.write_bytes(b"x" * 100_000)

    item = Files(name="model", parts=(str(tmp_path / "x"),))
    with pytest.raises(StagingError, match=r"model: .*No space left on device"):
        stage(item, small_disk / "staged", fill)
    assert files(small_disk / "staged") == []
    other.unlink()
    assert stage(item, small_disk / "staged").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_one_sentence(parts, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StagingError, match=r"model: .*file"):
        stage(Files(name="model", parts=parts), tmp_path / "file" / "staged")


# -- Several programs, and kills ------------------------------------------------------------------

STAGER = """
import sys, time
from pathlib import Path
from lanes import staging
from lanes.types import Files

folder, pace, *parts = sys.argv[1:]
staging.files._BLOCK = 1000

def progress(*told):
    print("progress", *told, flush=True)
    time.sleep(float(pace))

item = Files(name="model", parts=tuple(parts), target="x.gguf")
print("staged", staging.stage([item], Path(folder), progress).paths["model"], flush=True)
"""


def stager(folder, pace, parts):
    return subprocess.Popen(
        [sys.executable, "-c", STAGER, str(folder), str(pace), *parts], stdout=subprocess.PIPE, text=True
    )


def test_of_two_programs_that_want_one_file_the_second_finds_it_there(parts, folder):
    first = stager(folder, 0.02, parts)
    assert first.stdout.readline().startswith("progress")
    second = stager(folder, 0.02, parts)
    first_said, _ = first.communicate(timeout=30)
    second_said, _ = second.communicate(timeout=30)
    path = first_said.split()[-1]
    assert second_said == f"staged {path}\n"
    assert Path(path).read_bytes() == CONTENT


def test_kill_9_in_the_middle_leaves_no_file_and_the_next_run_finishes_it(parts, folder):
    killed = stager(folder, 0.1, parts)
    for _ in range(4):
        assert killed.stdout.readline().startswith("progress")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert files(folder) == []
    began = time.monotonic()
    after = stager(folder, 0, parts)
    said, _ = after.communicate(timeout=30)
    assert time.monotonic() - began < 20, "it waits for the dead"
    assert Path(said.split()[-1]).read_bytes() == CONTENT
