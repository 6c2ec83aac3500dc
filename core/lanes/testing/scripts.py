"""What a scripted server streams, and when: scripts turned into timed events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from attrs import define, field, frozen

TEMPLATE_TOKENS = 10
"""What the server's make-believe chat template adds to a prompt."""

_TOKEN = re.compile(r"[A-Za-z]{1,7}|\d{1,3}|[^\sA-Za-z\d]")


@frozen(kw_only=True)
class Script:
    """How to answer. Times are in seconds; the first delta is due `ttft_s` after the request was
    read, each later one `gap_s` after the one before. Numbers called `..._after` count tokens; an
    answer that is not longer than that comes to its end."""

    ttft_s: float = 0.0
    gap_s: float = 0.0
    tokens: int | None = None
    """Tokens of the answer; None is as many as were asked for."""
    tokens_per_delta: int = 1
    first_delta: int | None = None
    """Tokens of the first delta, where it differs from the others."""
    role: Literal["early", "late", "none"] = "early"
    word: str = "lane "
    """The text of a token."""
    prefill_tps: float | None = None
    """The first delta is due so much later as the tokens that are not cached take at this rate."""
    in_line: bool = False
    """A prefill begins when those before it have ended. The metronome heeds it."""
    beside_prefill: float = 1.0
    """A token that is begun while another stream prefills takes so many times as long, or until that prefill
    has ended. The metronome heeds it."""
    early: tuple[str, ...] = ()
    """Data of events that are sent at once."""
    between: str | None = None
    """Data of an event that is sent right after each delta."""
    reasoning: int = 0
    """So many of the first tokens are reasoning."""
    hidden: int = 0
    """So many tokens of reasoning come before the first delta, take their time, and are not streamed."""
    hidden_told: bool = False
    """The usage tells how many those were."""
    tool_call: bool = False
    usage: Literal["last", "every", "none"] = "last"
    total: bool = True
    """The usage has a sum."""
    cached: int | None = 0
    """Cached tokens in the usage; None is not told."""
    prefix_cache: bool = False
    """Count as cached what an earlier prompt began with."""
    token_ids: bool = False
    logprobs: bool = False
    timings: bool = False
    line_end: str = "\n"
    comments: bool = False
    multi_line: bool = False
    """The data of an event in several lines, cut after its commas."""
    packet: int | None = None
    """Write in pieces of so many bytes."""
    tail_at_once: bool = False
    """The last delta, finish, usage and [DONE] in one write."""
    tail_s: float = 0.0
    """A pause between the last delta and what follows it."""
    finish: str | None = "length"
    done: bool = True
    chunked: bool = True
    """False: the end of the connection ends the answer."""
    cut_after: int | None = None
    error_after: int | None = None
    error_event: bool = False
    error_form: Literal["error", "object", "line", "words"] = "error"
    """`{"error": ...}`, the bare `{"object": "error", ...}`, the first without `data:`, or no JSON."""
    garbage_after: int | None = None
    stall_after: int | None = None
    status: int = 200
    message: str = "the script says so"
    refuses: tuple[str, ...] = ()
    """Fields that are answered with HTTP 400: `seed`, or `stream_options.continuous_usage_stats`."""
    usage_lies: int = 0
    """Added to the completion tokens of the usage."""
    template: int = TEMPLATE_TOKENS
    """What the chat template adds to a prompt."""


@define
class Answer:
    """What the server got and really sent: `sent` holds, for each token-bearing write, the time just
    before it (CLOCK_REALTIME, ns) and its tokens."""

    body: dict[str, Any]
    prompt_tokens: int
    got_ns: int
    sent: list[tuple[int, int]] = field(factory=list)


def count_tokens(text: str) -> int:
    """Return the tokens in `text` by the server's make-believe tokenizer."""
    return len(_TOKEN.findall(text))


def events(script: Script, answer: Answer, cached: int | None) -> Iterator[tuple[float, int, str | None]]:
    """Yield (seconds after the request, tokens in it, what to write); None cuts the connection."""
    total = script.tokens if script.tokens is not None else int(answer.body.get("max_tokens", 16))
    habits = {name: getattr(script, f"{name}_after") for name in ("cut", "error", "garbage", "stall")}
    # What happens after more tokens than are asked for does not happen.
    stop, habit = min(((n, name) for name, n in habits.items() if n is not None), default=(total, None))
    stop, habit = (stop, habit) if stop < total else (total, None)
    write = _Writer(script, answer, cached)
    if script.comments:
        yield 0.0, 0, f": ping{script.line_end}{script.line_end}"
    if script.role == "early":
        yield 0.0, 0, write.chunk({"role": "assistant", "content": ""}, 0)
    for data in script.early:
        yield 0.0, 0, write.event(data)
    due_s, sent, last = first_s(script, answer, cached), 0, ""
    if script.role == "late":
        yield due_s, 0, write.chunk({"role": "assistant", "content": None}, 0)
    while sent < stop:
        size = script.first_delta if script.first_delta and not sent else script.tokens_per_delta
        size = min(size, stop - sent)
        if sent:
            due_s += script.gap_s
        last = write.delta(sent, size) + (write.event(script.between) if script.between else "")
        sent += size
        if sent < stop or not script.tail_at_once:
            yield due_s, size, last
    if habit == "cut":
        yield due_s, 0, None
    elif habit == "stall":
        yield due_s + 3600, 0, None
    elif habit == "garbage":
        yield due_s, 0, write.event('{"choices": [{"del')
    elif habit == "error":
        yield due_s, 0, write.error()
    else:
        tail = write.tail(sent)
        if script.tail_at_once:
            yield due_s, script.tokens_per_delta, last + tail
        else:
            yield due_s + script.tail_s, 0, tail


def first_s(script: Script, answer: Answer, cached: int | None) -> float:
    """Return when the first delta is due, in seconds after the request."""
    due_s = script.ttft_s + script.hidden * script.gap_s
    if script.prefill_tps:
        due_s += (answer.prompt_tokens - (cached or 0)) / script.prefill_tps
    return due_s


class _Writer:
    """The text of events in the script's style."""

    def __init__(self, script: Script, answer: Answer, cached: int | None) -> None:
        self._script, self._answer, self._cached = script, answer, cached
        self._head = {
            "id": f"chatcmpl-{answer.got_ns:032x}",
            "object": "chat.completion.chunk",
            "created": answer.got_ns // 1_000_000_000,
            "model": answer.body.get("model"),
        }

    def event(self, data: str, kind: str | None = None) -> str:
        end = self._script.line_end
        head = f"event: {kind}{end}" if kind else ""
        ping = f": keep-alive{end}" if self._script.comments else ""
        if self._script.multi_line:
            data = data.replace(", ", f",{end}data: ")
        return f"{ping}{head}data: {data}{end}{end}"

    def error(self) -> str:
        script = self._script
        error: dict[str, Any] = {"message": script.message, "code": 500}
        value = {"object": "error", **error} if script.error_form == "object" else {"error": error}
        if script.error_form == "line":
            return json.dumps(value) + script.line_end * 2
        data = script.message if script.error_form == "words" else json.dumps(value)
        return self.event(data, "error" if script.error_event else None)

    def chunk(self, delta: dict[str, Any], sent: int, finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
        value: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._script.usage == "every":
            value["usage"] = self._usage(sent)
        return self.event(json.dumps(value))

    def delta(self, sent: int, size: int) -> str:
        text = self._script.word * size
        more: dict[str, Any] = {}
        if self._script.token_ids:
            more["token_ids"] = list(range(size))
        if self._script.logprobs:
            more["logprobs"] = {"content": [{"token": self._script.word, "logprob": -0.1}] * size}
        if sent < self._script.reasoning:
            # Both names at once, as some servers do.
            delta: dict[str, Any] = {"reasoning_content": text, "reasoning": text}
        elif self._script.tool_call:
            function = {"arguments": text} if sent else {"name": "look", "arguments": text}
            delta = {"tool_calls": [{"index": 0, "function": function}]}
        else:
            delta = {"content": text}
        return self.chunk(delta, sent + size, **more)

    def tail(self, sent: int) -> str:
        script, parts = self._script, []
        if script.finish:
            parts.append(self.chunk({}, sent, script.finish))
        if script.usage != "none":
            value: dict[str, Any] = {"choices": [], "usage": self._usage(sent)}
            if script.timings:
                value["timings"] = self._timings(sent)
            parts.append(self.event(json.dumps(value)))
        if script.done:
            parts.append(self.event("[DONE]"))
        return "".join(parts)

    def _usage(self, sent: int) -> dict[str, Any]:
        script = self._script
        completion = sent + script.hidden + script.usage_lies
        prompt = self._answer.prompt_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "prompt_tokens_details": None if self._cached is None else {"cached_tokens": self._cached},
        }
        if script.total:
            usage["total_tokens"] = prompt + completion
        if script.hidden_told:
            usage["completion_tokens_details"] = {"reasoning_tokens": script.hidden}
        return usage

    def _timings(self, sent: int) -> dict[str, float]:
        times = [ns for ns, _ in self._answer.sent]
        return {
            "prompt_n": self._answer.prompt_tokens - (self._cached or 0),
            "prompt_ms": (times[0] - self._answer.got_ns) / 1e6,
            "predicted_n": sent,
            "predicted_ms": (times[-1] - times[0]) / 1e6,
        }
