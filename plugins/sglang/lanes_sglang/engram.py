"""Engram's budget of ids against the batches of a lane.

DeepSeek V4.1's Engram looks up 2 x 12 ids for each token of a batch, and the build that serves it on
Sparks has room for SPARK_ENGRAM_MAX_IDS of them. SGLang does not compare the two: a lane whose chunk is
too large boots for half an hour and dies on the first long prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lanes.types import Finding, Kind, Node, Recipe, Verdict

from lanes_sglang.flags import Settings
from lanes_sglang.models import is_deepseek_v41

VARIABLE = "SPARK_ENGRAM_MAX_IDS"
IDS_PER_TOKEN = 24
DEFAULT_BUDGET = 262_144
PAGE = 256

_REPORT = "the report on dsv41-flash-1017-4x-sglang (2026-10-18): 190608 ids exceeded 131072"
_LAUNCHER = "aidendle94/sparkrun-recipes: max(chunk, max running x 8) x 32"


def check(recipe: Recipe, settings: Settings, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Two questions, since one half may be known and the other not."""
    if VARIABLE not in recipe.env and not (is_deepseek_v41(recipe) and _may_be_sparks(nodes)):
        return
    raw = recipe.env.get(VARIABLE, str(DEFAULT_BUDGET))
    if not raw.isdecimal():
        yield _finding(
            "engram-prefill",
            Verdict.UNRUNNABLE,
            f"{VARIABLE} is {raw!r}, not a whole number",
            f'set {VARIABLE} = "{advised(settings, nodes) or DEFAULT_BUDGET}" under [env]',
        )
        return
    yield _prefill(int(raw), settings, nodes)
    yield _decode(int(raw), settings, nodes)


def _may_be_sparks(nodes: Sequence[Node]) -> bool:
    # SGLang's own releases have no such budget: elsewhere than on Sparks it counts when it is set.
    targets = [gpu.target for node in nodes for gpu in node.gpus or ()]
    return not targets or any(target in (None, "12.1") for target in targets)


def chunk_of(settings: Settings, nodes: Sequence[Node]) -> int | None:
    """Tokens of a prompt in one batch; None where that cannot be told.

    Where it is not set, SGLang 0.5.23 goes by the GPU's memory.
    """
    if "chunked_prefill_size" in settings.values:
        chunk = settings.number("chunked_prefill_size")
        return chunk if chunk is not None and chunk > 0 else None
    memories = {gpu.memory_bytes for node in nodes for gpu in node.gpus or ()}
    known = [memory for memory in memories if memory is not None]
    if not known or len(known) < len(memories):
        return None
    chunks = {_by_memory(memory / 10**9) for memory in known}
    return chunks.pop() if len(chunks) == 1 else None


def _by_memory(gigabytes: float) -> int:
    return next((c for limit, c in ((20, 2048), (60, 4096), (160, 8192)) if gigabytes < limit), 16384)


def advised(settings: Settings, nodes: Sequence[Node] = ()) -> int | None:
    """The budget that upstream's launcher would set; None where the chunk cannot be told."""
    chunk = chunk_of(settings, nodes)
    return None if chunk is None else max(chunk, (settings.number("max_running_requests") or 0) * 8) * 32


def _prefill(budget: int, settings: Settings, nodes: Sequence[Node]) -> Finding:
    question = "engram-prefill"
    chunk = chunk_of(settings, nodes)
    most = budget // IDS_PER_TOKEN
    if chunk is None:
        return _finding(
            question,
            Verdict.UNKNOWN,
            f"{VARIABLE}={budget} has room for a chunk of {most:,} tokens, and the lane's chunk cannot be told",
            f"set chunked_prefill_size to {max(most // PAGE, 1) * PAGE} or less",
        )
    needed = IDS_PER_TOKEN * chunk
    if needed <= budget:
        return _finding(
            question,
            Verdict.RUNNABLE,
            f"a chunk of {chunk:,} tokens looks up at most {needed:,} Engram ids, {VARIABLE} allows {budget:,}",
        )
    smaller = f", or chunked_prefill_size to {most // PAGE * PAGE}" if most >= PAGE else ""
    return _finding(
        question,
        Verdict.UNRUNNABLE,
        f"a chunk of {chunk:,} tokens looks up as many as {needed:,} Engram ids, {VARIABLE} allows {budget:,}, "
        "and SGLang dies on the first prompt that fills it",
        f'set {VARIABLE} = "{advised(settings, nodes)}" under [env]{smaller}',
    )


def _decode(budget: int, settings: Settings, nodes: Sequence[Node]) -> Finding:
    question = "engram-decode"
    running, drafted = settings.number("max_running_requests"), _drafted(settings)
    if drafted is None or running is None:
        unknown = "how many requests may run" if running is None else "how many tokens are drafted at once"
        most = budget // (IDS_PER_TOKEN * (drafted + 1)) if drafted is not None else None
        room = "" if most is None else f", with room for {most:,} requests of {(drafted or 0) + 1} tokens"
        return _finding(
            question,
            Verdict.UNKNOWN,
            f"{unknown} is SGLang's choice, so nobody knows what decoding needs (inferred from prefill) of "
            f"{VARIABLE}={budget}{room}",
            "set max_running_requests" if running is None else "set speculative_dspark_block_size",
        )
    needed = IDS_PER_TOKEN * running * (drafted + 1)
    reason = (
        f"{running} requests of {drafted + 1} tokens each look up as many as {needed:,} Engram ids "
        f"(inferred from prefill), {VARIABLE} allows {budget:,}"
    )
    if needed <= budget:
        return _finding(question, Verdict.RUNNABLE, reason)
    value = max(advised(settings, nodes) or 0, needed)
    return _finding(
        question,
        Verdict.UNRUNNABLE,
        reason,
        f'set {VARIABLE} = "{value}" under [env], or max_running_requests to '
        f"{max(budget // (IDS_PER_TOKEN * (drafted + 1)), 1)}",
    )


def _drafted(settings: Settings) -> int | None:
    """Tokens drafted for one request and step; None where the checkpoint decides."""
    return (
        settings.number("speculative_dspark_block_size")
        if settings.text("speculative_algorithm") is not None
        else 0
    )


def _finding(question: str, verdict: Verdict, reason: str, next_step: str | None = None) -> Finding:
    return Finding(
        question=question,
        kind=Kind.CONFIGURATION,
        verdict=verdict,
        reason=reason,
        source=f"{_REPORT}; {_LAUNCHER}",
        next_step=next_step,
    )
