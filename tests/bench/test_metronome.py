"""The metronome: on its schedule, with every habit, and true to what it sent."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from lanes.bench.calibration.habits import COMBINATIONS, HABITS, combination
from lanes.bench.calibration.metronome import Metronome, Sent
from lanes.bench.client import Client
from lanes.bench.measures import decode_tps, first_delta, ttft_s
from lanes.bench.plan import Limits
from lanes.bench.requests import Form
from lanes.bench.stream import Stream
from lanes.testing.scripts import Script
from lanes.types import Endpoint

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the metronome is Linux's")


@pytest.fixture(scope="module")
def shared() -> Iterator[Metronome]:
    with Metronome() as metronome:
        yield metronome


def stream(metronome: Metronome, *scripts: Mapping[str, Any], tokens: int = 24) -> list[tuple[Stream, Sent]]:
    """One stream at once for each script, each with what the metronome says of it."""
    endpoint = Endpoint(url=metronome.url, model="metronome")

    async def burst() -> list[Stream]:
        client = Client(endpoint, Limits(stall_s=1.0))
        body = Form(endpoint=endpoint, seed=1).body("hello there", tokens)
        connections = [await client.open() for _ in scripts]
        bodies = [body | {"script": dict(script), "id": n} for n, script in enumerate(scripts)]
        return list(await asyncio.gather(*map(client.chat, bodies, connections)))

    metronome.truth()
    seen = asyncio.run(burst())
    truth = {sent.id: sent for sent in metronome.truth()}
    return [(one, truth[n]) for n, one in enumerate(seen)]


def test_nothing_is_sent_before_it_is_due_and_all_of_it_is_told(shared: Metronome) -> None:
    ((seen, sent),) = stream(shared, {"ttft_s": 0.1, "gap_s": 0.01, "tokens_per_delta": 2})
    assert sent.tokens == (2,) * 12 and seen.completion_tokens == 24
    for number, (at_ns, late_ns) in enumerate(zip(sent.at_ns, sent.late_ns, strict=True)):
        due_ns = sent.got_ns + 100_000_000 + number * 10_000_000
        assert late_ns >= 0 and at_ns == pytest.approx(due_ns + late_ns, abs=2)
    assert seen.t0_ns < sent.got_ns < seen.t0_ns + 50_000_000


def gaps_s(sent: Sent) -> list[float]:
    return [(b - a) / 1e9 for a, b in itertools.pairwise(sent.at_ns)]


def test_prefills_in_line_begin_one_after_the_other(shared: Metronome) -> None:
    """Each first token comes a prefill after the one before, and decode goes on at full speed meanwhile."""
    script = {"ttft_s": 0.3, "gap_s": 0.02, "in_line": True}
    found = stream(shared, script, script, script, tokens=12)
    begun = min(sent.got_ns for _, sent in found)
    firsts = sorted((sent.at_ns[0] - begun) / 1e9 for _, sent in found)
    assert firsts == pytest.approx([0.3, 0.6, 0.9], abs=0.05)
    assert all(statistics.median(gaps_s(sent)) == pytest.approx(0.02, abs=0.005) for _, sent in found)


def test_decode_starves_beside_a_prefill_and_recovers(shared: Metronome) -> None:
    """Ten times slower while the other prefills, and never for longer than that."""
    decoding = {"ttft_s": 0.0, "gap_s": 0.02, "beside_prefill": 10.0}
    ((_, a), (_, b)) = stream(shared, decoding, {"ttft_s": 0.7, "gap_s": 0.02}, tokens=40)
    beside = [gap for at, gap in zip(a.at_ns[1:], gaps_s(a), strict=True) if at < b.at_ns[0]]
    after = [gap for at, gap in zip(a.at_ns, gaps_s(a), strict=False) if at > b.at_ns[0]]
    # Alone it would be 35 tokens.
    assert 3 <= len(beside) <= 5 and statistics.median(beside) == pytest.approx(0.2, abs=0.05)
    assert len(after) > 30 and statistics.median(after) == pytest.approx(0.02, abs=0.005)


def test_lateness_is_never_carried_over() -> None:
    """A pause of the whole process makes some events late, and none after it."""
    with Metronome() as metronome:

        async def paused() -> None:
            await asyncio.sleep(0.2)
            os.kill(metronome.pid, signal.SIGSTOP)
            await asyncio.sleep(0.3)
            os.kill(metronome.pid, signal.SIGCONT)

        async def both() -> None:
            endpoint = Endpoint(url=metronome.url, model="metronome")
            body = Form(endpoint=endpoint, seed=1).body("x", 100) | {"script": {"gap_s": 0.01}}
            await asyncio.gather(Client(endpoint).chat(body), paused())

        asyncio.run(both())
        (sent,) = metronome.truth()
    assert max(sent.late_ns) > 150_000_000
    assert min(sent.late_ns[-20:]) < 50_000_000


SAME_TIMES = {
    f"{habit}: {choice}": choice for habit, choices in HABITS.items() for choice in choices if choice
}


def test_each_habit_leaves_the_figures_alone(shared: Metronome) -> None:
    """All at once, several of each: the client's figures against the metronome's own."""
    timing = {"ttft_s": 0.1, "gap_s": 0.01}
    pairs = stream(shared, *({**timing, **habit} for habit in SAME_TIMES.values() for _ in range(3)))
    for number, name in enumerate(SAME_TIMES):
        three = pairs[3 * number : 3 * number + 3]
        off, rates = [], []
        for seen, sent in three:
            assert seen.ok, name
            assert len(seen.token_arrivals) == len(sent.at_ns), name
            off.append((ttft_s(seen) or 0) - (sent.at_ns[0] - seen.t0_ns) / 1e9)
            rate = decode_tps(seen, first_delta(seen, sent.tokens[0]))
            if SAME_TIMES[name].get("usage") == "none":
                assert rate is None and seen.usage is None
            else:
                rates.append((rate or 0) / (sent.decode_tps or 1) - 1)
        assert abs(statistics.median(off)) < 0.005, name
        assert not rates or abs(statistics.median(rates)) < 0.03, name


def test_every_combination_of_habits_comes_once_and_the_plain_one_first() -> None:
    assert combination(0).get("role") == "early" and len(combination(0)) == 1
    texts = {json.dumps(combination(n), sort_keys=True) for n in range(COMBINATIONS)}
    assert len(texts) == COMBINATIONS
    assert combination(COMBINATIONS) == combination(0)
    for number in range(0, COMBINATIONS, 97):
        Script(**combination(number))
    # Two neighbours have little in common, so that a few of them show much.
    shared = [combination(n).items() & combination(n + 1).items() for n in range(200)]
    assert statistics.median(map(len, shared)) <= 4


FAILURES = {
    "cut": ({"cut_after": 5}, "the stream was cut after 5 deltas"),
    "error": ({"error_after": 3}, "the server reported an error after 3 deltas: the script says so"),
    "error event": (
        {"error_after": 3, "error_event": True},
        "the server reported an error after 3 deltas: the script says so",
    ),
    "half a JSON": ({"garbage_after": 3}, "the stream held data that is not JSON, after 3 deltas"),
    "stall": ({"stall_after": 4}, "the server stalled: nothing came for 1 s after 4 deltas"),
    "status": ({"status": 503}, "the server answered HTTP 503: the script says so"),
}


def test_what_goes_wrong_is_told_and_the_others_go_on(shared: Metronome) -> None:
    scripts = [{"gap_s": 0.002, **script} for script, _ in FAILURES.values()]
    endpoint = Endpoint(url=shared.url, model="metronome")

    async def burst() -> list[Stream]:
        client = Client(endpoint, Limits(stall_s=1.0))
        body = Form(endpoint=endpoint, seed=1).body("x", 24)
        return list(await asyncio.gather(*(client.chat(body | {"script": s}) for s in [*scripts, {}])))

    *failed, good = asyncio.run(burst())
    assert good.ok
    for name, one in zip(FAILURES, failed, strict=True):
        assert one.error and one.error.startswith(FAILURES[name][1]), name


def test_hundreds_of_streams_each_with_their_own_truth(shared: Metronome) -> None:
    pairs = stream(
        shared, *({"ttft_s": 0.3, "gap_s": 0.02, "tokens_per_delta": 1 + n % 3} for n in range(200))
    )
    assert all(seen.ok for seen, _ in pairs)
    assert all(sent.tokens[0] == 1 + n % 3 for n, (_, sent) in enumerate(pairs))
    off = [abs((ttft_s(seen) or 0) - (sent.at_ns[0] - seen.t0_ns) / 1e9) for seen, sent in pairs]
    assert statistics.median(off) < 0.005


def ask(url: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data), timeout=10) as answer:
        return answer.read().decode()


def test_other_programs_find_what_they_ask_for(shared: Metronome) -> None:
    assert json.loads(ask(f"{shared.url}/v1/models"))["data"][0]["id"] == "metronome"
    assert json.loads(ask(f"{shared.url}/tokenize", {"content": "three short words"}))["tokens"] == [1, 1, 1]
    chat = f"{shared.url}/v1/chat/completions"
    assert json.loads(ask(chat, {"messages": []}))["choices"][0]["message"]["content"] == "lane"
    parts = [{"type": "text", "text": "one two"}]
    body = {"stream": True, "max_completion_tokens": 3, "messages": [{"role": "user", "content": parts}]}
    text = ask(chat, body)
    assert text.count("lane ") == 3 and '"prompt_tokens": 12' in text and "token_ids" not in text
    assert ask(chat, body | {"return_token_ids": True}).count('"token_ids": [0]') == 3
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(f"{shared.url}/v1/embeddings")


def test_it_ends_with_its_parent() -> None:
    argv = [sys.executable, "-m", "lanes.bench.calibration.metronome", "--port", "0", "--leashed"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
    process.stdin.close()
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.stdout.close()
    assert process.returncode == 0


def test_an_interrupted_write_happened_somewhere_within_it() -> None:
    quick = Sent(id=1, got_ns=0, at_ns=(1_000_000,), tokens=(1,), late_ns=(0,), took_ns=(20_000,))
    assert quick.ttft_error_s(1_015_000) == pytest.approx(15e-6)
    assert quick.ttft_error_s(900_000) == pytest.approx(100e-6)
    slow = quick._replace(took_ns=(9_000_000,))
    assert slow.ttft_error_s(8_000_000) == 0
    assert slow.ttft_error_s(12_000_000) == pytest.approx(2e-3)
