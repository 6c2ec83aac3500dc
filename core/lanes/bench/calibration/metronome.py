"""A server that streams on an exact schedule and keeps what it really sent: the ground truth.

It answers by a `Script` of `lanes.testing.scripts`, with all the habits of real servers, to hundreds
of streams from one thread. Each event is due at a fixed time after the request's last byte reached
this machine; no lateness is carried over to the next one, and what there is is kept. The
script is the metronome's, or the request's own field `script`. It runs as a process of its own::

    with Metronome(Script(ttft_s=0.2, gap_s=0.01)) as metronome:
        ...  # requests to metronome.url
        truth = metronome.truth()

or from a shell, with the truth at `GET /truth`::

    python -m lanes.bench.calibration.metronome --port 8000 --script '{"ttft_s": 0.2, "gap_s": 0.01}'
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import json
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
import httptools

from lanes.bench.transport import ask_for_stamps, stamp
from lanes.errors import LaneError
from lanes.testing.scripts import TEMPLATE_TOKENS, Answer, Script, count_tokens, events, first_s

_MODEL = "metronome"
_READ_BYTES = 262144
_START_S = 20.0
_NEVER_NS = 1 << 62
_INTERRUPTED_NS = 1_000_000


class Sent(NamedTuple):
    """One stream as the server sent it: the request's own field `id`, when its request had reached
    the machine, and of each token-bearing write the time just before it (CLOCK_REALTIME, ns), its
    tokens, how late it was, and how long it took."""

    id: Any
    got_ns: int
    at_ns: tuple[int, ...]
    tokens: tuple[int, ...]
    late_ns: tuple[int, ...]
    took_ns: tuple[int, ...]

    def ttft_error_s(self, seen_ns: int) -> float:
        """Return by how much the first token was seen too early or too late.

        A write that took long was interrupted: the machine ran something else, and nobody knows when
        in that time the bytes went out.
        """
        first_ns = self.at_ns[0]
        last_ns = first_ns + (self.took_ns[0] if self.took_ns[0] > _INTERRUPTED_NS else 0)
        return max(first_ns - seen_ns, seen_ns - last_ns, 0) / 1e9

    @property
    def decode_tps(self) -> float | None:
        """(N - tokens of the first write) / (last write - first write)"""
        span_ns = self.at_ns[-1] - self.at_ns[0] if self.at_ns else 0
        return sum(self.tokens[1:]) / span_ns * 1e9 if span_ns > 0 else None


class Metronome:
    """The metronome as a process of its own, on a free port of the loopback, within a `with` block.

    Raises LaneError when it does not start.
    """

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or Script()
        self._process: subprocess.Popen[str]
        self.url = ""

    def __enter__(self) -> Metronome:
        given = json.dumps(attrs.asdict(self._script))
        argv = [sys.executable, "-m", __name__, "--port", "0", "--script", given, "--leashed"]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _START_S)[0]:
            self._stop()
            raise LaneError(f"the metronome did not start within {_START_S:g} s")
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self._stop()
            raise LaneError("the metronome did not start")
        self.url = line.split()[-1]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def truth(self) -> list[Sent]:
        """Return what was sent since it was last asked, in the order of the requests."""
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.url}/truth") as answer:
            return [_sent(one) for one in json.load(answer)]

    def _stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


def _sent(record: Mapping[str, Any]) -> Sent:
    writes = list(zip(*record["sent"], strict=True)) or [()] * 4
    return Sent(record["id"], record["got_ns"], *map(tuple, writes))


class _Stream:
    """One answer under way: its events in order, the next one always made ready before it is due."""

    def __init__(self, peer: _Peer, body: dict[str, Any], script: Script, got_ns: int) -> None:
        prompt = "".join(_text(m.get("content")) for m in body.get("messages", ()))
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        self.answer = Answer({**body, "max_tokens": limit}, count_tokens(prompt) + TEMPLATE_TOKENS, got_ns)
        self._late_ns: list[int] = []
        self._took_ns: list[int] = []
        self._peer, self.script = peer, script
        self._events = events(script, self.answer, script.cached)
        self._next: tuple[float, int, str | None] | None = None
        self._framed = b""
        self._before_ns = self._shift_ns = 0
        self.starts_ns, self.prefilled_ns = (
            got_ns,
            got_ns + round(first_s(script, self.answer, script.cached) * 1e9),
        )

    def wait_for(self, line_ns: int) -> None:
        """Begin to prefill no earlier than `line_ns`, when those before it have."""
        if self.script.in_line and line_ns > self.starts_ns:
            self._shift_ns = line_ns - self.starts_ns
            self.starts_ns += self._shift_ns
            self.prefilled_ns += self._shift_ns

    @property
    def record(self) -> dict[str, Any]:
        writes = zip(self.answer.sent, self._late_ns, self._took_ns, strict=True)
        sent = [(ns, tokens, late, took) for (ns, tokens), late, took in writes]
        return {"id": self.answer.body.get("id"), "got_ns": self.answer.got_ns, "sent": sent}

    def prepare(self, others_ns: int) -> int | None:
        """Make the next event ready and return when it is due; None when there is none left. Others
        prefill until `others_ns`."""
        self._next = next(self._events, None)
        if self._next is None:
            return None
        due_s, _, data = self._next
        encoded = data.encode() if data is not None else b""
        self._framed = b"%x\r\n%b\r\n" % (len(encoded), encoded) if self.script.chunked else encoded
        due_ns = self.answer.got_ns + round(due_s * 1e9) + (self._shift_ns if due_s else 0)
        if self.answer.sent and others_ns > self._before_ns:
            gap_ns = due_ns - self._before_ns
            slow_ns = min(round(gap_ns * self.script.beside_prefill), others_ns - self._before_ns + gap_ns)
            self._shift_ns += max(slow_ns - gap_ns, 0)
            due_ns = self._before_ns + max(slow_ns, gap_ns)
        self._before_ns = due_ns
        return due_ns

    def write(self, due_ns: int) -> bool:
        """Write the event that is due; False when the connection is cut there."""
        assert self._next is not None
        _, tokens, data = self._next
        if data is None:
            return False
        if tokens:
            now_ns = time.time_ns()
            self.answer.sent.append((now_ns, tokens))
            self._late_ns.append(now_ns - due_ns)
            self._peer.send(self._framed, self.script.packet)
            self._took_ns.append(time.time_ns() - now_ns)
        else:
            self._peer.send(self._framed, self.script.packet)
        return True

    def finish(self) -> bool:
        """End the body; False when only the end of the connection does that."""
        if self.script.chunked:
            self._peer.send(b"0\r\n\r\n")
        return self.script.chunked


def _asked(script: Script, body: Mapping[str, Any]) -> Script:
    """Return `script` with what the request asks for, as vLLM heeds it: token ids, running usage."""
    options = body.get("stream_options")
    running = isinstance(options, dict) and options.get("continuous_usage_stats") and script.usage == "last"
    return attrs.evolve(
        script,
        token_ids=script.token_ids or bool(body.get("return_token_ids")),
        usage="every" if running else script.usage,
    )


def _text(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


class _Peer:
    """One client's connection: requests in, bytes out."""

    def __init__(self, server: _Server, sock: socket.socket) -> None:
        self.sock = sock
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", b""
        self._got_ns = 0
        self._unsent = b""
        self.open = True

    def readable(self) -> None:
        try:
            data, ancillary, _, _ = self.sock.recvmsg(_READ_BYTES, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.close()
            return
        self._got_ns = stamp(ancillary) or time.time_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def writable(self) -> None:
        unsent, self._unsent = self._unsent, b""
        self._server.poll.modify(self.sock.fileno(), select.EPOLLIN)
        self.send(unsent)

    def send(self, data: bytes, packet: int | None = None) -> None:
        if not self.open:
            return
        if self._unsent:
            self._unsent += data
            return
        size = packet or len(data) or 1
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            try:
                sent = self.sock.send(piece)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent < len(piece):
                self._unsent = data[start + sent :]
                self._server.poll.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
                return

    def json(self, value: Any, status: str = "200 OK") -> None:
        content = json.dumps(value).encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self.send(head.encode() + content)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._server.forget(self)
            self.sock.close()

    # httptools calls these.

    def on_url(self, url: bytes) -> None:
        self._path = url
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._server.request(self, self._path.decode("latin-1"), self._body, self._got_ns)


class _Server:
    """One thread, one epoll, one heap of due events."""

    def __init__(self, script: Script, port: int, leashed: bool) -> None:
        self.poll = select.epoll()
        self._script = script
        self._peers: dict[int, _Peer] = {}
        self._streams: list[_Stream] = []
        self._line_ns = 0
        self._prefills: list[_Stream] = []
        self._due: list[tuple[int, int, _Stream, _Peer]] = []
        self._number = 0
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listener.setblocking(False)
        self._leash = sys.stdin.fileno() if leashed else -1
        for fd in (self._listener.fileno(), self._leash):
            if fd >= 0:
                self.poll.register(fd, select.EPOLLIN)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Serve for ever; on a leash, until standard input ends, as it does when the parent dies."""
        poll, listener = self.poll, self._listener.fileno()
        while True:
            due_ns = self._due[0][0] if self._due else _NEVER_NS
            wait_s = min((due_ns - time.time_ns()) / 1e9, 1.0)
            if wait_s > 0:
                # epoll rounds up to milliseconds; select waits for microseconds.
                select.select([poll.fileno()], [], [], wait_s)
            for fd, mask in poll.poll(0):
                if fd == listener:
                    self._accept()
                elif fd == self._leash:
                    return
                else:
                    peer = self._peers[fd]
                    if mask & select.EPOLLOUT:
                        peer.writable()
                    if peer.open and mask & ~select.EPOLLOUT:
                        peer.readable()
            self._beat()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ask_for_stamps(sock)
                self._peers[sock.fileno()] = _Peer(self, sock)
                self.poll.register(sock.fileno(), select.EPOLLIN)

    def forget(self, peer: _Peer) -> None:
        self.poll.unregister(peer.sock.fileno())
        del self._peers[peer.sock.fileno()]

    def _beat(self) -> None:
        """Write all that is due; only then make ready what comes next."""
        now_ns = time.time_ns()
        written: list[tuple[_Stream, _Peer]] = []
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, stream, peer = heapq.heappop(self._due)
            if stream.write(due_ns):
                written.append((stream, peer))
            else:
                peer.close()
        for stream, peer in written:
            self._schedule(stream, peer)

    def _schedule(self, stream: _Stream, peer: _Peer) -> None:
        due_ns = stream.prepare(self._others(stream)) if peer.open else _NEVER_NS
        if due_ns is None:
            if not stream.finish():
                peer.close()
        elif peer.open:
            self._number += 1
            heapq.heappush(self._due, (due_ns, self._number, stream, peer))

    def _others(self, stream: _Stream) -> int:
        """Until when streams prefill beside this one, as far as that is known; 0 when none does, or it does
        not matter."""
        if stream.script.beside_prefill <= 1:
            return 0
        now_ns = time.time_ns()
        self._prefills = [one for one in self._prefills if one.prefilled_ns > now_ns]
        beside = (s.prefilled_ns for s in self._prefills if s is not stream and s.starts_ns <= now_ns)
        return max(beside, default=0)

    def request(self, peer: _Peer, path: str, content: bytes, got_ns: int) -> None:
        try:
            body = json.loads(content) if content else {}
        except ValueError:
            body = {}
        if path == "/truth":
            peer.json([stream.record for stream in self._streams])
            self._streams.clear()
        elif path == "/v1/models":
            models = [{"id": _MODEL, "object": "model", "owned_by": "lanes"}]
            peer.json({"object": "list", "data": models})
        elif path == "/tokenize":
            text = body.get("content") or body.get("prompt", "")
            peer.json({"tokens": [1] * count_tokens(text)})
        elif path != "/v1/chat/completions":
            peer.json({"error": {"message": f"no {path} here"}}, "404 Not Found")
        elif not body.get("stream"):
            message = {"role": "assistant", "content": "lane"}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            peer.json({"object": "chat.completion", "choices": [choice], "usage": usage})
        else:
            self._chat(peer, body, got_ns)

    def _chat(self, peer: _Peer, body: dict[str, Any], got_ns: int) -> None:
        given = body.get("script")
        script = Script(**given) if isinstance(given, dict) else _asked(self._script, body)
        if script.status != 200:
            peer.json({"error": {"message": script.message}}, f"{script.status} Scripted")
            return
        ending = "Transfer-Encoding: chunked" if script.chunked else "Connection: close"
        peer.send(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{ending}\r\n\r\n".encode())
        stream = _Stream(peer, body, script, got_ns)
        stream.wait_for(self._line_ns)
        self._line_ns = max(self._line_ns, stream.prefilled_ns)
        self._prefills.append(stream)
        self._streams.append(stream)
        self._schedule(stream, peer)


def _arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A server that streams on an exact schedule.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--script", type=json.loads, default={}, help="fields of Script, as JSON")
    parser.add_argument("--leashed", action="store_true", help="end when standard input ends")
    return parser.parse_args(argv)


def main() -> None:
    """Serve until the process is ended."""
    given = _arguments()
    server = _Server(Script(**given.script), given.port, given.leashed)
    sys.stdout.write(f"listening on {server.url}\n")
    sys.stdout.flush()
    # A collection of garbage would be a pause in the schedule; nothing here makes cycles.
    gc.disable()
    server.serve()


if __name__ == "__main__":
    main()
