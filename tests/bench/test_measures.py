"""Each figure, computed by hand from a timeline."""

from __future__ import annotations

import pytest
from lanes.bench import measures
from lanes.bench.account import server_figures
from lanes.bench.arrivals import Arrival
from lanes.bench.deltas import Usage
from lanes.bench.measures import FirstDelta
from lanes.bench.stream import Stream

MS = 1_000_000


def timeline(
    *events: tuple[float, str] | tuple[float, str, int],
    n: int | None = None,
    prompt: int = 100,
    cached: int | None = 0,
    t0_ms: float = 0,
) -> Stream:
    """A stream of (ms, kind) or (ms, kind, cumulative tokens)."""
    return Stream(
        t0_ns=int(t0_ms * MS),
        arrivals=tuple(Arrival(int(e[0] * MS), e[1], 4, e[2] if len(e) > 2 else None) for e in events),
        usage=None if n is None else Usage(prompt_tokens=prompt, completion_tokens=n, cached_tokens=cached),
    )


def test_a_role_chunk_is_no_token_and_the_usage_chunk_is_no_time() -> None:
    stream = timeline(
        (1, "role"), (2, "empty"), (200, "content"), (300, "content"), (300, "finish"), (900, "usage"), (901, "done"),
        n=2,
    )  # fmt: skip
    assert measures.first_event_s(stream) == 0.001
    assert measures.ttft_s(stream) == 0.2
    assert measures.e2e_s(stream) == 0.3
    assert measures.prefill_tps(stream) == pytest.approx(500)
    assert measures.decode_tps(stream, measures.first_delta(stream)) == pytest.approx(10)


def test_cached_tokens_are_not_credited_to_prefill() -> None:
    assert measures.prefill_tps(timeline((100, "content"), n=1, prompt=1000, cached=900)) == pytest.approx(
        1000
    )


@pytest.mark.parametrize("kind", ["reasoning", "tool"])
def test_reasoning_and_tool_calls_have_a_ttft(kind: str) -> None:
    assert measures.ttft_s(timeline((1, "role"), (50, kind), n=1)) == 0.05


def test_the_tokens_of_the_first_delta_belong_to_no_decode_time() -> None:
    # 4 tokens a delta at 100 tokens/s; (N - 1) over the span would read 107.1.
    stream = timeline(*[(200 + 40 * i, "content") for i in range(8)], n=32)
    assert measures.decode_tps(stream, FirstDelta(tokens=4, source="tokenizer")) == pytest.approx(100)
    average = measures.first_delta(stream)
    assert average and average.approximate and average.tokens == 4


def test_where_k1_comes_from_best_source_first() -> None:
    def source(stream: Stream, tokenized: int | None = None) -> str | None:
        k1 = measures.first_delta(stream, tokenized)
        return k1.source if k1 else None

    assert source(timeline((1, "content", 3), (2, "content", 5), n=5), 9) == "usage"
    ids = Stream(
        t0_ns=0,
        arrivals=(Arrival(1, "content", 4, None, 3),),
        token_source="logprobs",
        usage=Usage(prompt_tokens=1, completion_tokens=3),
    )
    assert source(ids, 9) == "logprobs"
    assert source(timeline((1, "content"), (2, "content"), n=2), 9) == "single"
    assert source(timeline((1, "content"), (2, "content"), n=5), 3) == "tokenizer"
    assert source(timeline((1, "content"), (2, "content"), n=5)) == "average"
    assert source(timeline((1, "content"), (2, "content"))) is None
    assert source(timeline((1, "role"), n=0)) is None


def test_the_gap_is_icl_and_the_gap_per_token_is_itl() -> None:
    stream = timeline((100, "content", 1), (140, "content", 5), (160, "content", 6), n=6)
    k1 = measures.first_delta(stream)
    assert measures.icl_s(stream) == pytest.approx((0.04, 0.02))
    assert measures.itl_s(stream, k1) == pytest.approx((0.01, 0.02))
    assert measures.delta_tokens(stream, k1) == (1, 4, 1)


def test_streams_at_once_have_a_span_and_a_steady_rate() -> None:
    # Two streams of 10 tokens/s; the second starts its answer when the first one is half through.
    first = timeline(*[(100 * i, "content") for i in range(1, 12)], n=11)
    second = timeline(*[(500 + 100 * i, "content") for i in range(1, 12)], n=11, t0_ms=1)
    both = [first, second]
    k1s = [measures.first_delta(s) for s in both]
    assert measures.span_tps(both) == pytest.approx(22 / 1.601)
    assert measures.stream_decode_tps(both, k1s) == pytest.approx(10)
    # From 601 ms to 1100 ms: tokens at 700, 800, 900, 1000, 1100 and at 701, 801, 901, 1001.
    assert measures.steady_tps(both, k1s) == pytest.approx(9 / 0.499)


def test_streams_that_never_overlap_have_no_steady_rate() -> None:
    first = timeline((10, "content"), (20, "content"), n=2)
    second = timeline((30, "content"), (40, "content"), n=2)
    assert measures.steady_tps([first, second], [measures.first_delta(s) for s in (first, second)]) is None
    assert measures.span_tps([first, second]) == pytest.approx(100)


def test_contention_is_what_another_streams_prefill_does_to_a_token() -> None:
    # The first stream decodes at 10 ms a token, and at 50 ms while the second one prefills.
    first = timeline(*[(t, "content") for t in (10, 20, 30, 80, 130, 180, 190, 200)], n=8)
    second = timeline(*[(t, "content") for t in (140, 150, 160)], n=3, t0_ms=35)
    both = [first, second]
    k1s = [measures.first_delta(s) for s in both]
    assert measures.contention(both, k1s) == pytest.approx(5)
    assert measures.contention([first], k1s[:1]) is None
    alone = timeline((500, "content"), (510, "content"), n=2)
    assert measures.contention([alone, timeline()], [measures.first_delta(alone), None]) is None


@pytest.mark.parametrize(
    "stream",
    [
        timeline(),
        timeline((1, "role")),
        timeline((1, "content")),
        timeline((1, "content"), (1, "content"), n=2),
    ],
)
def test_what_cannot_be_computed_is_absent_not_zero(stream: Stream) -> None:
    assert measures.decode_tps(stream, measures.first_delta(stream)) is None


def test_the_servers_own_account_counts_the_same_intervals() -> None:
    account = {"prompt_n": 2048, "prompt_ms": 1000.0, "predicted_n": 129, "predicted_ms": 1280.0}
    figures = server_figures(Stream(t0_ns=0, server_account=account))
    assert figures == pytest.approx({"prefill_tps": 2048, "decode_tps": 100})
    assert server_figures(Stream(t0_ns=0)) == {}
    assert server_figures(Stream(t0_ns=0, server_account={"prompt_n": 5, "predicted_n": 1})) == {}


def test_tokens_without_text_after_the_last_delta_are_in_no_rate() -> None:
    """The end of an answer is a token, and no delta: running usage tells how many there were before."""
    stream = timeline(
        (100, "content", 1), (110, "content", 2), (120, "content", 3), (500, "finish", 40), n=40
    )
    k1 = measures.first_delta(stream)
    assert k1 and k1.source == "usage"
    assert measures.decode_tps(stream, k1) == pytest.approx(100)


def test_a_running_usage_that_does_not_run_is_not_taken_for_one() -> None:
    stream = timeline((100, "content", 1), (110, "content", 1), (120, "content", 1), n=3)
    assert measures.decode_tps(stream, measures.first_delta(stream)) == pytest.approx(100)


def test_more_cached_tokens_than_there_are_make_no_rate() -> None:
    assert measures.prefill_tps(timeline((100, "content"), n=1, prompt=100, cached=101)) is None
