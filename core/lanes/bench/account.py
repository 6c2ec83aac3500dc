"""The server's own account of its times, made comparable with ours.

The one form known so far is the `timings` block in a stream's last chunk: `prompt_n`, `prompt_ms`,
`predicted_n`, `predicted_ms`, `predicted_per_token_ms`.
"""

from __future__ import annotations

import math

from lanes.bench.stream import Stream


def server_figures(stream: Stream) -> dict[str, float]:
    """Return the server's `prefill_tps` and `decode_tps`, as far as it accounts for them.

    prefill_tps = prompt_n / prompt_ms: from the first prompt batch to the first sampled token, the
    tokens found in the cache left out. Ours starts earlier (the request's first byte is written) and
    ends later (the first delta has arrived), so it holds the HTTP, template and tokenizer work too.

    decode_tps = (predicted_n - 1) / predicted_ms: from the first sampled token to the last one. The
    first token's time belongs to the prompt, and the server's own `predicted_per_token_ms` divides
    by predicted_n - 1 too. Ours runs from the first token's arrival to the last one's: the same
    tokens, the same interval.
    """
    account = stream.server_account or {}
    figures: dict[str, float] = {}
    if account.get("prompt_ms", 0) > 0 and account.get("prompt_n", 0) > 0:
        figures["prefill_tps"] = account["prompt_n"] / account["prompt_ms"] * 1e3
    if account.get("predicted_ms", 0) > 0 and account.get("predicted_n", 0) > 1:
        figures["decode_tps"] = (account["predicted_n"] - 1) / account["predicted_ms"] * 1e3
    return {name: value for name, value in figures.items() if 0 < value < math.inf}
