"""Ten thousand runs in the history: are lanes compared, and runs listed, at once?

    python benchmarks/many_runs.py [--runs 10000] [--lanes 100]

Runs of a probe's size (one cell, seven passes, 128 tokens each; timelines lie beside the documents, and are
not read) fill a store, a hundred lanes with as many launches each. Goals: `lanes compare` of two of them, `lanes compare --since` of the last hour (a hundred runs),
`lanes history` and searches of it, and `lanes report` of the two each take under a second of CPU and of time, Python's start included, best of three. Exits
with 1 when one is missed. The first search of a store that was filled without summaries makes them; it is told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lanes.results.document import Event, fold
from lanes.results.store import Store

GOAL_S = 1.0


def lane_events(name: str, threads: int, dice: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """What one run of the probe journals."""
    cell = {
        "pp": 2048,
        "tg": 128,
        "depth": 0,
        "concurrency": 1,
        "shape": "suffix",
        "load": "burst",
        "rate": None,
    }
    rate = 100.0 * dice.gauss(1, 0.03)
    events: list[tuple[str, dict[str, Any]]] = [
        (
            "new-lane",
            {
                "name": name,
                "engine": "echo",
                "cluster": "local",
                "recipe": {
                    "name": name,
                    "model": {"name": "m"},
                    "options": {"threads": threads},
                    "env": {},
                    "nodes": 1,
                },
                "environment": {
                    "lanes": "0.1.0",
                    "engine_version": "1",
                    "nodes": [{"name": "n", "gpus": []}],
                },
            },
        ),
        ("instrument", {"lane": 0, "instrument": "probe", "plan": {}}),
    ]
    told = {"ttft_s": 20 / rate} | {f"figure_{number}_s": rate / (number + 1) for number in range(15)}
    for number in range(7):
        stream = {
            "t0_ns": 1,
            "connect_s": 0.001,
            "text": "word " * 128,
            "status": 200,
            "usage": {"prompt_tokens": 2048},
        }
        measured = {
            "cell": cell, "number": number, "warmup": number < 2, "streams": [stream], "first_deltas": [None],
            "prefixes": [], "figures": told, "stream_figures": [told], "server_figures": {},
            "client_cpu_s": 0.1, "error": None,
        }  # fmt: skip
        events.append(("pass", {"lane": 0, "instrument": "probe", "cell": cell, "measured": measured}))
    figures = {
        name: {"median": value, "lo": value * 0.99, "hi": value * 1.01, "n": 5}
        for name, value in (("decode_tps", rate), ("prefill_tps", rate * 10), ("ttft_s", 20 / rate))
    }
    events.append(
        (
            "cell",
            {
                "lane": 0,
                "instrument": "probe",
                "cell": {**cell, "status": "ok", "reason": None, "metrics": figures, "notes": []},
            },
        )
    )
    events.append(("lane-end", {"lane": 0, "status": "measured", "reason": None, "next_step": None}))
    return events


def fill(path: Path, runs: int, lanes: int) -> None:
    dice = random.Random(1)
    Store(path).close()
    now = time.time()
    with sqlite3.connect(path) as db:
        for number in range(runs):
            at = now - (runs - number) * 36.0
            name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(at))}-{number:05d}"
            events = [
                ("run", {"command": "run"}),
                *lane_events(f"lane-{number % lanes}", number % lanes, dice),
            ]
            events.append(("run-end", {"exit_code": 0}))
            document = fold(name, [Event(at=at, kind=kind, data=data) for kind, data in events], False)
            db.execute("INSERT INTO runs VALUES (?, ?, 1, 1.0, ?)", (name, at, json.dumps(document)))
            db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                [(name, seq, at, kind, json.dumps(data)) for seq, (kind, data) in enumerate(events, 1)],
            )
    db.close()


def timed(*words: str) -> tuple[float, float]:
    """Seconds and CPU seconds of the best of three."""
    best = (float("inf"), float("inf"))
    for _ in range(3):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "lanes", *words], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, (time.perf_counter() - began, cpu))
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["LANES_HOME"] = home
        fill(Path(home) / "history.sqlite", given.runs, given.lanes)
        size = (Path(home) / "history.sqlite").stat().st_size
        print(
            f"{given.runs:,} runs of {given.lanes} lanes, {size / 1e6:,.0f} MB\n\n| | seconds | CPU seconds |\n|---|---|---|"
        )
        missed = False
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "lanes", "history", "search", "x"], check=True, stdout=subprocess.DEVNULL
        )
        first = time.perf_counter() - began
        for words in (
            ("compare", "lane-1", "lane-2"),
            ("compare", "--since", "1h"),
            ("history",),
            ("history", "search", "threads=42", "measured"),
            ("history", "--engine", "echo", "--lane", "lane-7", "--since", "2d"),
            ("report", "lane-1", "lane-2"),
            ("report", "lane-1", "lane-2", "--force", "--output", f"{home}/page.html"),
        ):
            taken, cpu = timed(*words)
            print(f"| lanes {' '.join(words).replace(home, '')} | {taken:.2f} | {cpu:.2f} |", flush=True)
            missed |= taken > GOAL_S
        print(f"\nThe first search, which summarised all runs: {first:.1f} s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
