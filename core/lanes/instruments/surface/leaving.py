"""Does a request that its client left go on working?"""

from __future__ import annotations

import re
import time

from lanes.instruments.asking import Exchange
from lanes.instruments.surface.checks import Found, Server, broken, supported, unknown

_MOST_TOKENS = 4096
_LEFT_AFTER = 3
"""Events of a stream after which the client goes away."""
_ROUNDS = 8
_READ = 20
"""A short prompt may take as long as so many tokens."""
_REST_S = 0.5
"""In which a server notices that its client left."""
_SETTLE_S = 5.0
_HANG_S = 30.0
_LEAST_S = 1.0
_SLOWER = 5.0
_NOT_FREE = "slots are not given free"


def cancel(server: Server) -> Found:
    """Leave long streams, and look whether the server still works on them: by its own gauge of running
    requests where it has one, else by how soon a short request is answered."""
    alone_s = server.good(server.chat("Hello", max_tokens=2)).seconds
    slow_s = max(_LEAST_S, _SLOWER * alone_s)
    tokens = min(_MOST_TOKENS, (server.context or 2 * _MOST_TOKENS) // 2)
    one = server.good(_leave(server, tokens))
    if not one.left:
        return unknown("the stream ended before it could be left")
    # What was left would have gone on so long.
    rate = len(one.chunks) / max(one.seconds, 1e-3)
    would_s = tokens / max(rate, 1e-3)
    if found := _answers(server, 1, alone_s, slow_s):
        return found
    if (running := _running(server)) is not None:
        deadline = time.monotonic() + _SETTLE_S
        while running and time.monotonic() < deadline:
            time.sleep(0.2)
            running = _running(server)
        if running:
            return broken(
                f"{_SETTLE_S:g} s after its client left, {running:g} request(s) still run by /metrics"
            )
        return supported("nothing runs any more by /metrics")
    for _ in range(_ROUNDS - 1):
        again = _leave(server, tokens)
        if not again.left:
            return broken(f"{_NOT_FREE}: a later one is not streamed any more ({again.error or 'it ended'})")
    if found := _answers(server, _ROUNDS, alone_s, slow_s):
        return found
    if would_s < 2 * slow_s:
        return unknown("answers are too quick to tell")
    return supported(f"after {_ROUNDS} that were left, a short request is answered as soon as before")


def _leave(server: Server, tokens: int) -> Exchange:
    fixed = server.ask.endpoint.dialect.fixed_length
    few_s = server.ask.allowance_s(_LEFT_AFTER + _READ)
    return server.chat(
        "Tell a long story about a river.",
        max_tokens=tokens,
        stream=True,
        leave=lambda one: len(one.chunks) >= _LEFT_AFTER,
        patience_s=_HANG_S + few_s,
        **fixed,
    )


def _answers(server: Server, rounds: int, alone_s: float, slow_s: float) -> Found | None:
    time.sleep(_REST_S)
    one = server.chat("Hello", max_tokens=2, patience_s=max(_HANG_S, slow_s))
    what = "a request was" if rounds == 1 else f"{rounds} requests were"
    if one.trouble == "hang":
        why = "nothing is answered any more" if rounds == 1 else _NOT_FREE
        return broken(f"after {what} left by the client, {why}: {one.error}")
    if not one.ok:
        return broken(f"after {what} left by the client, the next one fails: {one.error}")
    if one.seconds > slow_s:
        return broken(
            f"after {what} left by the client, {_NOT_FREE}: "
            f"a short request took {one.seconds:.1f} s instead of {alone_s:.1f} s"
        )
    return None


def _running(server: Server) -> float | None:
    """The server's own gauge of requests that run, where it has one."""
    dialect = server.ask.endpoint.dialect
    name = dialect.metrics.get("running")
    if name is None or dialect.metrics_path is None:
        return None
    text = server.ask.get(dialect.metrics_path).text
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})?\s+([\d.eE+]+)", text, re.MULTILINE)
    return sum(map(float, found)) if found else None
