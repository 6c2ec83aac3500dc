"""`lanes history` finds a run again by whatever a person remembers of it."""

from __future__ import annotations

import json
import sqlite3
import time

import pytest
from lanes.owners import Owner
from lanes.results.store import Store


def lane(store, *, status="measured", reason=None, owner=None, end=True, log=(), **made):
    """A run of one lane in the history: its id."""
    run = store.begin(owner or Owner.me(), command="run")
    gpus = [{"name": made.pop("gpu"), "driver": "580.1"}] if "gpu" in made else []
    nodes = [{"name": made.pop("node", "spark-1"), "arch": "aarch64", "gpus": gpus}]
    recipe = {
        "name": made.pop("recipe", "r"),
        "model": {"name": made.pop("model", "gemma"), "repo": "Org/Gemma-3"},
        "options": made.pop("options", {}),
    }
    store.append(
        run, "new-lane", recipe=recipe, environment={"nodes": nodes}, **{"name": "one", "engine": "echo"} | made
    )  # fmt: skip
    if end:
        store.append(run, "lane-end", lane=0, status=status, reason=reason, log=list(log))
        store.end(run, exit_code=0)
    return run


@pytest.fixture
def store(lanes):
    with Store(lanes.home / "history.sqlite") as opened:
        yield opened


def found(lanes, *words):
    return [document["run"] for document in lanes("history", *words, "--json").json]


def test_a_run_is_found_by_what_it_was(lanes, store):
    plain = lane(store, name="gemma-lane", options={"threads": 2, "ratio": 500.0}, gpu="NVIDIA GB10")
    crashed = lane(
        store, name="big", engine="sglang", model="DeepSeek-V4.1", recipe="dsv41-4x", node="Rack-7",
        status="crashed", reason="CUDA out of  memory on rank 2", log=["Fatal: NCCL timed out"],
    )  # fmt: skip
    for words, run in (
        (("--lane", "GEMMA-l"), plain),
        (("--engine", "sglang"), crashed),
        (("--model", "deepseek"), crashed),
        (("--recipe", "dsv41"), crashed),
        (("--status", "crashed"), crashed),
        (("--node", "rack-7"), crashed),
        (("--gpu", "gb10"), plain),
        (("search", "out of memory"), crashed),
        (("search", "nccl", "RANK"), crashed),
        (("search", "threads=2"), plain),
        (("search", "ratio=500"), plain),
        (("search", crashed), crashed),
        (("search", "cuda", "--engine", "sglang", "--status", "crashed"), crashed),
    ):
        assert found(lanes, *words) == [run], words
    # Any value of one option, all of several; nothing is a pattern.
    assert found(lanes, "--engine", "echo", "--engine", "sglang") == [crashed, plain]
    assert found(lanes, "--engine", "echo", "--status", "crashed") == []
    assert found(lanes, "search", "%") == []
    assert found(lanes, "search", "Org/Gemma-3") == [crashed, plain]


def test_a_run_is_found_by_when_it_was(lanes, store):
    run = lane(store)
    today = time.strftime("%Y-%m-%d", time.localtime(store.document(run)["started_at"]))
    assert found(lanes, "--since", "1h") == found(lanes, "--since", today, "--until", today) == [run]
    assert found(lanes, "--until", "1h") == found(lanes, "--until", "2020-01-31") == []


def test_only_the_lanes_that_are_meant_are_shown(lanes, store):
    run = store.begin(Owner.me(), command="run")
    for number, (name, status) in enumerate((("fine", "measured"), ("lost", "crashed"))):
        store.append(run, "new-lane", name=name, engine="echo")
        store.append(run, "lane-end", lane=number, status=status, reason=None)
    store.end(run, exit_code=1)
    shown = lanes("history", "--status", "crashed")
    assert "lost" in shown.out and "fine" not in shown.out and run in shown.out
    for _ in range(2):
        lane(store, name="more")
    few = lanes("history", "search", "echo", "-n", "2")
    assert "the latest 2 of 3 runs: -n shows more" in few.said
    assert lanes("history", "search", "nothing like it").said == "No run is like that."


def test_what_changed_since_the_last_search_is_found(lanes, store):
    gone = Owner(pid=2**22 - 1, created=1.0)
    cut = lane(store, name="cut", owner=gone, end=False)
    live = lane(store, name="live", end=False)
    assert found(lanes, "--status", "interrupted") == [cut]
    assert found(lanes, "--status", "running") == [live]
    store.append(live, "lane-end", lane=0, status="failed", reason="late")
    store.end(live, exit_code=1)
    assert found(lanes, "--status", "running") == []
    assert found(lanes, "search", "late", "--status", "failed") == [live]
    store.resume(cut, Owner.me())
    store.append(cut, "lane-end", lane=0, status="measured", reason=None)
    store.end(cut, exit_code=0)
    assert found(lanes, "--status", "measured") == [cut]


def test_a_history_from_before_there_was_a_search_is_searched(lanes, store):
    runs = [lane(store, name=f"n{number}") for number in range(3)]
    with sqlite3.connect(store.path) as db:
        db.execute("DROP TABLE summaries")
    assert found(lanes, "--engine", "echo") == runs[::-1]


def test_a_damaged_history_is_still_searched(lanes, store):
    run = lane(store)
    with sqlite3.connect(store.path) as db:
        # What a cut journal leaves: a pass of a point that is told by half, and no document.
        db.execute("UPDATE runs SET document = NULL, owner_pid = 4194303")
        data = {"lane": 0, "instrument": "probe", "cell": {"pp": 8}, "measured": {"warmup": False}}
        db.execute("INSERT INTO events VALUES (?, 99, 1.0, 'pass', ?)", (run, json.dumps(data)))
    odd = lane(store, options=["not", "a", "table"])
    assert found(lanes, "search", "probe") == [run]
    assert found(lanes, "search", "not", "table") == [odd]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--status", "sad"), "'sad' is none of measured, unrunnable"),
        (("--since", "whenever"), "--since 'whenever' is no time. write 2h, 7d, or a date"),
        (("--until", "whenever"), "--until 'whenever' is no time. write 2h, 7d, or a date"),
        (("--engine", "echo", "search", "x"), "write `lanes history search ... --engine`"),
    ],
)
def test_mistakes_are_told_with_the_next_step(words, said, lanes):
    ran = lanes("history", *words)
    assert ran.code == 2
    assert said in ran.said
