"""Carry an image from one Docker engine to others: one program that needs nothing but Python 3.8.

It is sent to the nodes, and never installed. One copy takes the image out of its engine; each other one
loads into its own engine what that lacks, and hands on what the next node lacks, while it still comes in:
a chain of nodes takes hardly longer than its first one. stdin: lines of JSON (the job, `next`, `go`), and
then, where this copy is fed by the controller, frames. stdout: frames. stderr: what happens, in lines of
JSON. When the controller is gone, so is this program.

A frame is a line of JSON, then as many bytes as it says: an archive for `docker load` that holds one layer.
Layers come in order, and each is an image of its own (`lanes-partial`) until the whole one is there: what an
interrupted transfer has brought stays, and is not brought again. An archive is in the form of `docker save`
and an OCI layout at once, so that both kinds of engines read it; those with graph drivers check a layer
against its digest, and so do those with a containerd store.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import socket
import struct
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

BLOCK = 1 << 20
SMALL = 4 << 20
"""Files of an export up to this size are kept in memory too: configurations and manifests are no larger."""
NEWS_S = 0.25
PING_S = 5.0
SILENCE_S = 60.0
"""So long nothing may come in before who sends it counts as gone."""
CONNECT_S = 5.0
BLOBS = "blobs/sha256/"
END_OF_ARCHIVE = bytes(1024)
PARTIAL = "lanes-partial"
AGAIN = "run again: the layers that are there are not sent again"

_print_lock = threading.Lock()


class Problem(Exception):
    """What is wrong, in a sentence, and what to do about it."""

    def __init__(self, message: str, step: str | None = None, neighbour: bool = False) -> None:
        super().__init__(message)
        self.message, self.step = message, step
        self.neighbour = neighbour
        """Whether another node is the cause, which may tell better."""


def tell(**event: Any) -> None:
    with _print_lock:
        try:
            os.write(2, (json.dumps(event) + "\n").encode())
        except OSError:
            os._exit(1)


def fail(problem: Problem) -> None:
    tell(event="problem", message=problem.message, step=problem.step, neighbour=problem.neighbour)
    os._exit(1)


# -- Docker's API over its socket ----------------------------------------------------------------


class _Engine(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.connect(self.path)
        except OSError as error:
            raise Problem(
                f"its Docker engine cannot be reached: {error.strerror}", "is it running?"
            ) from None


def socket_path(named: str | None) -> str:
    here = os.environ.get("DOCKER_HOST", "")
    return named or (here[len("unix://") :] if here.startswith("unix://") else "/var/run/docker.sock")


def room(folder: str, needed: int, what: str) -> None:
    """Raise Problem when there are not that many bytes free in the folder; one that hides itself is not asked."""
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        if free < needed:
            raise Problem(
                f"{what} needs {needed / 1e9:,.1f} GB in {folder}, and {free / 1e9:,.1f} GB are free",
                "free some there: docker system prune",
            )


class Load:
    """An archive on its way into the engine. Its end is held back until the load before it is through:
    a layer can be added only to those below it."""

    def __init__(self, path: str, size: int, before: Load | None) -> None:
        self._left = size
        self._before = before
        self.problem: str | None = None
        self._through = threading.Event()
        self._engine = _Engine(path)
        self._engine.putrequest("POST", "/images/load?quiet=1")
        self._engine.putheader("Content-Type", "application/x-tar")
        self._engine.putheader("Content-Length", str(size))
        self._engine.endheaders()
        threading.Thread(target=self._answer, daemon=True).start()

    def write(self, block: bytes) -> None:
        """All but the end, at once."""
        self._send(block[: max(0, self._left - len(END_OF_ARCHIVE))])
        self._left -= len(block)

    def end(self, waiting: Any) -> None:
        if self._before is not None:
            self._before.wait(waiting)
            self._before = None
        self._send(END_OF_ARCHIVE)

    def wait(self, waiting: Any) -> None:
        """Return when the engine has it; `waiting` is called now and then. Raises Problem."""
        while not self._through.wait(PING_S):
            waiting()
        if self.problem:
            raise Problem(f"its Docker engine refuses the image: {self.problem}", _mend(self.problem))

    def _send(self, block: bytes) -> None:
        try:
            self._engine.sock.sendall(block)
        except OSError:
            # Its answer tells why.
            self.wait(lambda: None)
            raise Problem("its Docker engine took only a part of the image", "run again") from None

    def _answer(self) -> None:
        try:
            answer = http.client.HTTPResponse(self._engine.sock, method="POST")
            answer.begin()
            said = answer.read().decode(errors="replace")
            if answer.status != 200:
                self.problem = _message(said) or said.strip() or f"status {answer.status}"
            for line in said.splitlines():
                if '"error"' in line:
                    self.problem = json.loads(line).get("error", line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.problem = self.problem or f"it broke the connection ({error})"
        self._engine.close()
        self._through.set()


def _message(said: str) -> str | None:
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(said).get("message"))
    return None


def _mend(problem: str) -> str:
    if "no space left" in problem:
        return "free some space there: docker system prune"
    return AGAIN


# -- Archives ------------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def chain(layers: list[str]) -> str:
    """The id of layers upon one another, as the OCI image specification says (ChainID)."""
    found = layers[0]
    for layer in layers[1:]:
        found = sha256(f"{found} {layer}".encode())
    return found


def full_name(tag: str) -> str:
    """A reference as containerd writes it, with its registry."""
    first, slash, _ = tag.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"


def _info(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def _file(name: str, data: bytes) -> bytes:
    return _info(name, len(data)) + data + bytes(-len(data) % 512)


def _path(digest: str) -> str:
    return BLOBS + digest.partition(":")[2]


class Layer:
    """A layer as the engine exports it, maybe compressed, in a file that has no name; it can be read while it comes.

    `digest` is that of these bytes.
    """

    def __init__(self, digest: str, size: int) -> None:
        self.digest, self.size = digest, size
        self._file = tempfile.TemporaryFile(dir=spool(), buffering=0)  # noqa: SIM115
        self._written = 0
        self._more = threading.Condition()
        self._broken = False

    def fill(self, content: Any) -> None:
        while block := content.read(BLOCK):
            self._file.write(block)
            with self._more:
                self._written += len(block)
                self._more.notify_all()

    def give_up(self) -> None:
        """There will be no more of it."""
        with self._more:
            self._broken = True
            self._more.notify_all()

    @property
    def fileno(self) -> int:
        return self._file.fileno()

    def pieces(self, waiting: Any) -> Iterator[tuple[int, int]]:
        """Where it can be read next, and how many bytes."""
        done = 0
        while done < self.size:
            with self._more:
                there = self._more.wait_for(lambda: self._written > done or self._broken, PING_S)  # noqa: B023
                if there and self._written <= done:
                    raise Problem("its Docker engine broke off exporting the image", AGAIN)
            if not there:
                waiting()
                continue
            size = min(BLOCK, self._written - done)
            yield done, size
            done += size

    @property
    def media_type(self) -> str:
        magic = os.pread(self._file.fileno(), 4, 0)
        kind = "+gzip" if magic[:2] == b"\x1f\x8b" else "+zstd" if magic == b"\x28\xb5\x2f\xfd" else ""
        return f"application/vnd.oci.image.layer.v1.tar{kind}"


def archive(config: bytes, blobs: list[dict[str, Any]], tags: list[str]) -> bytes:
    """All of an archive but its layers' content, and without its end. `blobs` are the layers' descriptors."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": sha256(config),
            "size": len(config),
        },
        "layers": blobs,
    }
    oci = json.dumps(manifest, sort_keys=True).encode()
    descriptor = {"mediaType": manifest["mediaType"], "digest": sha256(oci), "size": len(oci)}
    names = [{"io.containerd.image.name": full_name(tag)} for tag in tags]
    index = {"schemaVersion": 2, "manifests": [{**descriptor, "annotations": one} for one in names]}
    docker = [
        {
            "Config": _path(sha256(config)),
            "RepoTags": tags,
            "Layers": [_path(one["digest"]) for one in blobs],
        }
    ]
    return (
        _file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        + _file("index.json", json.dumps(index).encode())
        + _file("manifest.json", json.dumps(docker).encode())
        + _file(_path(sha256(oci)), oci)
        + _file(_path(sha256(config)), config)
    )


# -- The engine that has the image ---------------------------------------------------------------


class Export:
    """An image as its engine exports it, read once; a layer can be had as soon as it begins to come by."""

    def __init__(self, path: str, image: str, layers: list[str], first: int) -> None:
        self._diffs = layers
        self._first = first
        self._chains = [chain(layers[: number + 1]) for number in range(len(layers))]
        self._layers: dict[str, Layer] = {}
        # Files whose name does not tell which layer they are; small ones may describe the image.
        self._others: dict[str, Layer] = {}
        self._small: dict[str, bytes] = {}
        self._last: Layer | None = None
        self._changed = threading.Condition()
        self._ended = False
        self._problem: Problem | None = None
        self.config = b""
        threading.Thread(target=self._read, args=(path, image), daemon=True).start()

    def layer(self, diff: str, waiting: Any) -> Layer:
        """The layer whose uncompressed content has this digest. Raises Problem."""
        self._wait(lambda: diff in self._layers, waiting)
        return self._layers[diff]

    def whole(self, waiting: Any) -> None:
        """Return when everything has come by. Raises Problem."""
        self._wait(lambda: False, waiting)

    def descriptor(self, diff: str) -> dict[str, Any]:
        """What a manifest says of a layer; of one that was not kept, the digest alone is true."""
        layer = self._layers.get(diff)
        if layer is None:
            return {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": diff, "size": 0}
        return {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}

    def _wait(self, there: Any, waiting: Any) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: there() or self._ended, PING_S):
                    if not there() and self._problem:
                        raise self._problem
                    return
            waiting()

    def _read(self, path: str, image: str) -> None:
        try:
            self._unpack(path, image)
            self._match()
        except Problem as problem:
            self._problem = problem
        except Exception as error:
            self._problem = Problem(f"its Docker engine broke off exporting the image ({error})", AGAIN)
        if self._problem and self._last is not None:
            self._last.give_up()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _unpack(self, path: str, image: str) -> None:
        engine = _Engine(path)
        engine.request("GET", f"/images/{image}/get")
        answer = engine.getresponse()
        if answer.status != 200:
            said = answer.read().decode(errors="replace")
            raise Problem(f"its Docker engine cannot export the image: {_message(said) or said.strip()}")
        with tarfile.open(fileobj=answer, mode="r|", bufsize=BLOCK) as archive:
            for member in archive:
                if member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None
                    self._keep(member.name, content, member.size)

    def _keep(self, name: str, content: Any, size: int) -> None:
        number = self._number(name)
        if number is not None and number < self._first:
            return  # it is everywhere already
        diff = None if number is None else self._diffs[number]
        by_name = f"sha256:{name[len(BLOBS) :]}" if name.startswith(BLOBS) else None
        layer = Layer(by_name or diff or "", size)
        if diff is None:
            layer.fill(content)
            self._others[name] = layer
            if size <= SMALL:
                self._small[name] = os.pread(layer.fileno, size, 0)
            return
        self._last = layer
        with self._changed:
            self._layers[diff] = layer
            self._changed.notify_all()
        layer.fill(content)

    def _number(self, name: str) -> int | None:
        """Which layer a file is, the highest where it is several; None where its name does not tell."""
        if name.startswith(BLOBS):
            diff = f"sha256:{name[len(BLOBS) :]}"
            found = [number for number, one in enumerate(self._diffs) if one == diff]
            return found[-1] if found else None
        folder, _, last = name.rpartition("/")
        about = self._small.get(f"{folder}/json")
        return old_number(json.loads(about), self._chains) if last == "layer.tar" and about else None

    def _match(self) -> None:
        """Find the configuration, and the layers whose names did not tell which they are."""
        (manifest,) = json.loads(self._small["manifest.json"])
        self.config = self._small[manifest["Config"]]
        for diff, name in list(zip(self._diffs, manifest["Layers"]))[self._first :]:  # noqa: B905 (Python 3.8)
            if diff not in self._layers and name in self._others:
                layer = self._others[name]
                layer.digest = layer.digest or diff
                self._layers[diff] = layer
        if missing := set(self._diffs[self._first :]) - set(self._layers):
            raise Problem(f"its Docker engine exports the image without its layer {min(missing)}")


def old_number(about: dict[str, Any], chains: list[str]) -> int | None:
    """Which layer a folder of an export is, as engines before 25 wrote them: its name is a digest of what is told about
    it and of the id of the layers up to it; of the uppermost more is told."""
    rest = {key: value for key, value in about.items() if key not in ("id", "parent", "os")}
    if "parent" in about:
        rest["parent"] = f"sha256:{about['parent']}"
    for number, one in enumerate(chains):
        told = {**rest, "layer_id": one}
        text = json.dumps({key: told[key] for key in sorted(told)}, separators=(",", ":"))
        if sha256(text.encode()) == f"sha256:{about['id']}":
            return number
    return len(chains) - 1 if "config" in about else None


def spool() -> str:
    """Where layers lie on their way: on a disk, not in memory, as /tmp may be."""
    return os.environ.get("TMPDIR") or "/var/tmp"


# -- The chain -----------------------------------------------------------------------------------


class Next:
    """The node after this one: over the network between the nodes, or (`where` None) over stdout."""

    def __init__(self, have: int, connection: socket.socket | None) -> None:
        self.have = have
        self._connection = connection

    def send(self, data: bytes) -> None:
        try:
            if self._connection is not None:
                self._connection.sendall(data)
                return
            while data:
                data = data[os.write(1, data) :]
        except OSError as error:
            raise self._broken(error) from None

    def send_from(self, file: int, start: int, size: int) -> None:
        """A piece of a file, within the kernel where it can do that."""
        if self._connection is None and not hasattr(os, "splice"):
            self.send(os.pread(file, size, start))
            return
        try:
            while size:
                if self._connection is not None:
                    sent = os.sendfile(self._connection.fileno(), file, start, size)
                else:
                    sent = os.splice(file, 1, size, offset_src=start)
                start, size = start + sent, size - sent
        except OSError as error:
            raise self._broken(error) from None

    def _broken(self, error: OSError) -> Problem:
        why = error.strerror or str(error)
        return Problem(f"the connection to the node after it broke: {why}", AGAIN, neighbour=True)


def link(address: str, port: int, token: str) -> socket.socket | None:
    """A connection to the node that listens there, or None: there may be a firewall."""
    try:
        made = socket.create_connection((address, port), CONNECT_S)
        made.sendall(token.encode())
        if made.recv(1) != b"y":
            return None
        # Its own timeouts would have the kernel's calls return early.
        made.settimeout(None)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SILENCE_S), 0))
        return made
    except OSError:
        return None


class Door:
    """Where the node before this one comes in."""

    def __init__(self, address: str, token: str) -> None:
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self._token = token.encode()
        self._came = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def upstream(self) -> io.BufferedReader:
        """What comes from who knew the token."""
        if not self._came.wait(SILENCE_S):
            raise Problem("the node before it does not come", AGAIN, neighbour=True)
        return self._connection.makefile("rb")

    def _accept(self) -> None:
        while not self._came.is_set():
            made, _ = self._listener.accept()
            made.settimeout(CONNECT_S)
            with contextlib.suppress(OSError):
                # To the byte: what follows the token is not to be read here.
                if made.recv(len(self._token), socket.MSG_WAITALL) == self._token:
                    made.sendall(b"y")
                    made.settimeout(None)
                    self._connection = made
                    self._came.set()
                    continue
            made.close()
        self._listener.close()


class Courier:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.layers: list[str] = job["layers"]
        self.have: int = job["have"]
        self.outputs: list[Next] = []
        self.heard = time.monotonic()
        self.reading = False
        self.received = 0
        self._told = 0.0

    def ping(self) -> None:
        """Let those after us know that we live; what they do not read yet they have heard of."""
        for one in self.outputs:
            one.send(b"\n")

    def run(self, stdin: io.BufferedReader) -> None:
        path = socket_path(self.job["socket"])
        door = None
        if self.job["listen"]:
            with contextlib.suppress(OSError):  # the cluster's file may name an address of somewhere else
                door = Door(self.job["listen"], self.job["token"])
        export = None
        if self.job["export"] is None:
            room(self.job["root"], self.job["needed"], "the image")
        else:
            room(spool(), self.job["needed"], "the image on its way")
            # The engine takes its time until it begins: meanwhile the nodes find each other.
            export = Export(path, self.job["export"], self.layers, self.have)
        tell(event="ready", port=door.port if door else None)
        ahead = json.loads(stdin.readline() or "null")
        if ahead:
            made = link(ahead["address"], ahead["port"], self.job["token"])
            if made is not None:
                self.outputs.append(Next(ahead["have"], made))
            tell(event="linked", linked=made is not None)
        go = json.loads(stdin.readline() or "null")
        if go is None:
            os._exit(1)
        if go["stdout"] is not None:
            self.outputs.append(Next(go["stdout"], None))
        if export is not None:
            threading.Thread(target=_end_with, args=(stdin,), daemon=True).start()
            self.give(export)
        elif go["upstream"]:
            threading.Thread(target=_end_with, args=(stdin,), daemon=True).start()
            assert door is not None
            self.take(path, door.upstream())
        else:
            self.take(path, stdin)
        tell(event="done", received=self.received)

    # -- from the engine --

    def give(self, export: Export) -> None:
        if self.job["oci"]:
            export.whole(self.ping)
        for number in range(self.have, len(self.layers)):
            layer = export.layer(self.layers[number], self.ping)
            below = self.layers[: number + 1]
            config = {
                "architecture": self.job["architecture"],
                "os": self.job["os"],
                "rootfs": {"type": "layers", "diff_ids": below},
            }
            name = f"{PARTIAL}:{chain(below)[7:27]}"
            head = archive(
                json.dumps(config, sort_keys=True).encode(), [export.descriptor(one) for one in below], [name]
            )
            self.send(number, head + _info(_path(layer.digest), layer.size), layer)
        export.whole(self.ping)
        found = [export.descriptor(one) for one in self.layers]
        self.send(len(self.layers), archive(export.config, found, self.job["tags"]), None)
        for one in self.outputs:
            one.send(b'{"end": true}\n')

    def send(self, number: int, head: bytes, layer: Layer | None) -> None:
        size = layer.size if layer else 0
        padding = bytes(-size % 512)
        outputs = [one for one in self.outputs if one.have <= number]
        total = len(head) + size + len(padding) + len(END_OF_ARCHIVE)
        said = json.dumps({"layer": number, "bytes": total}).encode() + b"\n"
        for one in outputs:
            one.send(said + head)
        # Within a frame there is no room for a sign of life.
        if layer is not None:
            for start, length in layer.pieces(lambda: None):
                for one in outputs:
                    one.send_from(layer.fileno, start, length)
        for one in outputs:
            one.send(padding + END_OF_ARCHIVE)

    # -- from who comes before --

    def take(self, path: str, source: io.BufferedReader) -> None:
        self.heard = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()
        before: Load | None = None
        while True:
            line = self._read(source.readline)
            if not line.strip():
                continue
            frame = json.loads(line)
            if "end" in frame:
                for one in self.outputs:
                    one.send(line)
                break
            before = self._frame(frame, line, path, source, before)
        if before is not None:
            before.wait(lambda: None)

    def _frame(
        self, frame: dict[str, Any], line: bytes, path: str, source: io.BufferedReader, before: Load | None
    ) -> Load | None:
        number, left = frame["layer"], frame["bytes"]
        outputs = [one for one in self.outputs if one.have <= number]
        load = Load(path, left, before) if self.have <= number else None
        for one in outputs:
            one.send(line)
        while left:
            block = self._read(lambda: source.read1(min(BLOCK, left)))  # noqa: B023
            left -= len(block)
            self.received += len(block) if load else 0
            for one in outputs:
                one.send(block)
            if load is not None:
                load.write(block)
            self._news()
        if load is None:
            return before
        load.end(self.ping)
        self._news(now=True)
        return load

    def _read(self, how: Any) -> bytes:
        self.reading = True
        data: bytes = how()
        self.heard = time.monotonic()
        self.reading = False
        if not data:
            raise Problem("what sends it the image broke off", AGAIN, neighbour=True)
        return data

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            if self.reading and time.monotonic() - self.heard > SILENCE_S:
                fail(Problem(f"nothing came in for {SILENCE_S:.0f} s", AGAIN, neighbour=True))

    def _news(self, now: bool = False) -> None:
        if now or time.monotonic() - self._told > NEWS_S:
            self._told = time.monotonic()
            tell(event="progress", received=self.received)


def _end_with(stdin: io.BufferedReader) -> None:
    """End when the controller is gone."""
    while stdin.read1(1 << 16):
        pass
    os._exit(1)


def main() -> None:
    stdin: Any = sys.stdin.buffer
    courier = Courier(json.loads(stdin.readline()))
    try:
        courier.run(stdin)
    except Problem as problem:
        fail(problem)
    except Exception as error:
        fail(Problem(f"{type(error).__name__}: {error}"))
    os._exit(0)


if __name__ == "__main__":
    main()
