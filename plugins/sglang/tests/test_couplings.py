"""Settings that exclude each other are found before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from lanes.types import Finding, Gpu, Kind, Lane, Model, Node, Verdict
from lanes_sglang import arguments, couplings, flags

LaneOf = Callable[..., Lane]
V41 = Model(name="DeepSeek-V4.1-Flash-1017", repo="deepseek-ai/DeepSeek-V4.1-Flash-1017")


def findings(lane: Lane, nodes: Sequence[Node]) -> dict[str, Finding]:
    assert lane.recipe is not None
    words = arguments.flags(
        lane, rank=0, ranks=lane.recipe.nodes, port="30000", rendezvous="head:20000", host=None
    )
    found = list(couplings.check(lane.recipe, flags.read(words), nodes))
    return {finding.question: finding for finding in found}


def test_the_reports_lane_has_no_contradiction(seed_lane: LaneOf, sparks: list[Node]) -> None:
    found = findings(seed_lane(), sparks)
    assert {question: finding.verdict for question, finding in found.items()} == {
        "load-skew": Verdict.DEGRADED,
        "engram-prefill": Verdict.RUNNABLE,
        "engram-decode": Verdict.UNKNOWN,
    }
    assert "49,152" in found["engram-prefill"].reason and "65,536" in found["engram-prefill"].reason


def test_the_reports_crash_is_foretold(seed_lane: LaneOf, sparks: list[Node]) -> None:
    lane = seed_lane(chunked_prefill_size="8192", **{"env.SPARK_ENGRAM_MAX_IDS": '"131072"'})
    finding = findings(lane, sparks)["engram-prefill"]
    assert finding.verdict is Verdict.UNRUNNABLE and finding.kind is Kind.CONFIGURATION
    assert "196,608" in finding.reason and "131,072" in finding.reason
    assert finding.next_step is not None
    assert 'SPARK_ENGRAM_MAX_IDS = "262144"' in finding.next_step and "5376" in finding.next_step
    assert 24 * 5376 <= 131072 < 24 * (5376 + 256)


def test_the_budget_it_advises_suffices(seed_lane: LaneOf, sparks: list[Node]) -> None:
    lane = seed_lane(chunked_prefill_size="8192", **{"env.SPARK_ENGRAM_MAX_IDS": '"262144"'})
    assert findings(lane, sparks)["engram-prefill"].verdict is Verdict.RUNNABLE


@pytest.mark.parametrize(
    ("options", "prefill", "decode"),
    [
        ({"chunked_prefill_size": 2048}, Verdict.RUNNABLE, Verdict.UNKNOWN),
        ({"chunked_prefill_size": -1}, Verdict.UNKNOWN, Verdict.UNKNOWN),
        # By the memory of a Spark SGLang takes 8192, and 24 x 8192 are too many.
        ({}, Verdict.UNRUNNABLE, Verdict.UNKNOWN),
        ({"chunked_prefill_size": 2048, "max_running_requests": 455}, Verdict.RUNNABLE, Verdict.RUNNABLE),
        ({"chunked_prefill_size": 2048, "max_running_requests": 456}, Verdict.RUNNABLE, Verdict.UNRUNNABLE),
    ],
)
def test_prefill_and_decode_are_two_questions(
    lane_of: LaneOf, sparks: list[Node], options: dict[str, int], prefill: Verdict, decode: Verdict
) -> None:
    speculation: dict[str, Any] = {
        "speculative_algorithm": "DSPARK",
        "speculative_dspark_block_size": 5,
    }
    lane = lane_of(model=V41, env={"SPARK_ENGRAM_MAX_IDS": "65536"}, **speculation, **options)
    found = findings(lane, sparks)
    assert (found["engram-prefill"].verdict, found["engram-decode"].verdict) == (prefill, decode)
    assert "inferred" in found["engram-decode"].reason


def test_a_block_that_the_checkpoint_chooses_is_unknown(lane_of: LaneOf, sparks: list[Node]) -> None:
    lane = lane_of(model=V41, speculative_algorithm="DSPARK", max_running_requests=8)
    assert findings(lane, sparks)["engram-decode"].verdict is Verdict.UNKNOWN


def test_the_default_budget_counts_on_sparks(lane_of: LaneOf, sparks: list[Node]) -> None:
    lane = lane_of(model=V41, chunked_prefill_size=16384)
    assert "262,144" in findings(lane, sparks)["engram-prefill"].reason
    assert "engram-prefill" not in findings(lane_of(chunked_prefill_size=16384), sparks), "no Engram"
    h200 = attrs.evolve(sparks[0], gpus=(Gpu(name="H200", target="9.0"),))
    assert "engram-prefill" not in findings(lane, [h200]), "SGLang's own releases have no such budget"


def test_a_budget_that_is_no_number(lane_of: LaneOf, sparks: list[Node]) -> None:
    lane = lane_of(model=V41, env={"SPARK_ENGRAM_MAX_IDS": "64K"}, chunked_prefill_size=2048)
    finding = findings(lane, sparks)["engram-prefill"]
    assert finding.verdict is Verdict.UNRUNNABLE and '"65536"' in (finding.next_step or "")


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("ep", {"tp_size": 4, "ep_size": 3}),
        ("spread", {"nodes": 3, "tp_size": 4}),
        ("dp-nodes", {"nodes": 2, "tp_size": 2, "dp_size": 2}),
        ("attn-dp", {"tp_size": 4, "attn_dp_size": 3}),
        ("rendezvous", {"nodes": 2, "tp_size": 2, "rendezvous": ""}),
        ("rendezvous", {"extra_args": ("--nnodes", "2"), "tp_size": 2}),
        ("page-size", {"page_size": 64, "chunked_prefill_size": 2000}),
        ("page-size", {"attention_backend": "dsv4", "chunked_prefill_size": 2000}),
        ("page-size", {"model": V41, "chunked_prefill_size": 2000}),
        ("pp", {"model": V41, "pp_size": 2}),
        ("speculation", {"model": V41, "speculative_algorithm": "EAGLE"}),
        ("moe-backend", {"moe_runner_backend": "flashinfer_cutlass", "tp_size": 4, "ep_size": 2}),
        ("model-name", {"model": Model(name="a:b", repo="a/b")}),
        (
            "expandable-segments",
            {"model": V41, "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        ),
    ],
)
def test_what_excludes_itself_is_told(
    lane_of: LaneOf, sparks: list[Node], question: str, options: dict[str, Any]
) -> None:
    finding = findings(lane_of(**options), sparks)[question]
    assert finding.verdict is Verdict.UNRUNNABLE and finding.kind is Kind.CONFIGURATION
    assert finding.next_step and finding.source


@pytest.mark.parametrize(
    "options",
    [
        {"tp_size": 4, "ep_size": 2, "nodes": 4},
        {"tp_size": 2, "pp_size": 2, "nodes": 4},
        {"nodes": 2, "tp_size": 2, "rendezvous": "10.0.0.1:5000"},
        {"extra_args": ("--nnodes", "2", "--dist-init-addr", "10.0.0.1:5000"), "tp_size": 2},
        {"moe_runner_backend": "flashinfer_cutlass", "tp_size": 4, "ep_size": 4},
        {"page_size": 64, "chunked_prefill_size": -1},
        {"speculative_algorithm": "EAGLE"},
        {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}},
    ],
)
def test_what_goes_together_is_not_told(lane_of: LaneOf, sparks: list[Node], options: dict[str, Any]) -> None:
    assert findings(lane_of(**options), sparks) == {}


@pytest.mark.parametrize(
    ("location", "prefetch", "verdict"),
    [
        ("network", False, Verdict.DEGRADED),
        ("network", True, Verdict.RUNNABLE),
        ("node", False, Verdict.RUNNABLE),
        (None, False, None),
    ],
)
def test_slow_ranks_against_the_load_barrier(
    lane_of: LaneOf, sparks: list[Node], location: Any, prefetch: bool, verdict: Verdict | None
) -> None:
    model = Model(name="toy", repo="org/toy", location=location)
    lane = lane_of(model=model, nodes=4, tp_size=4, weight_loader_prefetch_checkpoints=prefetch)
    finding = findings(lane, sparks).get("load-skew")
    assert (finding and finding.verdict) == verdict
    if verdict is Verdict.DEGRADED and finding is not None:
        assert "480 s" in finding.reason and "95 min instead of 13" in finding.reason
    alone = attrs.evolve(lane, recipe=attrs.evolve(lane.recipe, nodes=1))
    assert "load-skew" not in findings(alone, sparks[:1]), "one rank waits for nobody"


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ("10.0", Verdict.RUNNABLE),
        ("12.0", Verdict.RUNNABLE),
        ("12.1", Verdict.RUNNABLE),
        ("gfx950", Verdict.RUNNABLE),
        ("10.3", Verdict.UNKNOWN),
        (None, Verdict.UNKNOWN),
        ("9.0", Verdict.UNRUNNABLE),
        ("gfx942", Verdict.UNRUNNABLE),
    ],
)
def test_the_fp4_indexer_by_gpu(
    lane_of: LaneOf, sparks: list[Node], target: str | None, verdict: Verdict
) -> None:
    node = attrs.evolve(sparks[0], gpus=(Gpu(name="x", target=target),))
    found = findings(lane_of(enable_deepseek_v4_fp4_indexer=True), [node])
    assert found["fp4-indexer"].verdict is verdict
    assert "fp4-indexer" not in findings(lane_of(), [node])


def test_an_algorithm_of_another_build_is_unknown(lane_of: LaneOf, sparks: list[Node]) -> None:
    assert findings(lane_of(speculative_algorithm="MINE"), sparks)["speculation"].verdict is Verdict.UNKNOWN
