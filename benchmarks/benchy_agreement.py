"""Hold llama-benchy's figures, put right where it is known to be wrong, against the probe's, over several runs.

    python benchmarks/benchy_agreement.py [--rounds 5] [--streams 1,2] [options of `lanes run`]

Each round launches llama.cpp and measures the same cells with both, on one server. llama-benchy is on PATH or
beside Python (`pip install 'lanes-core[benchy]'`). Goal: the time to the first token, prefill and decode of all
cells differ by at most 3%, medians over the rounds. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from lanes.instruments.benchy import AGREE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default="1,2")
    arguments, rest = parser.parse_known_args()
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors before the start\n")
    print("| round | cell | figure | llama-benchy | lanes | difference |")
    print("|---|---|---|---|---|---|")
    most = max(map(int, arguments.streams.split(",")))
    for number in range(1, arguments.rounds + 1):
        argv = [
            sys.executable,
            "-m",
            "lanes",
            "run",
            "--engine",
            "llamacpp",
            "--json",
            "--instrument",
            "probe,benchy",
        ]
        argv += ["--concurrency", arguments.streams, "--set", f"parallel={most}", *rest]
        ran = subprocess.run(argv, check=False, stdout=subprocess.PIPE)
        (lane,) = json.loads(ran.stdout)["lanes"]
        rows = next((one["rows"] for one in lane["instruments"] if one["name"] == "benchy"), [])
        if not rows:
            print(f"round {number}: {lane['status']}: {lane['reason']}")
            return 1
        for row in rows:
            figures = row["figures"]
            for name in ("ttft_s", "prefill_tps", "decode_tps", "stream_decode_tps"):
                if name not in figures or f"own_{name}" not in figures:
                    continue
                pair = (figures[name]["median"], figures[f"own_{name}"])
                pairs.setdefault((row["name"], name), []).append(pair)
                print(_row(str(number), row["name"], name, *pair), flush=True)
            if row["status"] not in ("agrees", "differs"):
                print(f"| {number} | {row['name']} | {row['status']}: {row['reason']} | | | |", flush=True)
    missed = not pairs
    for (cell, name), found in pairs.items():
        theirs, ours = (statistics.median(side) for side in zip(*found, strict=True))
        print(_row(f"median of {len(found)}", cell, name, theirs, ours))
        missed |= abs(theirs / ours - 1) > AGREE
    return int(missed)


def _row(number: str, cell: str, name: str, theirs: float, ours: float) -> str:
    digits = 3 if name.endswith("_s") else 1
    return (
        f"| {number} | {cell} | {name} | {theirs:.{digits}f} | {ours:.{digits}f} | {theirs / ours - 1:+.2%} |"
    )


if __name__ == "__main__":
    sys.exit(main())
