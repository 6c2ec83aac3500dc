"""Copy files on a node, or run a script there: one program that needs nothing but Python 3.8.

It is sent to the node, and never installed. The controller holds its stdin open: the job, one line of
JSON, then `go`, then a sign of life now and then. What happens is told in lines of JSON on stdout. When
the controller is gone, so is this program, and what it started.

A file is copied to `<name>.lanes-partial`, whose journal has a checksum of every piece as it was read
from the source. A copy that is taken up again reads its own pieces, and copies those that are not as
they should be; then all of it is read back from the disk, and only then gets its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import stat
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

PAGE = 4096
ZEROS = bytes(PAGE)
READ = 1 << 20
PIECE = 32 << 20
"""A piece has one checksum: what a killed copy may have to copy again is no more than this."""
FLUSH = 8 << 20
PARTIAL = ".lanes-partial"
JOURNAL = ".lanes-partial.journal"
NEWS_S = 0.25
SILENCE_S = 60.0
"""So long nothing may be heard from the controller before it counts as gone."""

_print_lock = threading.Lock()


class Problem(Exception):
    """What is wrong, in a sentence, and what to do about it."""

    def __init__(self, message: str, step: str | None = None, kind: str = "problem") -> None:
        super().__init__(message)
        self.message, self.step, self.kind = message, step, kind


def tell(**event: Any) -> None:
    data = (json.dumps(event) + "\n").encode()
    with _print_lock:
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            end(1)


_cleanups: list[Any] = []


def end(code: int) -> None:
    """End at once, whatever other threads do; what was started goes too."""
    for cleanup in _cleanups:
        cleanup()
    os._exit(code)


class Controller:
    """Who sent us, heard on stdin."""

    def __init__(self) -> None:
        self._heard = time.monotonic()
        self._go = threading.Event()
        for target in (self._listen, self._watch):
            threading.Thread(target=target, daemon=True).start()

    def await_go(self) -> None:
        self._go.wait()

    def _listen(self) -> None:
        while True:
            line = sys.stdin.buffer.readline()
            if not line:
                end(1)
            self._heard = time.monotonic()
            if line.strip() == b"go":
                self._go.set()

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            if time.monotonic() - self._heard > SILENCE_S:
                end(1)


class Progress:
    """Counts, told several times a second by a thread of their own: a copy that hangs is seen to hang."""

    def __init__(self) -> None:
        self.name, self.total, self.done, self.copied, self.doing = "", 0, 0, 0, ""

    def start(self) -> None:
        threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        while True:
            time.sleep(NEWS_S)
            self.now()

    def now(self) -> None:
        tell(
            event="progress", name=self.name, doing=self.doing, done=self.done, copied=self.copied,
            total=self.total,
        )  # fmt: skip


# -- What is to be copied -------------------------------------------------------------------------


class One:
    """A file to copy: from, to, and how the source was when it was found."""

    def __init__(self, source: str, target: str, seen: os.stat_result) -> None:
        self.source, self.target, self.seen = source, target, seen


class Tree:
    """What a copy comes to: folders, links inside it, and files."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.files: list[One] = []


def tree(source: str, target: str) -> Tree:
    """Everything under a path. A link that leads out of it is followed: on the node's own disk nothing
    should hang on the network. One that stays inside becomes a relative link."""
    found = Tree()
    try:
        seen = os.stat(source)
    except OSError as error:
        raise Problem(*_no_source(source, error)) from None
    if stat.S_ISREG(seen.st_mode):
        if os.path.isdir(target):
            raise Problem(
                f"{source} is a file, and {target} is a folder", "name the file in the copy's target"
            )
        found.files.append(One(source, target, seen))
    elif stat.S_ISDIR(seen.st_mode):
        if os.path.exists(target) and not os.path.isdir(target):
            raise Problem(
                f"{source} is a folder, and {target} is a file", "remove it, or choose another target"
            )
        _walk(source, target, os.path.realpath(source), target, found, ())
    else:
        raise Problem(f"{source} is neither a file nor a folder", "correct the copy's source")
    return found


def _no_source(source: str, error: OSError) -> tuple[str, str]:
    if os.path.islink(source):
        return f"{source} is a link to {os.readlink(source)}, which is not there", "mount what it leads to"
    if error.errno == errno.ENOENT:
        return f"there is no {source}", "mount its storage there, or correct the copy's source"
    return f"{source}: {error.strerror}", "mend that and run again"


def _walk(folder: str, into: str, root: str, target: str, found: Tree, above: tuple[str, ...]) -> None:
    real = os.path.realpath(folder)
    if real in above:
        raise Problem(f"{folder} is a link to a folder that it lies in", "remove that link")
    found.folders.append(into)
    for name in sorted(os.listdir(folder)):
        path, goal = os.path.join(folder, name), os.path.join(into, name)
        if name.endswith((PARTIAL, JOURNAL)):
            continue
        if os.path.islink(path):
            leads = os.path.realpath(path)
            if leads != root and leads.startswith(root + os.sep) and os.path.exists(leads):
                inside = os.path.join(target, os.path.relpath(leads, root))
                found.links.append((goal, os.path.relpath(inside, into)))
                continue
        try:
            seen = os.stat(path)
        except OSError as error:
            raise Problem(*_no_source(path, error)) from None
        if stat.S_ISDIR(seen.st_mode):
            _walk(path, goal, root, target, found, (*above, real))
        elif stat.S_ISREG(seen.st_mode):
            found.files.append(One(path, goal, seen))


def there(one: One) -> bool:
    """Was this very file copied before? A file has its name and its time only when it was verified."""
    try:
        now = os.lstat(one.target)
    except OSError:
        return False
    same = (now.st_size, now.st_mtime_ns) == (one.seen.st_size, one.seen.st_mtime_ns)
    return same and stat.S_ISREG(now.st_mode)


def wanted(one: One, sparse: bool) -> int:
    """The bytes that copying a file writes, as far as the source can tell."""
    if not sparse:
        return one.seen.st_size
    with open(one.source, "rb", buffering=0) as file:
        size = sum(last - first for first, last in extents(file.fileno(), 0, one.seen.st_size))
    # A source that cannot tell where its holes are may still tell how much it holds.
    return min(size, one.seen.st_blocks * 512) if one.seen.st_blocks else size


def taken(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


# -- Pages ----------------------------------------------------------------------------------------


def extents(fd: int, begin: int, stop: int, sparse: bool = True) -> Iterator[tuple[int, int]]:
    """Where data is, in whole pages; all of it where the file system cannot tell."""
    while sparse and begin < stop:
        try:
            first = os.lseek(fd, begin, os.SEEK_DATA)
            if first >= stop:
                return
            last = os.lseek(fd, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            break
        first -= first % PAGE
        last = min(stop, last + -last % PAGE)
        yield max(begin, first), last
        begin = last
    if begin < stop:
        yield begin, stop


def data(fd: int, begin: int, stop: int, sparse: bool = True) -> Iterator[tuple[int, memoryview]]:
    """What a range holds: position and bytes, good until the next is asked for. Sparse: without holes and
    without pages of zeros."""
    buffer = bytearray(READ)
    for first, last in extents(fd, begin, stop, sparse):
        at = first
        while at < last:
            part = memoryview(buffer)[: min(READ, last - at)]
            try:
                size = os.preadv(fd, [part], at)
            except OSError as error:
                raise _named(error, fd) from None
            if not size:
                return  # it is shorter than it was: whoever asked sees that too
            if sparse:
                yield from _runs(part[:size], at)
            else:
                yield at, part[:size]
            at += size


def _runs(view: memoryview, at: int) -> Iterator[tuple[int, memoryview]]:
    """The pages that are not all zeros; `view` begins where its buffer does."""
    buffer, size = view.obj, len(view)
    assert isinstance(buffer, bytearray)
    whole = size - size % PAGE
    tail_holds = whole == size or any(view[whole:size])
    if tail_holds and buffer.find(ZEROS, 0, size) < 0:
        yield at, view[:size]
        return
    begin = None
    for position in range(0, size, PAGE):
        if buffer.startswith(ZEROS, position, size) or (position == whole and not tail_holds):
            if begin is not None:
                yield at + begin, view[begin:position]
                begin = None
        elif begin is None:
            begin = position
    if begin is not None:
        yield at + begin, view[begin:size]


class Checksum:
    """A checksum of what lies where. Zeros do not count: a hole and zeros are the same."""

    def __init__(self) -> None:
        self._sum = 0
        self._next = -1

    def add(self, at: int, block: memoryview) -> None:
        if at != self._next:
            self._sum = zlib.crc32(struct.pack("<Q", at), self._sum)
        self._sum = zlib.crc32(block, self._sum)
        self._next = at + len(block)

    def __str__(self) -> str:
        return f"{self._sum:08x}" if self._next >= 0 else ""


def checksum(fd: int, begin: int, stop: int) -> tuple[str, int]:
    """The checksum of a range, and how many bytes it holds."""
    found, size = Checksum(), 0
    for at, block in data(fd, begin, stop):
        found.add(at, block)
        size += len(block)
    return str(found), size


# -- One file -------------------------------------------------------------------------------------


class Copying:
    """One file's way from its source to its final name."""

    def __init__(self, one: One, sparse: bool, progress: Progress) -> None:
        self.one, self.sparse, self.progress = one, sparse, progress
        self.size = one.seen.st_size
        self.pieces = (self.size + PIECE - 1) // PIECE
        self.kept = 0
        self.copied = 0
        self._flushed = 0, 0
        """How far the disk was told to write what it has, and the bytes copied until then."""

    def run(self) -> tuple[float, float]:
        """Copy and verify; return the seconds that each took."""
        began = time.monotonic()
        self._as_seen(os.stat(self.one.source))
        partial = self.one.target + PARTIAL
        source = os.open(self.one.source, os.O_RDONLY)
        try:
            target = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                sums = self._copy(source, target)
                self._as_seen(os.fstat(source))
                self._as_seen(os.stat(self.one.source))
                copied = time.monotonic()
                self._verify(target, sums)
            finally:
                os.close(target)
        finally:
            os.close(source)
        mode = stat.S_IMODE(self.one.seen.st_mode) & 0o777
        os.chmod(partial, mode | 0o400)
        os.utime(partial, ns=(self.one.seen.st_mtime_ns, self.one.seen.st_mtime_ns))
        self._as_seen(os.stat(self.one.source))
        os.replace(partial, self.one.target)
        sync_folder(os.path.dirname(self.one.target))
        os.unlink(self.one.target + JOURNAL)
        return copied - began, time.monotonic() - copied

    def _as_seen(self, now: os.stat_result) -> None:
        seen = self.one.seen
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (seen.st_size, seen.st_mtime_ns, seen.st_ino):
            raise Problem(
                f"{self.one.source} changed while it was copied",
                "run again when nobody writes to it any more",
                "changed",
            )

    def _range(self, number: int) -> tuple[int, int]:
        return number * PIECE, min(self.size, (number + 1) * PIECE)

    def _copy(self, source: int, target: int) -> dict[int, str]:
        journal, known = self._journal(target)
        try:
            kept = self._still_there(target, known)
            sums = dict(kept)
            for number in self._numbers(source):
                if number not in kept:
                    sums[number] = self._piece(number, source, target)
                    os.write(journal, (json.dumps([number, sums[number]]) + "\n").encode())
            self.progress.doing = "writing"
            os.ftruncate(target, self.size)
            os.fsync(target)
        finally:
            os.close(journal)
        return sums

    def _numbers(self, source: int) -> Iterator[int]:
        """The pieces that hold anything."""
        following = 0
        for first, last in extents(source, 0, self.size, self.sparse):
            for number in range(max(following, first // PIECE), (last + PIECE - 1) // PIECE):
                yield number
                following = number + 1

    def _piece(self, number: int, source: int, target: int) -> str:
        begin, stop = self._range(number)
        clear(target, begin, stop)
        found = Checksum()
        for at, block in data(source, begin, stop, self.sparse):
            _write(target, block, at)
            for run in ((at, block),) if self.sparse else _runs(block, at):
                found.add(*run)
            self.copied += len(block)
            self.progress.copied += len(block)
            self.progress.done += len(block)
        # Written back while more is read, not all at the end.
        if self.copied - self._flushed[1] >= FLUSH:
            libc("sync_file_range")(target, c64(self._flushed[0]), c64(stop - self._flushed[0]), 2)
            self._flushed = stop, self.copied
        return str(found)

    def _journal(self, target: int) -> tuple[int, dict[int, str]]:
        """The journal, and what an earlier run of this very copy wrote into it."""
        seen = self.one.seen
        about = [1, PIECE, self.sparse, seen.st_size, seen.st_mtime_ns, seen.st_ino]
        name = self.one.target + JOURNAL
        lines: list[Any] = []
        try:
            with open(name, encoding="utf-8") as file:
                for line in file:
                    lines.append(json.loads(line))
        except (OSError, ValueError):
            pass  # none, or its last line was cut: those before it count
        if lines and lines[0] == about:
            known = {int(number): str(value) for number, value in lines[1:]}
        else:
            known = {}
            os.ftruncate(target, 0)
        with open(name + PARTIAL, "w", encoding="utf-8") as file:
            for entry in (about, *sorted(known.items())):
                file.write(json.dumps(entry) + "\n")
        os.replace(name + PARTIAL, name)
        return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), known

    def _still_there(self, target: int, known: dict[int, str]) -> dict[int, str]:
        """The pieces of an earlier run that are as they should be: they are not copied again."""
        kept = {}
        self.progress.doing = "looking at what is there"
        for number, value in sorted(known.items()):
            found, size = checksum(target, *self._range(number))
            if found == value:
                kept[number] = value
                self.kept += size
                self.progress.done += size
        self.progress.doing = "copying"
        return kept

    def _verify(self, target: int, sums: dict[int, str]) -> None:
        self.progress.doing = "verifying"
        if os.fstat(target).st_size != self.size:
            raise Problem(f"{self.one.target} was not written whole", "run again")
        # From the disk, not from memory.
        os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)
        left = {number: value for number, value in sums.items() if value}
        for number in self._numbers(target):
            if checksum(target, *self._range(number))[0] != left.pop(number, ""):  # "": nothing but zeros
                left[number] = ""
                break
        if left:
            number = min(left)
            # What is on this disk is not to be trusted: the next run copies all of it again.
            os.unlink(self.one.target + JOURNAL)
            raise Problem(
                "{} is not on the disk as it was read from {} (near byte {})".format(
                    self.one.target, self.one.source, format(number * PIECE, ",")
                ),
                "run again; if it says so again, look at that disk and its memory",
                "corrupt",
            )


def _write(fd: int, block: bytes | memoryview, at: int) -> None:
    try:
        written = os.pwrite(fd, block, at)
        while written < len(block):
            written += os.pwrite(fd, block[written:], at + written)
    except OSError as error:
        raise _named(error, fd) from None


def _named(error: OSError, fd: int) -> OSError:
    """The error with the name of the file that it is about."""
    return OSError(error.errno, error.strerror, os.readlink(f"/proc/self/fd/{fd}"))


def libc(name: str) -> Any:
    """A system call that Python has no name for; it may fail."""
    return getattr(ctypes.CDLL(None), name, lambda *_: -1)


c64 = ctypes.c_int64


def clear(fd: int, begin: int, stop: int) -> None:
    """Have nothing in a range: what a killed run left there may lie where the source has a hole."""
    size = os.fstat(fd).st_size
    if begin >= size or not any(True for _ in extents(fd, begin, min(stop, size))):
        return
    # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    if libc("fallocate")(fd, 3, c64(begin), c64(stop - begin)):
        for at, block in data(fd, begin, min(stop, size)):
            _write(fd, bytes(len(block)), at)


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- Copies ---------------------------------------------------------------------------------------


def existing(path: str) -> str:
    """The nearest folder above (or at) a path that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def copies(job: dict[str, Any], controller: Controller) -> None:
    """Carry out all copies of this node, once there is room for all of them."""
    progress = Progress()
    dangling(job)
    tell(event="ready", need=sum(plan["need"] for plan in _plans(job)))
    controller.await_go()
    # Another lane, or another node with this disk, may be copying the same files: it is waited for.
    folders = [os.path.dirname(copy["target"].rstrip("/")) or "/" for copy in job["copies"]]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    locks = _lock(folders)
    plans = _plans(job)
    progress.start()
    for plan in plans:
        _called(plan["copy"]["name"], _carry_out, plan, progress)
    dangling(job)
    for lock in locks:
        os.close(lock)


def _plans(job: dict[str, Any]) -> list[dict[str, Any]]:
    plans = [_called(copy["name"], _plan, copy) for copy in job["copies"]]
    _room(plans)
    return plans


def _called(name: str, do: Any, *arguments: Any) -> Any:
    """Do it, and put the copy's name before what goes wrong."""
    try:
        return do(*arguments)
    except Problem as problem:
        raise Problem(f"{name}: {problem.message}", problem.step, problem.kind) from None


def _lock(folders: list[str]) -> list[int]:
    """Hold the folders in which the copies are made, one after the other in an order that all keep."""
    locks = []
    for folder in sorted({os.path.realpath(folder) for folder in folders}):
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        waited = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    break  # a file system without locks
            if not waited:
                tell(event="waiting", folder=folder)
            waited = True
            time.sleep(0.2)
        locks.append(fd)
    return locks


def _plan(copy: dict[str, Any]) -> dict[str, Any]:
    for key in ("source", "target"):
        copy[key] = os.path.expanduser(copy[key])
        if not os.path.isabs(copy[key]):
            raise Problem(f"the {key} {copy[key]} is not an absolute path", "write all of it")
    source, target = copy["source"].rstrip("/") or "/", copy["target"].rstrip("/") or "/"
    if os.path.realpath(source) == os.path.realpath(target):
        raise Problem(f"{source} is copied onto itself", "correct the copy's target")
    if (os.path.realpath(target) + os.sep).startswith(os.path.realpath(source) + os.sep):
        raise Problem(f"{target} lies inside {source}, which is to be copied there", "choose another target")
    found = tree(source, target)
    todo = [one for one in found.files if not there(one)]
    size = sum(wanted(one, copy["sparse"]) for one in todo)
    have = sum(taken(one.target + PARTIAL) for one in todo)
    need = size
    if copy["sparse"] and copy["size_bytes"] is not None and len(todo) == len(found.files):
        # A source that cannot tell its holes seems larger than it is.
        need = min(need, copy["size_bytes"])
    return {
        "copy": copy,
        "target": target,
        "tree": found,
        "todo": todo,
        "size": size,
        "need": max(0, need - have),
    }


def _room(plans: list[dict[str, Any]]) -> None:
    """Is there room for everything, on each disk?"""
    disks: dict[int, list[dict[str, Any]]] = {}
    for plan in plans:
        disks.setdefault(os.stat(existing(plan["target"])).st_dev, []).append(plan)
    for on in disks.values():
        where = existing(on[0]["target"])
        found = os.statvfs(where)
        free = found.f_bavail * found.f_frsize
        need = sum(plan["need"] for plan in on)
        if need > free:
            names = " and ".join(plan["copy"]["name"] for plan in on if plan["need"])
            raise Problem(
                "{} needs {} in {}, and {} are free ({} are missing)".format(
                    names, size_text(need), on[0]["target"], size_text(free), size_text(need - free)
                ),
                "free some space there, or choose a target on another disk",
                "space",
            )


def size_text(size: int) -> str:
    if size < 10 << 20:
        return "{} bytes".format(format(size, ","))
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _carry_out(plan: dict[str, Any], progress: Progress) -> None:
    copy = plan["copy"]
    progress.name, progress.doing = copy["name"], "copying"
    progress.total, progress.done, progress.copied = plan["size"], 0, 0
    kept = copied = 0
    copy_s = verify_s = 0.0
    try:
        made = None
        for folder in plan["tree"].folders or [os.path.dirname(plan["target"])]:
            os.makedirs(folder, exist_ok=True)
        for one in plan["todo"]:
            made = Copying(one, copy["sparse"], progress)
            progress.doing = "copying"
            seconds = made.run()
            copy_s, verify_s = copy_s + seconds[0], verify_s + seconds[1]
            kept, copied = kept + made.kept, copied + made.copied
        for path, leads in plan["tree"].links:
            _link(path, leads)
        _sweep(plan)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise Problem(
                f"the disk of {plan['target']} is full",
                "free some space there and run again: what was copied is kept",
                "space",
            ) from None
        raise Problem(
            f"{error.filename or plan['target']}: {error.strerror}",
            "mend that and run again: what was copied is kept",
        ) from None
    progress.now()
    tell(
        event="copied", name=copy["name"], files=len(plan["todo"]), there=len(plan["tree"].files) - len(plan["todo"]),
        copied=copied, kept=kept, copy_s=copy_s, verify_s=verify_s,
    )  # fmt: skip


def _link(path: str, leads: str) -> None:
    if os.path.islink(path) and os.readlink(path) == leads:
        return
    partial = path + PARTIAL
    if os.path.lexists(partial):
        os.unlink(partial)
    os.symlink(leads, partial)
    os.replace(partial, path)


def _sweep(plan: dict[str, Any]) -> None:
    """Remove what copies of files that are no longer there have left: it takes space for nothing."""
    for folder in plan["tree"].folders:
        for name in os.listdir(folder):
            if name.endswith((PARTIAL, JOURNAL)):
                os.unlink(os.path.join(folder, name))


# -- Links, as a container sees them ---------------------------------------------------------------


def dangling(job: dict[str, Any]) -> None:
    """Raise for a link that leads nowhere in the lane's containers, under what they are to read."""
    mounts = [(os.path.normpath(source), os.path.normpath(target)) for source, target in job["mounts"]]
    roots = [path for path in job["roots"] if path]
    for source, _ in mounts:
        roots += [os.path.join(source, name) for name in job["under"]]
    for root in roots:
        seen = inside(os.path.normpath(root), mounts)
        if seen is not None:
            for path in links(os.path.normpath(root)):
                _lead(path, seen, os.path.normpath(root), mounts)


def inside(path: str, mounts: list[tuple[str, str]]) -> str | None:
    """A node's path as the container sees it; None: it does not."""
    best = None
    for source, target in mounts:
        if (path + os.sep).startswith(source.rstrip("/") + os.sep) and (
            best is None or len(source) > len(best[0])
        ):
            best = source, target
    return None if best is None else os.path.normpath(os.path.join(best[1], os.path.relpath(path, best[0])))


def outside(path: str, mounts: list[tuple[str, str]]) -> str | None:
    """A container's path as the node has it; None: nothing is mounted there."""
    best = None
    for source, target in mounts:
        if (path + os.sep).startswith(target.rstrip("/") + os.sep) and (
            best is None or len(target) > len(best[1])
        ):
            best = source, target
    return None if best is None else os.path.normpath(os.path.join(best[0], os.path.relpath(path, best[1])))


def links(root: str) -> Iterator[str]:
    if os.path.islink(root):
        yield root
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                yield path


def _lead(path: str, seen: str, root: str, mounts: list[tuple[str, str]]) -> None:
    """Follow one link inside the container, step by step."""
    first = os.readlink(path)
    here, rest = "/", _steps(os.path.join(seen, os.path.relpath(path, root)))
    followed = 0
    while rest:
        here = os.path.normpath(os.path.join(here, rest.pop(0)))
        on_node = outside(here, mounts)
        if on_node is not None and os.path.islink(on_node) and followed < 40:
            followed += 1
            leads = os.readlink(on_node)
            rest = _steps(leads) + rest
            here = "/" if leads.startswith("/") else os.path.dirname(here)
    on_node = outside(here, mounts)
    if on_node is None:
        raise Problem(
            f"{path} leads to {first}, and in the container nothing is mounted at {here}",
            "mount what it leads to with [[mounts]], or copy it to the node with [[staging]]",
            "dangling",
        )
    if not os.path.exists(on_node) and not os.path.islink(on_node):
        raise Problem(
            f"{path} leads to {first}, which is not there",
            "bring that file there, or remove the link",
            "dangling",
        )


def _steps(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


# -- Scripts --------------------------------------------------------------------------------------


def script(job: dict[str, Any], controller: Controller) -> None:
    """Run a script in a session of its own, which ends when we do; tell its output line by line."""
    import shutil
    import subprocess
    import tempfile

    tell(event="ready", need=0)
    controller.await_go()
    folder = tempfile.mkdtemp(prefix="lanes-script-")
    _cleanups.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    path = os.path.join(folder, os.path.basename(job["name"]) or "script")
    with open(path, "w", encoding="utf-8") as file:
        file.write(job["text"])
    os.chmod(path, 0o700)
    first = job["text"].splitlines()[0] if job["text"] else ""
    interpreter = first[2:].split(None, 1) if first.startswith("#!") else ["/bin/sh"]
    try:
        process = subprocess.Popen(
            [*(word.strip() for word in interpreter), path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **job["env"]},
        )  # fmt: skip
    except OSError as error:
        raise Problem(f"its interpreter {interpreter[0]}: {error.strerror}", "install it there") from None

    def kill() -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    _cleanups.insert(0, kill)
    threading.Thread(target=_alive, daemon=True).start()
    reading = threading.Thread(target=_lines, args=(process,), daemon=True)
    reading.start()
    code = process.wait()
    # What the script leaves running on purpose is not waited for, though it holds the output open.
    reading.join(1)
    _cleanups.remove(kill)
    tell(event="exit", code=code)


def _lines(process: Any) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        tell(event="line", text=line.decode("utf-8", "replace").rstrip("\n"))


def _alive() -> None:
    while True:
        time.sleep(1)
        tell(event="alive")


def main(job: dict[str, Any], controller: Controller) -> None:
    try:
        (script if job["do"] == "script" else copies)(job, controller)
        tell(event="done")
    except Problem as problem:
        tell(event="problem", message=problem.message, step=problem.step, kind=problem.kind)
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        tell(event="problem", message=said, step="mend that and run again", kind="problem")
    except Exception as error:
        tell(event="problem", message=f"{type(error).__name__}: {error}", step="report this", kind="bug")
    end(0)


if __name__ == "__main__":
    _job = json.loads(sys.stdin.buffer.readline())
    main(_job, Controller())
