"""Copies onto a node's own disk: sparse, resumed, verified, never half; and host scripts, when allowed."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from lanes.errors import StagingError
from lanes.hosts import HERE, Host
from lanes.staging import copies, crew, worker
from lanes.staging.crew import Station
from lanes.types import Copy, Model, Mount, Recipe

MB = 1 << 20
HERE_ALONE = [Station(name="here", host=HERE)]
BOX_ALONE = [Station(name="box", host=Host(ssh="box"))]


def carry_out(source, target, sparse=True, stations=HERE_ALONE, recipe=None, **more):
    told = {key: more.pop(key) for key in ("tell", "warn") if key in more}
    copy = Copy(name="rows", source=str(source), target=str(target), sparse=sparse, **more)
    return copies.carry_out([copy], stations, recipe, **told)


def write(path, size, *data):
    """A file with holes, and with data (position, bytes) between them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for at, block in data:
            file.seek(at)
            file.write(block)
        file.truncate(size)
    return path


def held(path):
    return path.stat().st_blocks * 512


def same(one, other):
    return subprocess.run(["cmp", one, other], check=False).returncode == 0


def left(folder):
    return sorted(p.name for p in folder.rglob("*") if ".lanes-partial" in p.name)


def workers():
    """The programs that copy, or run a script, of this test: under it, or under its sshd."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if "python" in process.name() and any("its python3 is" in word for word in line):
                found.append(process)
    return found


# -- Holes ----------------------------------------------------------------------------------------


def test_holes_stay_holes_and_zeros_become_holes(tmp_path):
    source = write(tmp_path / "source", 500 * MB, (3 * MB, os.urandom(2 * MB)), (400 * MB, bytes(8 * MB)))
    assert held(source) >= 10 * MB
    (copied,) = carry_out(source, tmp_path / "target")
    assert same(source, tmp_path / "target")
    assert held(tmp_path / "target") < 3 * MB
    assert (copied.copied, copied.kept, copied.files, copied.there) == (2 * MB, 0, 1, 0)
    assert left(tmp_path) == []


def test_without_sparse_everything_is_written(tmp_path):
    source = write(tmp_path / "source", 40 * MB, (3 * MB, b"x"))
    carry_out(source, tmp_path / "target", sparse=False)
    assert same(source, tmp_path / "target")
    assert held(tmp_path / "target") >= 40 * MB


PIECE = worker.PIECE


@pytest.mark.parametrize(
    ("size", "data"),
    [
        (0, []),
        (1, [(0, b"x")]),
        (1, []),
        (4095, [(4094, b"x")]),
        (4097, [(4096, b"x")]),
        (4097, [(0, b"x"), (4096, b"\0")]),
        (9000, [(100, b"x" * 5000)]),
        (PIECE, [(PIECE - 1, b"x")]),
        (PIECE + 1, [(PIECE, b"x")]),
        (3 * PIECE + 5, [(PIECE - 3, b"abcdef"), (3 * PIECE, b"hallo")]),
        (2 * PIECE, [(5000, b"x" * 300_000), (PIECE + 4096, b"y"), (PIECE + 3 * 4096, b"z" * 9000)]),
        (MB, [(0, b"\0" * 5000 + b"x" + b"\0" * 8192 + b"y" + b"\0" * 20_000)]),
    ],
)
@pytest.mark.parametrize("sparse", [True, False])
def test_files_of_any_shape_arrive_as_they_are(size, data, sparse, tmp_path):
    source = write(tmp_path / "source", size, *data)
    os.utime(source, ns=(5, 1_234_567_890_123_456_789))
    source.chmod(0o640)
    carry_out(source, tmp_path / "deep" / "er" / "target", sparse=sparse)
    target = tmp_path / "deep" / "er" / "target"
    assert same(source, target)
    assert target.stat().st_size == size
    assert (target.stat().st_mtime_ns, target.stat().st_mode & 0o777) == (1_234_567_890_123_456_789, 0o640)


# -- Again, and after a kill -----------------------------------------------------------------------


def test_what_is_there_is_not_copied_again_and_what_has_changed_is(tmp_path):
    source = write(tmp_path / "source", 10 * MB, (0, b"a" * MB))
    carry_out(source, tmp_path / "target")
    inode = (tmp_path / "target").stat().st_ino
    (again,) = carry_out(source, tmp_path / "target")
    assert (again.there, again.copied, (tmp_path / "target").stat().st_ino) == (1, 0, inode)
    write(source, 10 * MB, (0, b"b" * MB))
    (changed,) = carry_out(source, tmp_path / "target")
    assert (changed.there, changed.copied) == (0, MB)
    assert same(source, tmp_path / "target")


STAGER = """
import sys
from lanes.hosts import HERE, Host
from lanes.staging import copies
from lanes.staging.crew import Station
from lanes.types import Copy

copy = Copy(name="rows", source=sys.argv[1], target=sys.argv[2], sparse=True)
host = Host(ssh=sys.argv[3]) if sys.argv[3:] else HERE
copies.carry_out([copy], [Station(name="here", host=host)], None, lambda line: print(line, flush=True))
"""


def begun(target, *more, env=None):
    """A program that copies, stopped when it has copied a part (its own program with it)."""
    source, target = target.with_name("source"), target
    stager = subprocess.Popen(
        [sys.executable, "-c", STAGER, source, target, *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    journal = target.with_name("target" + worker.JOURNAL)
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
        assert time.monotonic() < deadline and stager.poll() is None
        time.sleep(0.001)
    (one,) = workers()
    one.suspend()
    assert not target.exists(), "it was too quick for this test"
    return stager, one


def said(stager):
    """What a program that failed said."""
    _, err = stager.communicate(timeout=60)
    assert stager.returncode
    return err


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "source", 40 * PIECE, *((n * PIECE, os.urandom(8 * MB)) for n in range(0, 40, 2)))


def test_kill_9_leaves_no_program_and_the_next_run_copies_only_the_rest(source, tmp_path, wait_for):
    stager, one = begun(tmp_path / "target")
    journaled = (tmp_path / f"target{worker.JOURNAL}").read_bytes().count(b"\n") - 1
    stager.kill()
    stager.wait()
    one.resume()
    wait_for(lambda: not one.is_running(), "the program to be gone", 10)
    assert not (tmp_path / "target").exists()
    (rest,) = carry_out(source, tmp_path / "target")
    assert rest.kept >= journaled * 8 * MB > 0
    assert rest.kept + rest.copied == 160 * MB
    assert same(source, tmp_path / "target")
    assert held(tmp_path / "target") < 161 * MB
    assert left(tmp_path) == []


def test_what_a_kill_left_is_compared_not_trusted(source, tmp_path, wait_for):
    stager, one = begun(tmp_path / "target")
    one.kill()
    stager.wait()
    partial = tmp_path / f"target{worker.PARTIAL}"
    with partial.open("r+b") as file:
        file.seek(5 * MB)
        file.write(b"damaged")
        file.seek(20 * MB)  # where the source has a hole
        file.write(b"rubbish")
    (rest,) = carry_out(source, tmp_path / "target")
    assert rest.kept + rest.copied == 160 * MB
    assert same(source, tmp_path / "target")
    assert held(tmp_path / "target") < 161 * MB


def test_a_program_that_is_killed_is_named_and_loses_nothing(source, tmp_path):
    stager, one = begun(tmp_path / "target")
    one.kill()
    assert "on this machine: the program that stages was killed by signal 9" in said(stager)
    carry_out(source, tmp_path / "target")
    assert same(source, tmp_path / "target")


def test_a_file_that_changes_under_the_copy_never_gets_its_name(source, tmp_path):
    stager, one = begun(tmp_path / "target")
    with source.open("r+b") as file:
        file.write(b"changed!")
    one.resume()
    assert f"on this machine: rows: {source} changed while it was copied. run again when nobody" in said(
        stager
    )
    assert not (tmp_path / "target").exists()
    (again,) = carry_out(source, tmp_path / "target")
    assert again.kept == 0, "what was copied was of the old file"
    assert same(source, tmp_path / "target")


def test_two_lanes_that_want_one_file_copy_it_once(source, tmp_path):
    stager, one = begun(tmp_path / "target")
    told = []

    def tell(line):
        told.append(line)
        if "another lane is copying" in line:
            one.resume()

    (mine,) = carry_out(source, tmp_path / "target", tell=tell)
    assert stager.wait(60) == 0
    assert (mine.there, mine.copied) == (1, 0)
    assert any("waits: another lane is copying into" in line for line in told)


def test_several_nodes_copy_side_by_side(source, tmp_path):
    """Two nodes with one disk: the second finds the file there."""
    stations = [Station(name="n1", host=HERE), Station(name="n2", host=HERE)]
    done = carry_out(source, tmp_path / "target", stations=stations)
    assert sorted(one.there for one in done) == [0, 1]
    assert {one.node for one in done} == {"n1", "n2"}


def test_what_was_written_wrongly_never_gets_its_name(source, tmp_path):
    """The disk returns something else than was written: another program writes into the copy."""
    stager, one = begun(tmp_path / "target")
    with (tmp_path / f"target{worker.PARTIAL}").open("r+b") as file:
        file.seek(MB)
        file.write(b"not what was read")
    one.resume()
    assert "is not on the disk as it was read from" in said(stager)
    assert not (tmp_path / "target").exists()
    carry_out(source, tmp_path / "target")
    assert same(source, tmp_path / "target")


# -- Space ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 20 MiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_too_small_is_told_before_anything_is_copied(small_disk, tmp_path):
    source = write(tmp_path / "source", 900 * MB, (5 * MB, os.urandom(30 * MB)))
    with pytest.raises(StagingError) as caught:
        carry_out(source, small_disk / "rows" / "target")
    assert caught.value.message == (
        f"on this machine: rows needs 30 MiB in {small_disk}/rows/target, and 20 MiB are free (10 MiB are missing)"
    )
    assert caught.value.next_step == "free some space there, or choose a target on another disk"
    assert list(small_disk.iterdir()) == []


def test_a_sparse_file_larger_than_the_disk_fits_when_its_data_does(small_disk, tmp_path):
    source = write(tmp_path / "source", 900 * MB, (5 * MB, os.urandom(15 * MB)))
    carry_out(source, small_disk / "target")
    assert same(source, small_disk / "target")


def test_copies_that_fit_one_by_one_may_not_fit_together(small_disk, tmp_path):
    source = write(tmp_path / "source", 15 * MB, (0, os.urandom(15 * MB)))
    both = [Copy(name=n, source=str(source), target=str(small_disk / n), sparse=True) for n in ("a", "b")]
    with pytest.raises(StagingError, match="a and b needs 30 MiB"):
        copies.carry_out(both, HERE_ALONE, None)
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_loses_nothing(small_disk, tmp_path):
    # Zeros that are no holes: how much room they take is not known before, and the recipe is wrong.
    source = write(tmp_path / "source", 30 * MB, (0, os.urandom(30 * MB)))
    with pytest.raises(StagingError, match=f"rows: the disk of {small_disk}/target is full") as caught:
        carry_out(source, small_disk / "target", size_bytes=MB)
    assert "what was copied is kept" in caught.value.next_step
    assert not (small_disk / "target").exists()
    subprocess.run(["mount", "-o", "remount,size=80m", small_disk], check=True)
    carry_out(source, small_disk / "target", size_bytes=MB)
    assert same(source, small_disk / "target")


# -- Folders and links ----------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    """A folder as model hubs make it: names that are links to contents, inside and outside."""
    root = tmp_path / "nas" / "repo"
    write(root / "blobs" / "abc", 100, (0, b"weights"))
    write(tmp_path / "nas" / "elsewhere" / "tokenizer", 10, (0, b"tokens"))
    (root / "snapshots" / "1").mkdir(parents=True)
    (root / "snapshots" / "1" / "model").symlink_to("../../blobs/abc")
    (root / "snapshots" / "1" / "absolute").symlink_to(root / "blobs" / "abc")
    (root / "snapshots" / "1" / "tokenizer").symlink_to(tmp_path / "nas" / "elsewhere" / "tokenizer")
    (root / "more").symlink_to(tmp_path / "nas" / "elsewhere")
    (root / "empty").mkdir()
    return root


def test_a_folder_arrives_without_a_link_that_leads_out_of_it(repository, tmp_path):
    target = tmp_path / "own"
    (copied,) = carry_out(repository, target)
    (repository.parent).rename(tmp_path / "unmounted")
    assert (target / "snapshots/1/model").read_bytes()[:7] == b"weights"
    assert os.readlink(target / "snapshots/1/model") == "../../blobs/abc"
    assert os.readlink(target / "snapshots/1/absolute") == "../../blobs/abc"
    assert (target / "snapshots/1/tokenizer").read_bytes()[:6] == b"tokens"
    assert (target / "more" / "tokenizer").is_file()
    assert (target / "empty").is_dir()
    assert copied.files == 3
    assert left(target) == []


def test_a_link_to_nowhere_is_named_before_anything_is_copied(repository, tmp_path):
    (repository / "snapshots/1/lost").symlink_to("/no/such/blob")
    with pytest.raises(
        StagingError, match=r"rows: .*snapshots/1/lost is a link to /no/such/blob, which is not there"
    ):
        carry_out(repository, tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_links_in_a_circle_are_told(repository, tmp_path):
    (repository / "again").symlink_to(repository.parent)
    with pytest.raises(StagingError, match="is a link to a folder that it lies in"):
        carry_out(repository, tmp_path / "own")


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("/no/such", "own", "rows: there is no /no/such"),
        ("nas/repo", "nas/repo", "is copied onto itself"),
        ("nas/repo", "nas/repo/own", "which is to be copied there"),
        ("nas/repo/blobs/abc", "nas", "is a file, and .* is a folder"),
        ("nas/repo", "nas/repo/blobs/abc", "which is to be copied there"),
        ("nas/elsewhere", "nas/repo/blobs/abc", "is a folder, and .* is a file"),
        ("/dev/null", "own", "neither a file nor a folder"),
    ],
)
def test_a_wrong_path_is_one_sentence(repository, tmp_path, source, target, told):
    with pytest.raises(StagingError, match=told) as caught:
        carry_out(tmp_path / source, tmp_path / target)
    assert caught.value.next_step


def test_a_path_that_is_not_whole_is_refused():
    with pytest.raises(StagingError, match="the source rows is not an absolute path"):
        carry_out("rows", "/tmp/rows")


def contained(tmp_path, *mounts, path=None, repo=None):
    return Recipe(
        name="r", engine="e", image="i:1", model=Model(name="m", path=path, repo=repo),
        mounts=tuple(Mount(source=str(tmp_path / source), target=target) for source, target in mounts),
    )  # fmt: skip


def test_a_link_that_leads_nowhere_in_the_container_is_found_before_anything_is_copied(repository, tmp_path):
    """It is good on the node: an absolute link into storage that is mounted under another name."""
    source = write(tmp_path / "source", 10, (0, b"x"))
    recipe = contained(tmp_path, ("nas/repo", "/models"), path=str(repository))
    with pytest.raises(StagingError, match="in the container nothing is mounted at") as caught:
        carry_out(source, tmp_path / "own", recipe=recipe)
    assert "copy it to the node with [[staging]]" in caught.value.next_step
    assert not (tmp_path / "own").exists()
    mended = contained(
        tmp_path, ("nas/repo", "/models"), ("nas", str(tmp_path / "nas")), path=str(repository)
    )
    carry_out(source, tmp_path / "own", recipe=mended)


def test_a_model_repository_is_looked_at_where_its_cache_is_mounted(tmp_path):
    cache = tmp_path / "cache" / "hub" / "models--org--name"
    write(tmp_path / "nas" / "blob", 10, (0, b"x"))
    (cache / "snapshots").mkdir(parents=True)
    (cache / "snapshots" / "model").symlink_to(tmp_path / "nas" / "blob")
    source = write(tmp_path / "source", 10, (0, b"x"))
    recipe = contained(tmp_path, ("cache", "/root/.cache/huggingface"), repo="org/name")
    with pytest.raises(
        StagingError, match=r"snapshots/model leads to .*/nas/blob, and in the container nothing"
    ):
        carry_out(source, tmp_path / "own", recipe=recipe)
    other = contained(tmp_path, ("cache", "/root/.cache/huggingface"), repo="org/another")
    carry_out(source, tmp_path / "own", recipe=other)


# -- The rate -------------------------------------------------------------------------------------


def rate_of(*seconds_and_mb):
    rate, now, copied, said = copies.Rate(10), 0.0, 0, []
    for seconds, mb in seconds_and_mb:
        for _ in range(seconds * 2):
            now, copied = now + 0.5, copied + int(mb * MB / 2)
            rate.at(now, copied)
            said += [one for one in [rate.judge()] if one]
    return said


def test_a_rate_that_falls_to_a_sixth_is_named_once_and_so_is_its_return():
    said = rate_of((60, 300), (60, 40), (60, 290))
    assert len(said) == 2
    assert said[0].startswith("the rate has collapsed from 314.6 MB/s to ")
    assert said[1].endswith("/s again")


def test_a_rate_that_falls_soon_after_the_first_window_is_named():
    said = rate_of((11, 12), (30, 1.7))
    assert len(said) == 1
    assert said[0].startswith("the rate has collapsed from 12.6 MB/s to ")


def test_a_rate_that_halves_or_was_never_high_is_no_collapse():
    assert rate_of((60, 300), (60, 150), (60, 100)) == []
    assert (
        rate_of(
            (60, 5),
        )
        == []
    )


def test_a_source_that_hangs_is_named_while_it_hangs(source, tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "WINDOW_S", 0.2)
    warned, told = [], []
    over = threading.Event()

    def pace():
        """Slow it down, and then stop it altogether until it was told of."""
        while not over.is_set():
            for one in workers():
                with contextlib.suppress(psutil.Error):
                    one.suspend()
                    time.sleep(0.1)
                    while len(told) > 8 and not warned and not over.is_set():
                        time.sleep(0.01)
                    one.resume()
                    if warned:
                        return
            time.sleep(0.005)

    pacing = threading.Thread(target=pace)
    monkeypatch.setattr(crew, "TICK_S", 0.05)
    pacing.start()
    try:
        carry_out(source, tmp_path / "target", tell=lambda line: told.append(line) if "MB/s" in line else None, warn=warned.append)  # fmt: skip
    finally:
        over.set()
        pacing.join()
    if not warned:
        pytest.skip("this disk was too quick to be slowed down")
    assert "rows on here: the rate has collapsed from" in warned[0]
    assert same(source, tmp_path / "target")


# -- The program itself ---------------------------------------------------------------------------


def test_the_program_needs_no_more_than_python_38(tmp_path):
    text = Path(worker.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_a_program_that_hears_nothing_any_more_ends(tmp_path):
    """A network that is gone closes no connection."""
    program = Path(worker.__file__).read_text().replace("SILENCE_S = 60.0", "SILENCE_S = 1.0").encode()
    job = b'{"do": "copies", "copies": [], "mounts": [], "roots": [], "under": []}\n'
    one = subprocess.Popen([sys.executable, "-c", crew._BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    one.stdin.write(f"{len(program)}\n".encode() + program + job)
    one.stdin.flush()
    assert b"ready" in one.stdout.readline()
    assert one.wait(20) == 1
    one.stdin.close()
    one.stdout.close()


# -- Another machine ------------------------------------------------------------------------------


@pytest.fixture
def box(ssh_host, lanes, monkeypatch):
    monkeypatch.setenv("PATH", lanes.env["PATH"])
    return lanes


@pytest.mark.sshd
def test_a_copy_on_another_machine(box, source, tmp_path):
    (copied,) = carry_out(source, tmp_path / "target", stations=BOX_ALONE)
    assert (copied.node, copied.copied) == ("box", 160 * MB)
    assert same(source, tmp_path / "target")
    assert not workers()


@pytest.mark.sshd
@pytest.mark.parametrize("killed", ["controller", "ssh"])
def test_nothing_runs_on_a_machine_whose_connection_is_gone(box, source, tmp_path, killed, wait_for):
    stager, one = begun(tmp_path / "target", "box", env={**os.environ})
    ssh = [p for p in psutil.Process(stager.pid).children(recursive=True) if p.name() == "ssh"]
    assert ssh
    if killed == "controller":
        stager.kill()
    for process in ssh:
        process.kill()
    one.resume()
    wait_for(lambda: not one.is_running(), "the program to be gone", 10)
    stager.wait(20)
    assert not (tmp_path / "target").exists()
    (rest,) = carry_out(source, tmp_path / "target", stations=BOX_ALONE)
    assert rest.kept > 0
    assert rest.kept + rest.copied == 160 * MB
    assert same(source, tmp_path / "target")


@pytest.mark.sshd
def test_a_machine_without_python_is_one_sentence(box, tmp_path):
    key = (tmp_path / "authorized").read_text()
    (tmp_path / "authorized").write_text(
        f'command="PATH=/nonexistent; eval \\"$SSH_ORIGINAL_COMMAND\\"" {key}'
    )
    with pytest.raises(StagingError) as caught:
        carry_out(tmp_path, "/nowhere", stations=BOX_ALONE)
    assert caught.value.message == "on box: there is no python3"
    assert caught.value.next_step.startswith("install python3 there")


@pytest.mark.sshd
def test_every_machine_that_lacks_something_is_named_before_anything_is_copied(box, source, tmp_path):
    stations = [
        Station(name="n1", host=HERE),
        *BOX_ALONE,
        Station(name="n3", host=Host(ssh="no-such-host.invalid")),
    ]
    with pytest.raises(StagingError) as caught:
        carry_out(source, tmp_path / "target", stations=stations)
    assert "on n3: it cannot be reached: " in caught.value.message
    with pytest.raises(StagingError, match="on n1, box: rows: there is no /no/such"):
        carry_out("/no/such", tmp_path / "target", stations=stations[:2])
    assert left(tmp_path) == []
    assert not (tmp_path / "target").exists()


# -- Through the command line, and scripts ---------------------------------------------------------


@pytest.fixture
def recipe(echo, tmp_path):
    """Write a recipe for echo with more in it."""

    (tmp_path / "recipes").mkdir()

    def write_it(more):
        file = tmp_path / "recipes" / "r.toml"
        file.write_text(f'name = "r"\nengine = "echo"\n[model]\nname = "m"\n{more}')
        return str(file)

    return write_it


QUICK = ("--pp", "96", "--tg", "24", "--passes", "1", "--warmups", "0")
PREPARE = '[[scripts]]\nname = "prepare"\npath = "prepare.sh"\nreason = "puts rows on the disk"\n'


def test_a_lane_copies_what_its_recipe_says(echo, recipe, source, tmp_path):
    own = tmp_path / "own" / "rows"
    file = recipe(f'[[staging]]\nname = "rows"\nsource = "{source}"\ntarget = "{own}"\nsparse = true\n')
    shown = echo("run", "--recipe", file, "--dry-run")
    assert f"stage copy rows from {source} to {own} on each node" in shown.said
    assert not own.exists()
    ran = echo("run", "--recipe", file, *QUICK, "--json")
    assert ran.code == 0, ran.said
    assert same(source, own)


def test_a_copy_that_cannot_be_made_fails_the_lane_with_its_reason(echo, recipe, tmp_path):
    file = recipe(f'[[staging]]\nname = "rows"\nsource = "/no/such"\ntarget = "{tmp_path}/rows"\n')
    ran = echo("run", "--recipe", file, *QUICK, "--json")
    assert ran.code == 1
    assert ran.json["lanes"][0]["reason"] == "on this machine: rows: there is no /no/such"


def test_a_script_that_nobody_allowed_is_refused_before_anything_is_done(echo, recipe, tmp_path):
    file = recipe(PREPARE)
    (tmp_path / "recipes" / "prepare.sh").write_text(f"touch {tmp_path}/ran\n")
    for arguments in (("check", file), ("run", "--recipe", file, *QUICK), ("serve", "--recipe", file)):
        ran = echo(*arguments)
        assert ran.code == 3
        assert "which nobody has allowed: prepare (puts rows on the disk)" in ran.said
        assert "--allow-script prepare" in ran.said
    assert not (tmp_path / "ran").exists()
    assert echo("check", file, "--allow-script", "prepare").code == 0
    assert echo("check", file, "--arch", "gb10").code == 0


def test_an_allowed_script_is_shown_and_runs_before_the_launch(echo, recipe, tmp_path):
    script = tmp_path / "recipes" / "prepare.sh"
    script.write_text(
        f'#!/usr/bin/env bash\necho "rank $LANES_RANK of $LANES_NODES"\necho "$LANES_NODE" > {tmp_path}/ran\n'
    )
    file = recipe(PREPARE)
    dry = echo("run", "--recipe", file, "--dry-run")
    assert "| #!/usr/bin/env bash" in dry.out
    assert (
        script.read_text()
        == echo("run", "--recipe", file, "--dry-run", "--json").json[0]["stage"][-1]["text"]
    )
    ran = echo("run", "--recipe", file, "--allow-script", "prepare", *QUICK, "--json")
    assert ran.code == 0, ran.said
    assert "script prepare runs on" in ran.err
    assert '| echo "rank $LANES_RANK of $LANES_NODES"' in ran.err
    assert (tmp_path / "ran").read_text().strip()
    (log,) = echo.home.glob("lanes/*/scripts/prepare-*.log")
    assert log.read_text() == "rank 0 of 1\n"


def test_a_script_that_fails_fails_the_lane_with_its_last_line(echo, recipe, tmp_path):
    (tmp_path / "recipes" / "prepare.sh").write_text("echo begun\necho there are no shards >&2\nexit 7\n")
    ran = echo("run", "--recipe", recipe(PREPARE), "--allow-script", "prepare", *QUICK, "--json")
    assert ran.code == 1
    lane = ran.json["lanes"][0]
    assert "failed with exit code 7: there are no shards" in lane["reason"]
    log = lane["next_step"].removeprefix("its output is in ")
    assert Path(log).read_text() == "begun\nthere are no shards\n"


def test_a_script_that_is_not_there_is_told_before_anything_is_copied(echo, recipe, source, tmp_path):
    own = tmp_path / "own"
    file = recipe(
        PREPARE + f'[[staging]]\nname = "rows"\nsource = "{source}"\ntarget = "{own}"\nsparse = true\n'
    )
    ran = echo("run", "--recipe", file, "--allow-script", "prepare", *QUICK, "--json")
    assert ran.code == 1
    assert "script prepare: " in ran.json["lanes"][0]["reason"]
    assert not own.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_a_script_ends_with_the_program_that_wanted_it(echo, recipe, tmp_path, wait_for, how):
    (tmp_path / "recipes" / "prepare.sh").write_text(f"echo $$ > {tmp_path}/pid\nsleep 1000 & wait\n")
    run = echo.start("run", "--recipe", recipe(PREPARE), "--allow-script", "prepare", *QUICK)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the script")
    pid = int((tmp_path / "pid").read_text())
    run.send_signal(how)
    run.communicate(timeout=30)
    wait_for(lambda: not psutil.pid_exists(pid) and not workers(), "the script to be gone", 10)
