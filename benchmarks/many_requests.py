"""Measure a server with ten thousand requests: does the client's memory grow, is everything kept, is it
shown at once?

    python benchmarks/many_requests.py [--requests 10000] [--concurrency 32] [--rate R]

The metronome answers on the loopback, and `lanes bench` measures it with a closed load, or with an open
one (--rate). Goals: between a tenth of the requests and the last one the client's resident memory grows
by less than 10 MB; the store holds the timeline of each request; `lanes history show` takes under a second,
Python's start included. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SCRIPT = '{"ttft_s": 0.01, "gap_s": 0.001, "usage": "every"}'
GROWTH_MB = 10.0
SHOW_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--tg", type=int, default=32)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["LANES_HOME"] = home
        server = subprocess.Popen(
            [sys.executable, "-m", "lanes.bench.calibration.metronome", "--port", "0", "--script", SCRIPT],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout
            url = server.stdout.readline().split()[-1]
            return _measure(given, url, Path(home))
        finally:
            server.kill()
            server.wait()


def _measure(given: argparse.Namespace, url: str, home: Path) -> int:
    argv = ["bench", "--url", url, "--pp", "128", "--tg", str(given.tg), "--warmups", "0", "--passes", "1"]
    argv += ["--requests", str(given.requests), "--json"]
    if given.rate:
        argv += ["--rate", str(given.rate)]
    else:
        argv += ["--load", "closed", "--concurrency", str(given.concurrency)]
    began = time.monotonic()
    with open(home / "out.json", "w+") as out:
        process = subprocess.Popen([sys.executable, "-m", "lanes", *argv], stdout=out)
        memory = _watch(process, given.requests, home)
        out.seek(0)
        document = json.load(out)
    took = time.monotonic() - began
    cell = document["lanes"][0]["instruments"][0]["cells"][0]
    print(f"{given.requests:,} requests of {given.tg} tokens in {took:.1f} s: {cell['status']}")
    for name in ("request_rps", "load_tps", "ttft_s", "ttft_p99_s", "stream_decode_tps"):
        print(f"  {name} {cell['metrics'][name]['median']:.4g}")
    print(f"  client: {cell['passes'][0]['client_cpu_s']:.1f} CPU-seconds")
    tenth = next((mb for share, mb in memory if share >= 0.1), memory[0][1])
    growth = max(mb for share, mb in memory if share >= 0.1) - tenth
    told = ", ".join(f"{mb:.0f} at {share:.0%}" for share, mb in memory[:: max(len(memory) // 10, 1)])
    print(f"memory, MB of requests ended: {told}; growth {growth:.1f}")
    kept = _ended(home)
    size = sum(f.stat().st_size for f in home.glob("history*")) / 1e6
    print(f"kept: {kept:,} timelines, {size:.1f} MB")
    shown = _timed("history", "show", document["run"])
    anew = _timed("history", "show", document["run"], "--recompute")
    print(f"lanes history show: {shown:.2f} s; with --recompute: {anew:.1f} s")
    whole = kept == given.requests == cell["passes"][0]["requests"]
    return int(not (cell["status"] == "ok" and growth < GROWTH_MB and whole and shown < SHOW_S))


def _watch(process: subprocess.Popen[bytes], asked: int, home: Path) -> list[tuple[float, float]]:
    """The client's resident memory in MB, each with the share of requests that had ended."""
    found: list[tuple[float, float]] = []
    while process.poll() is None:
        time.sleep(0.5)
        with contextlib.suppress(psutil.Error):
            resident = psutil.Process(process.pid).memory_info().rss / 1e6
            if resident:  # it has not ended meanwhile
                found.append((_ended(home) / asked, resident))
    return found


def _ended(home: Path) -> int:
    """How many requests have their timelines in the store."""
    path = home / "history.sqlite"
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(path)) as store:
            counts = store.execute("SELECT json_extract(data, '$.count') FROM events WHERE kind = 'requests'")
            return sum(count for (count,) in counts)
    except sqlite3.Error:  # it is being made
        return 0


def _timed(*argv: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "lanes", *argv], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
