"""From stamped reads to a `Stream`: HTTP, then events, then deltas. No socket, no clock."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable

from lanes.bench.arrivals import TOKEN_KINDS, Arrivals
from lanes.bench.deltas import Delta, error_message, read_delta
from lanes.bench.http import NotHttp, ResponseReader
from lanes.bench.sse import SseParser
from lanes.bench.stream import Stream
from lanes.bench.tape import Read, Reads

_BODY_LIMIT = 65536
_MESSAGE_LIMIT = 300
TEXT_LIMIT = 400
"""How much of an answer's text is kept, where no more is asked for."""
_FIRST_TEXT_LIMIT = 65536
"""A first delta longer than that is not kept, so that its tokens cannot be counted afterwards."""


_NO_STEP = ("role", "empty")


class Recorder:
    """Take the reads of one answer, then give its `Stream`.

    `answered` is true from `[DONE]` on; `done` when nothing more can come or matter. `redact` takes
    secrets out of what the server says. The first `keep` characters of the answer's text are kept.
    """

    def __init__(self, redact: Callable[[str], str] = str, keep: int = TEXT_LIMIT) -> None:
        self.t0_ns = 0
        self.answered = False
        self.done = False
        self._redact = redact
        self._keep = keep
        self._http = ResponseReader()
        self._sse = SseParser()
        self._body = bytearray()
        # Columns: a tuple for each event costs more than what is done with it.
        self._when: list[int] = []
        self._kinds: list[str] = []
        self._chars: list[int] = []
        self._cumulative: list[int | None] = []
        self._tokens: list[int | None] = []
        self._last: dict[str, Delta] = {}
        self._first_text: str | None = None
        self._text = ""
        self._lags: list[int] = []
        self._reads = 0
        self._at_ns = 0
        self._token_deltas = self._other_steps = 0
        self._merged_reads = 0
        self._failure: tuple[str, str] | None = None
        self._odd: str | None = None
        self._first_doubt_ns = self._last_doubt_ns = 0

    def feed(self, reads: Reads) -> None:
        """Take some reads."""
        for read in reads:
            self._feed(read)

    def _feed(self, read: Read) -> None:
        if self.done:
            return
        self._reads += 1
        self._at_ns = read.at_ns
        if read.kernel:
            self._lags.append(read.read_ns - read.at_ns)
        tokens, events = self._token_deltas, len(self._when)
        try:
            self._take(self._http.feed(read.data), read.at_ns)
        except NotHttp as error:
            self._take(error.body, read.at_ns)
            self._broken(error)
        if self._token_deltas > tokens:
            self._merged_reads += self._token_deltas > tokens + 1
            self._doubt(read, tokens == 0, len(self._when) - events)
        if self._http.complete:
            self.end()

    def end(self, broken: str | None = None, kind: str = "cut") -> None:
        """Take the end of the answer; `broken` says why, where it was not an orderly one."""
        if self.done:
            return
        self.done = True
        if self._http.status == 0:
            self._fail(kind, broken or "the server closed the connection without an answer")
        elif not self.streams:
            self._refused()
        else:
            self._rest()
            whole = self.answered or "finish" in self._last
            if self._failure is None and (not whole or kind == "protocol"):
                why = f" ({broken})" if broken and kind == "cut" else ""
                cut = f"the stream was cut {self._progress()}{why}"
                self._fail(kind, broken if broken and kind != "cut" else cut)

    def stalled(self, waited_s: float) -> None:
        """Take the news that nothing came for `waited_s` seconds that brought the answer on."""
        if self._http.status == 0:
            self.end(f"the server did not answer within {waited_s:g} s", "stall")
        else:
            came = zip(reversed(self._when), reversed(self._kinds), strict=True)
            steps = (at_ns for at_ns, kind in came if kind not in _NO_STEP)
            lively = self._at_ns - self.t0_ns - next(steps, 0) > waited_s / 2 * 1e9
            what = "only signs of life" if lively else "nothing"
            self.end(f"the server stalled: {what} came for {waited_s:g} s {self._progress()}", "stall")

    def close(self) -> None:
        """Let go of what read the answer."""
        self._http.close()

    def stream(self, *, connect_s: float = 0.0, clock_step_ns: int = 0) -> Stream:
        """Return what was recorded."""
        kind, sentence = self._failure or (None, None)
        stamps = "kernel" if len(self._lags) == self._reads else "mixed" if self._lags else "read"
        last = self._last
        return Stream(
            t0_ns=self.t0_ns,
            connect_s=connect_s,
            arrivals=Arrivals(self._when, self._kinds, self._chars, self._cumulative, self._tokens),
            stamps=stamps if self._reads else "read",
            read_lag_s=statistics.median(self._lags) / 1e9 if self._lags else None,
            merged_reads=self._merged_reads,
            clock_step_ns=clock_step_ns,
            doubt_s=max(self._first_doubt_ns, self._last_doubt_ns) / 1e9,
            first_text=self._first_text or "",
            text=self._text,
            usage=last["usage"].usage if "usage" in last else None,
            token_source=last["tokens"].token_source if "tokens" in last else None,
            finish_reason=last["finish"].finish_reason if "finish" in last else None,
            status=self._http.status or None,
            failure=kind,
            error=sentence,
            odd=self._odd,
            server_account=last["timings"].timings if "timings" in last else None,
        )

    @property
    def steps(self) -> int:
        """How many events brought the answer on; keep-alives, empty and role deltas do not."""
        return self._token_deltas + self._other_steps

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream of events; False until its head is known."""
        # Servers name the type of a stream in many ways; only plain JSON is certainly none.
        plain = self._http.headers.get("content-type", "").startswith("application/json")
        return self._http.status == 200 and not plain

    def _take(self, body: bytes, at_ns: int) -> None:
        """Take a piece of the body; after a failure there is nothing to take."""
        if not self.streams:
            if len(self._body) < _BODY_LIMIT:
                self._body += body
            return
        encoding = self._http.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            self._fail("protocol", f"the server compressed its answer ({self._bounded(encoding)}) unasked")
            return
        try:
            for event in self._sse.feed(body):
                self._delta(read_delta(event), at_ns)
                if self.done:
                    return
        except ValueError as error:
            self._broken(error)

    def _doubt(self, read: Read, first: bool, events: int) -> None:
        """Remember by how much the time of the first or (so far) the last token may be late."""
        late_ns = max(read.read_ns - read.at_ns, 0) if read.kernel and events > 1 else 0
        if first:
            self._first_doubt_ns = late_ns
        self._last_doubt_ns = late_ns

    def _delta(self, delta: Delta, at_ns: int) -> None:
        self._arrived(at_ns, delta, len(delta.text), delta.cumulative)
        last = self._last
        self._odd = self._odd or delta.odd
        if delta.usage is not None:
            last["usage"] = delta  # continuous usage is cumulative: the last one counts
        if delta.finish_reason is not None:
            last["finish"] = delta
        if delta.timings is not None:
            last["timings"] = delta
        if delta.token_source is not None:
            last["tokens"] = delta
        if delta.kind in TOKEN_KINDS:
            self._token_deltas += 1
            if self._first_text is None:
                whole = len(delta.text) <= _FIRST_TEXT_LIMIT
                self._first_text = _storable(delta.text) if whole else ""
            if len(self._text) < self._keep:
                self._text += _storable(delta.text[: self._keep - len(self._text)])
        elif delta.kind not in _NO_STEP:
            self._other_steps += 1
        if delta.kind == "done":
            self.answered = True
        elif delta.kind == "error":
            message = self._bounded(delta.error or "")
            self._fail("server", f"the server reported an error {self._progress()}: {message}")

    def _arrived(self, at_ns: int, delta: Delta, chars: int, cumulative: int | None) -> None:
        self._when.append(at_ns - self.t0_ns)
        self._kinds.append(delta.kind)
        self._chars.append(chars)
        self._cumulative.append(cumulative)
        self._tokens.append(delta.tokens)

    def _rest(self) -> None:
        """Take an event that lacks its blank line, if it is whole: some servers forget the last one."""
        event = self._sse.finish()
        if event is not None:
            with contextlib.suppress(ValueError):  # half an event: the stream was cut
                self._delta(read_delta(event), self._at_ns)

    def _refused(self) -> None:
        text = bytes(self._body).decode("utf-8", "replace")
        try:
            message = error_message(json.loads(text))
        except (ValueError, RecursionError):
            message = " ".join(text.split())
        status = self._http.status
        if status == 200 and not message:
            self._fail("protocol", "the server answered at once instead of streaming")
        else:
            said = f": {self._bounded(message)}" if message else ""
            self._fail("status", f"the server answered HTTP {status}{said}")

    def _progress(self) -> str:
        if not self._token_deltas:
            return "before the first token"
        told = zip(self._kinds, self._cumulative, strict=True)
        known = [n for kind, n in told if n is not None and kind in TOKEN_KINDS]
        count, what = (known[-1], "token") if known else (self._token_deltas, "delta")
        return f"after {count} {what}{'s' if count != 1 else ''}"

    def _broken(self, error: ValueError) -> None:
        self._fail("protocol", self._bounded(f"{error}, {self._progress()}"))

    def _bounded(self, message: str) -> str:
        """`message` on one line of bounded length, without secrets and without control characters."""
        message = "".join(c if c.isprintable() else " " for c in message[: 10 * _MESSAGE_LIMIT])
        message = self._redact(" ".join(message.split()))
        return message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 3] + "..."

    def _fail(self, kind: str, sentence: str) -> None:
        self.done = True
        if self._failure is None:
            self._failure = (kind, sentence)


def _storable(text: str) -> str:
    """`text` without the halves of characters, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
