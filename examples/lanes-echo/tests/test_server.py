"""The echo server as a real process: what it answers, and how it fails when it is told to."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Running:
    """A started server, and requests to it."""

    def __init__(self, *arguments: str) -> None:
        argv = [sys.executable, "-P", "-m", "lanes_echo.server", "--port", "0", *arguments]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()
        self.port = int(self.first_line.rsplit(":", 1)[1])

    def ask(self, path: str, body: Any = None, wait_s: float = 30) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=wait_s)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("GET" if data is None else "POST", path, data)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def chat(self, words: str = "one two three", **about: Any) -> tuple[int, bytes]:
        request = {"messages": [{"role": "user", "content": words}], **about}
        return self.ask("/v1/chat/completions", request)

    def events(self, words: str = "one two three", **about: Any) -> list[Any]:
        about = {"stream": True, "stream_options": {"include_usage": True}, **about}
        _, body = self.chat(words, **about)
        lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def until_ready(self) -> Running:
        deadline = time.monotonic() + 30
        while self.ask("/health")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[Running] = []

    def begin(*arguments: str) -> Running:
        servers.append(Running(*arguments))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.communicate()


def text(events: list[Any]) -> str:
    return "".join(c["delta"].get("content", "") for event in events for c in event["choices"])


def test_it_echoes_and_counts(start: Start) -> None:
    server = start("--load-seconds", "0").until_ready()
    events = server.events()
    assert text(events) == "one two three"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert [events[-1]["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] == [3, 3, 6]
    assert server.events(max_tokens=2)[-2]["choices"][0]["finish_reason"] == "length"
    assert text(server.events(max_tokens=5, ignore_eos=True)) == "one two three one two"
    assert "usage" not in server.events(stream_options=None)[-1]
    status, body = server.chat()
    assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == "one two three"
    assert len(json.loads(server.ask("/tokenize", {"content": "a b a"})[1])["tokens"]) == 3


def test_it_keeps_its_pace(start: Start) -> None:
    rates = ("--tokens-per-second", "100", "--prefill-tokens-per-second", "10")
    server = start("--load-seconds", "0", *rates).until_ready()
    began = time.monotonic()
    server.events(max_tokens=21, ignore_eos=True)
    # 3 words at 10 a second, then 20 gaps of 10 ms.
    assert 0.5 <= time.monotonic() - began < 5


def test_while_it_loads_it_says_so(start: Start) -> None:
    server = start("--never-healthy", "--load-seconds", "0.01")
    for _ in range(5):
        assert server.ask("/health")[0] == server.chat()[0] == 503
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        ({"messages": "hi"}, 400),
        ({"messages": []}, 400),
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}, 400),
        ({"messages": [{"role": "user", "content": "hi"}], "model": "other"}, 404),
    ],
)
def test_a_bad_request_is_refused(start: Start, body: Any, status: int) -> None:
    answered, said = start("--load-seconds", "0").until_ready().ask("/v1/chat/completions", body)
    assert answered == status and json.loads(said)["error"]["message"]


def test_more_requests_than_slots_wait(start: Start) -> None:
    server = start("--load-seconds", "0", "--parallel", "1", "--tokens-per-second", "20").until_ready()
    connections = []
    for _ in range(2):
        connections.append(http.client.HTTPConnection("127.0.0.1", server.port))
        request = {"messages": [{"role": "user", "content": "x " * 100}], "stream": True}
        connections[-1].request("POST", "/v1/chat/completions", json.dumps(request))
    deadline = time.monotonic() + 30
    while b"echo:waiting 1\necho:running 1\n" not in server.ask("/metrics")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for connection in connections:
        connection.close()


def test_it_dies_when_told_to(start: Start) -> None:
    assert start("--die-while-loading", "--load-seconds", "0.05").process.wait(30) == 3
    server = start("--load-seconds", "0", "--die-after-tokens", "2").until_ready()
    with pytest.raises((http.client.HTTPException, OSError)):
        server.chat(stream=True)
    assert server.process.wait(30) == 7


def test_it_fails_when_told_to(start: Start) -> None:
    cut = start("--load-seconds", "0", "--cut-stream-after", "2").until_ready()
    with pytest.raises(http.client.IncompleteRead) as error:
        cut.chat(stream=True)
    assert b'" two"' in error.value.partial and b'" three"' not in error.value.partial
    failing = start("--load-seconds", "0", "--status-500-after", "1").until_ready()
    assert [failing.chat()[0] for _ in range(3)] == [200, 500, 500]
    stalled = start("--load-seconds", "0", "--stall-stream-after", "1").until_ready()
    with pytest.raises(TimeoutError):
        request = {"messages": [{"role": "user", "content": "a b"}], "stream": True}
        stalled.ask("/v1/chat/completions", request, wait_s=0.3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once_even_in_a_stream(start: Start, number: int) -> None:
    server = start("--load-seconds", "0", "--tokens-per-second", "1").until_ready()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    request = {"messages": [{"role": "user", "content": "x " * 100}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(request))
    connection.getresponse()
    server.process.send_signal(number)
    assert server.process.wait(30) == 0
    connection.close()


def test_it_may_ignore_a_stop(start: Start) -> None:
    server = start("--ignore-stop", "--load-seconds", "0").until_ready()
    server.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.3)
    assert server.ask("/health")[0] == 200


def test_a_taken_port_is_one_sentence(start: Start) -> None:
    taken = str(start().port)
    argv = [sys.executable, "-P", "-m", "lanes_echo.server", "--port", taken]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert second.stderr.startswith(f"echo: error: cannot listen on 127.0.0.1:{taken}: ")
    assert "Traceback" not in second.stderr
