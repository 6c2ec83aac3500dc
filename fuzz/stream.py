"""Bytes as no server should send them, to the reader of streams.

    tox -e fuzz                   # a minute, led by coverage (atheris)
    python fuzz/stream.py 600     # ten minutes
    python fuzz/stream.py FILE    # one input again

`check` holds whatever the bytes are: nothing raises; the same bytes, cut anywhere, are the same stream;
the reader with the short cut records what the plain one does; what a stream without a failure says is
what another reader of the same bytes, which is slow and simple, finds in them; and its figures are finite
numbers. tests/bench/test_fuzz.py calls it too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

with contextlib.ExitStack() as stack:
    if __name__ == "__main__":
        try:
            import atheris

            stack.enter_context(atheris.instrument_imports(include=["lanes.bench"]))
        except ImportError:  # there is no wheel for this Python or this machine
            atheris = None
    from attrs import evolve
    from lanes.bench.cells import cell_result, finished_pass
    from lanes.bench.codec import as_json
    from lanes.bench.measures import first_delta
    from lanes.bench.plan import Cell
    from lanes.bench.recorder import Recorder
    from lanes.bench.shapes import QuickRecorder
    from lanes.bench.stream import Stream
    from lanes.bench.tape import Read, as_reads
    from lanes.bench.validity import Terms, remarks, verdict
    from lanes.testing.scripts import Answer, Script, events

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CELL = Cell(pp=20, tg=8)
TOKEN_KINDS = ("content", "reasoning", "tool")

SCRIPTS = (
    Script(),
    Script(line_end="\r\n", comments=True, usage="every"),
    Script(line_end="\r", role="late", tokens_per_delta=3, token_ids=True),
    Script(reasoning=4, logprobs=True, multi_line=True),
    Script(tool_call=True, role="none", finish="tool_calls", timings=True),
    Script(tail_at_once=True, usage="every", cached=None, total=False),
    Script(done=False, hidden=5, hidden_told=True),
    Script(error_after=3, error_event=True),
    Script(error_after=3, error_form="object"),
    Script(error_after=3, error_form="line"),
    Script(cut_after=3),
    Script(garbage_after=3),
    Script(between='{"choices": []}', early=('{"type": "ping"}', "")),
)


def body(script: Script, tokens: int = CELL.tg) -> list[str]:
    """The writes of a whole answer by `script`."""
    answer = Answer({"max_tokens": tokens}, CELL.pp, 0)
    writes: list[str] = []
    for _, sent, data in events(script, answer, script.cached):
        if data is None:
            break
        if sent:
            answer.sent.append((10_000_000 * len(writes), sent))
        writes.append(data)
    return writes


def framed(writes: Sequence[bytes], chunked: bool) -> list[bytes]:
    """The same with the head of an answer, and in chunks if `chunked`."""
    if not chunked:
        return [PLAIN, *writes]
    return [CHUNKED, *(b"%x\r\n%b\r\n" % (len(w), w) for w in writes if w), b"0\r\n\r\n"]


def read(data: bytes, cuts: Sequence[int], quick: bool = False) -> Stream:
    """Record `data`, cut at `cuts`. The time of a read is the offset of its end."""
    recorder = QuickRecorder() if quick else Recorder()
    edges = sorted({*(cut for cut in cuts if 0 < cut < len(data)), len(data)})
    came = [
        Read(data[start:end], end, end, True) for start, end in itertools.pairwise([0, *edges]) if end > start
    ]
    together = 5 if quick else 1
    for at in range(0, len(came), together):
        recorder.feed(as_reads(came[at : at + together]))
    recorder.end()
    assert recorder.done
    return evolve(recorder.stream(), merged_reads=0, stamps="", read_lag_s=None, doubt_s=0.0)


def check(data: bytes, cuts: Sequence[int]) -> Stream:
    """Raise AssertionError, or what the reader raised, when it does not keep its promises for `data`."""
    bytewise = read(data, range(len(data)))
    edges = sorted({*(cut for cut in cuts if 0 < cut < len(data)), len(data)})
    moved = tuple(a._replace(at_ns=edges[bisect_left(edges, a.at_ns)]) for a in bytewise.arrivals)
    expected = evolve(bytewise, arrivals=moved)
    assert read(data, cuts) == expected, "cut elsewhere, another stream"
    assert read(data, cuts, quick=True) == expected, "the short cut records something else"
    if data.startswith(PLAIN) and bytewise.ok:
        seen = [a for a in bytewise.arrivals if a.kind in TOKEN_KINDS]
        with contextlib.suppress(_Unlike):
            text, counts = _reference(data[len(PLAIN) :])
            assert [(a.at_ns - len(PLAIN), a.chars) for a in seen] == text, "other tokens than there are"
            assert (bytewise.prompt_tokens, bytewise.completion_tokens) == counts, "another usage"
    figures(bytewise)
    return bytewise


def ends_of_writes(data: bytes) -> list[int]:
    """Where a server's writes end, whether they are chunks or not."""
    return [found.end() for found in re.finditer(rb"(?:\n\n|\r\r|\r\n\r\n)(?:\r\n(?!\r))?", data)]


def figures(stream: Stream) -> str | None:
    """Make everything of `stream` that would be stored and shown; return why its cell is invalid."""
    one = finished_pass(CELL, 1, False, [stream], [first_delta(stream)])
    terms = Terms(cell=CELL, passes=1, fixed_length=False, template_tokens=10)
    reason = verdict(terms, [one])
    result = cell_result(CELL, "invalid" if reason else "ok", reason, [one], list(remarks(terms, [one])))
    text = json.dumps(as_json(result), allow_nan=False, ensure_ascii=False)
    text.encode()
    said = [stream.error or "", reason or "", *result.notes]
    assert all(s.isprintable() and len(s) < 600 for s in said), said
    assert all(value >= 0 for value in one.figures.values()), one.figures
    return reason


_LINE = re.compile(rb"\r\n|\n|\r")


class _Unlike(Exception):
    """The bytes hold what the other reader does not understand."""


def _reference(text: bytes) -> tuple[list[tuple[int, int]], tuple[Any, Any]]:
    """(end, characters) of each event that carries tokens, and the last usage, by the letter of the
    standard and with no thought for speed. Raises _Unlike for values of other types than servers send."""
    found: list[tuple[int, int]] = []
    usage: tuple[Any, Any] = (None, None)
    block: list[bytes] = []
    for end, line in _lines(text):
        name, _, value = line.partition(b":")
        if line:
            if name == b"data":
                block.append(value.removeprefix(b" "))
            continue
        data, block = b"\n".join(block).decode("utf-8", "replace"), []
        try:
            chunk = json.loads(data)
        except ValueError:
            continue
        try:
            choice = next(iter(chunk.get("choices") or ()), None) or {}
            said = _said(choice.get("delta") or {})
            told = chunk.get("usage") or {}
            counts = (told.get("prompt_tokens"), told.get("completion_tokens"))
        except (AttributeError, TypeError):
            raise _Unlike from None
        if any(type(n) not in (int, type(None)) or not 0 <= (n or 0) < 2**53 for n in counts):
            raise _Unlike
        if said:
            found.append((end, len(said)))
        usage = usage if counts == (None, None) else counts
    return found, usage


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset after the byte that shows that the line has ended, line); the end of all ends two."""
    start = 0
    text_end = len(text)
    for end in _LINE.finditer(text):
        yield end.start() + 1, text[start : end.start()].removeprefix(b"" if start else b"\xef\xbb\xbf")
        start = end.end()
    yield text_end, text[start:].removeprefix(b"" if start else b"\xef\xbb\xbf")
    yield text_end, b""


def _said(delta: dict[str, Any]) -> str:
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    calls = [call.get("function", {}) for call in delta.get("tool_calls") or ()]
    called = "".join((f.get("name") or "") + (f.get("arguments") or "") for f in calls)
    return (thought + (delta.get("content") or "")) or called


def seeds() -> Iterator[bytes]:
    for script in SCRIPTS:
        writes = [w.encode() for w in body(script)]
        yield b"".join(framed(writes, chunked=False))
        yield b"".join(framed(writes, chunked=True))


def one_input(data: bytes) -> None:
    """The first byte says where the rest is cut: a write a read, or anywhere."""
    if data:
        rest = data[1:]
        lottery = random.Random(data[0])
        anywhere = [lottery.randrange(len(rest) + 1) for _ in range(data[0] % 16)]
        check(rest, ends_of_writes(rest) if data[0] % 2 else anywhere)


def mutated(data: bytes, lottery: random.Random) -> bytes:
    """`data` with a few bytes changed, taken out, put in or repeated."""
    text = bytearray(data)
    for _ in range(lottery.choice((1, 1, 1, 2, 4))):
        at = lottery.randrange(len(text) + 1)
        kind = lottery.randrange(5)
        if kind == 0:
            text[at : at + 1] = bytes([lottery.randrange(256)])
        elif kind == 1:
            del text[at : at + lottery.randint(1, 20)]
        elif kind == 2:
            text[at:at] = lottery.choice((b"\n", b"\r", b"\n\n", b"data: ", b"{", b'"', b"[DONE]", b"1e999"))
        elif kind == 3:
            text[at:at] = text[at : at + lottery.randint(1, 200)]
        else:
            del text[at:]
    return bytes(text)


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else "60"
    if not given.isdigit():
        one_input(Path(given).read_bytes())
        return
    if atheris is None:
        _undirected(float(given))
        return
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            Path(corpus, str(number)).write_bytes(bytes([number]) + seed)
        limits = [f"-max_total_time={given}", "-max_len=8192", "-timeout=10", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *limits, corpus], one_input)
        atheris.Fuzz()


def _undirected(seconds: float) -> None:
    """Without atheris: the same mutations of the same seeds, at random."""
    lottery, tries = random.Random(), 0
    known = list(seeds())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = bytes([lottery.randrange(256)]) + mutated(lottery.choice(known), lottery)
        tries += 1
        try:
            one_input(data)
        except BaseException:
            Path("crash-stream").write_bytes(data)
            raise
    sys.stdout.write(f"{tries} inputs\n")


if __name__ == "__main__":
    main()
