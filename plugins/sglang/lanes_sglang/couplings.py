"""Settings that exclude each other: what SGLang would refuse once every node has started, and what it
does not check at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lanes.types import Finding, Kind, Node, Recipe, Verdict

from lanes_sglang import engram
from lanes_sglang.flags import VERSION, Settings
from lanes_sglang.models import is_deepseek_v4, is_deepseek_v41

_CHECKED = f"SGLang {VERSION} checks it when it starts"
_UNCHECKED = f"SGLang {VERSION} does not check it"

ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO"})
V4_PAGE = 256


def check(recipe: Recipe, settings: Settings, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Findings about the lane's settings, as its whole command line says them."""
    for rule in (_spread, _rendezvous, _chunk, _model, _speculation, _moe, _name):
        yield from rule(recipe, settings)
    yield from _indexer(settings, nodes)
    yield from _allocator(recipe)
    yield from _load_skew(recipe, settings)
    yield from engram.check(recipe, settings, nodes)


def size(settings: Settings, dest: str) -> int:
    """A size of parallelism: 1 where it is not set, or not a number (which is another finding)."""
    return max(settings.number(dest) or 1, 1)


def ranks(settings: Settings) -> int:
    """How many nodes the command line speaks of."""
    return size(settings, "nnodes")


def _spread(_: Recipe, settings: Settings) -> Iterator[Finding]:
    """Tensors, experts, layers and requests over GPUs and nodes."""
    tp, pp, ep, dp, attn_dp = (
        size(settings, dest) for dest in ("tp_size", "pp_size", "ep_size", "dp_size", "attn_dp_size")
    )
    nnodes = ranks(settings)
    if tp % ep:
        yield _no("ep", f"tp_size {tp} is no multiple of ep_size {ep}", _UNCHECKED, f"choose {_divisors(tp)}")
    if (tp * pp) % nnodes:
        yield _no(
            "spread",
            f"tp_size x pp_size = {tp * pp} cannot be split over {nnodes} nodes",
            _CHECKED,
            f"choose a multiple of {nnodes}",
        )
    if dp > 1 and nnodes > 1:
        yield _no(
            "dp-nodes",
            f"dp_size {dp} needs one node, and the lane has {nnodes}",
            _CHECKED,
            "set dp_size to 1, or use one node",
        )
    if tp % attn_dp:
        yield _no(
            "attn-dp",
            f"tp_size {tp} is no multiple of attn_dp_size {attn_dp}",
            _CHECKED,
            f"choose {_divisors(tp)}",
        )


def _rendezvous(_: Recipe, settings: Settings) -> Iterator[Finding]:
    if ranks(settings) > 1 and settings.text("dist_init_addr") is None:
        yield _no(
            "rendezvous",
            f"the lane has {ranks(settings)} nodes and no --dist-init-addr, so each would wait for itself",
            _UNCHECKED,
            'set rendezvous to "auto", or to the head\'s host:port',
        )


def _chunk(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    chunk, page = settings.number("chunked_prefill_size"), settings.number("page_size")
    if page is None and (is_deepseek_v4(recipe) or settings.text("attention_backend") == "dsv4"):
        page = V4_PAGE
    if chunk is not None and page is not None and chunk > 0 and page > 0 and chunk % page:
        yield _no(
            "page-size",
            f"chunked_prefill_size {chunk} is no multiple of the page size {page}",
            _CHECKED,
            f"set it to {max(chunk // page, 1) * page}",
        )


def _model(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    if is_deepseek_v41(recipe) and size(settings, "pp_size") > 1:
        yield _no(
            "pp",
            "DeepSeek V4.1 cannot be split by layers (pp_size)",
            _CHECKED,
            "set pp_size to 1 and raise tp_size",
        )


def _speculation(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    algorithm = settings.text("speculative_algorithm")
    if algorithm is None:
        return
    if is_deepseek_v41(recipe) and algorithm.upper() != "DSPARK":
        yield _no(
            "speculation",
            f"DeepSeek V4.1 drafts with DSPARK only, not with {algorithm}",
            _CHECKED,
            'set speculative_algorithm to "DSPARK", or leave it out',
        )
    elif algorithm.upper() not in ALGORITHMS:
        yield _finding(
            "speculation",
            Verdict.UNKNOWN,
            f"SGLang {VERSION} has no speculative_algorithm {algorithm} of its own",
            f"its parser; it has {', '.join(sorted(ALGORITHMS))}",
            "name one of those, unless your build has it",
        )


def _moe(_: Recipe, settings: Settings) -> Iterator[Finding]:
    backend = settings.text("moe_runner_backend")
    tp, ep = size(settings, "tp_size"), size(settings, "ep_size")
    if backend in ("flashinfer_cutlass", "flashinfer_cutedsl") and ep not in (1, tp):
        yield _no(
            "moe-backend",
            f"moe_runner_backend {backend} takes ep_size 1 or {tp} (tp_size), not {ep}",
            _CHECKED,
            "change ep_size or the backend",
        )


def _name(_: Recipe, settings: Settings) -> Iterator[Finding]:
    name = settings.text("served_model_name")
    if name is not None and ":" in name:
        yield _no(
            "model-name",
            f"SGLang refuses a served name with a colon, such as {name}",
            _CHECKED,
            "rename model.name",
        )


def _indexer(settings: Settings, nodes: Sequence[Node]) -> Iterator[Finding]:
    """SM100, major 12 or gfx95; elsewhere SGLang raises ValueError."""
    if not settings.on("enable_deepseek_v4_fp4_indexer"):
        return
    for node in nodes:
        targets = [gpu.target for gpu in node.gpus or ()]
        verdict = max(map(_fp4_indexer, targets), key=lambda v: v.severity, default=Verdict.UNKNOWN)
        has = ", ".join(sorted({target or "a GPU of which nothing is known" for target in targets}))
        yield Finding(
            question="fp4-indexer",
            verdict=verdict,
            reason=f"the FP4 indexer needs SM100, a GPU of major 12 or gfx95, and {node.name} has {has or 'none known'}",
            source=f"SGLang {VERSION}: --enable-deepseek-v4-fp4-indexer requires SM100, SM120, or gfx95 GPUs",
            engine_version=VERSION,
            next_step=None if verdict is Verdict.RUNNABLE else "leave enable_deepseek_v4_fp4_indexer out",
        )


def _fp4_indexer(target: str | None) -> Verdict:
    if target is None or target == "10.3":  # whether SGLang counts 10.3 as SM100 is not known
        return Verdict.UNKNOWN
    good = target == "10.0" or target.startswith(("12.", "gfx95"))
    return Verdict.RUNNABLE if good else Verdict.UNRUNNABLE


def _allocator(recipe: Recipe) -> Iterator[Finding]:
    if "expandable_segments:true" not in recipe.env.get("PYTORCH_CUDA_ALLOC_CONF", "").lower():
        return
    known = is_deepseek_v41(recipe)
    yield _finding(
        "expandable-segments",
        Verdict.UNRUNNABLE if known else Verdict.UNKNOWN,
        "SGLang computes NaN for DeepSeek V4.1 with expandable_segments:True"
        + ("" if known else ", and nothing is known of other models"),
        "documentation of aidendle94/sparkrun-recipes",
        "take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF",
    )


def _load_skew(recipe: Recipe, settings: Settings) -> Iterator[Finding]:
    """SGLang gives its ranks 480 s between the first that has loaded and the last, and no flag.

    Where the recipe does not say what the ranks read from, nothing is said: that would make every lane
    of several nodes unknown for a risk that most never meet.
    """
    if ranks(settings) < 2 or recipe.model.location is None:
        return
    barrier = f"SGLang {VERSION}, UNBALANCED_MODEL_LOADING_TIMEOUT_S = 480"
    if recipe.model.location == "node":
        yield _finding(
            "load-skew",
            Verdict.RUNNABLE,
            "each node reads the weights from its own disk, so no slow NAS can make a rank miss SGLang's 480 s",
            barrier,
        )
    elif settings.on("weight_loader_prefetch_checkpoints"):
        yield _finding(
            "load-skew",
            Verdict.RUNNABLE,
            "the ranks read the weights over the network with SGLang's prefetch, which is made for that; its 480 s "
            "between the first rank and the last still hold",
            f"{barrier}; sglang#37806",
        )
    else:
        yield _finding(
            "load-skew",
            Verdict.DEGRADED,
            "the ranks map the weights over the network, and SGLang gives up when one is 480 s behind: a slow NAS "
            "(95 min instead of 13) ended a boot so, and the next one came up",
            f"{barrier}; the report on dsv41-flash-1017-4x-sglang, slow-NAS boots",
            "copy the weights to each node, or set weight_loader_prefetch_checkpoints; a boot that failed so is "
            "worth one retry",
        )


def _divisors(number: int) -> str:
    return " or ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def _no(question: str, reason: str, source: str, next_step: str) -> Finding:
    return _finding(question, Verdict.UNRUNNABLE, reason, source, next_step)


def _finding(
    question: str, verdict: Verdict, reason: str, source: str, next_step: str | None = None
) -> Finding:
    return Finding(
        question=question,
        kind=Kind.CONFIGURATION,
        verdict=verdict,
        reason=reason,
        source=source,
        engine_version=VERSION,
        next_step=next_step,
    )
