"""Hold the probe's figures against the engine's own account, over several runs.

    python benchmarks/agreement.py [--runs 3] [options of `lanes run`]

llama.cpp tells its own times in the `timings` block of each stream's last chunk. Each run of
`lanes run --engine llamacpp` gives medians of both over the same passes; docs/measuring.md says which
interval each side counts. Goal: the medians over the runs differ by at most 3%. Exits with 1 when one
is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

GOAL = 0.03
NAMES = ("prefill_tps", "decode_tps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    arguments, rest = parser.parse_known_args()
    ours: dict[str, list[float]] = {name: [] for name in NAMES}
    theirs: dict[str, list[float]] = {name: [] for name in NAMES}
    print("| run | figure | lanes | the engine's timings | difference |")
    print("|---|---|---|---|---|")
    for number in range(1, arguments.runs + 1):
        argv = [sys.executable, "-m", "lanes", "run", "--engine", "llamacpp", "--json", *rest]
        ran = subprocess.run(argv, check=False, stdout=subprocess.PIPE)
        (lane,) = json.loads(ran.stdout)["lanes"]
        if lane["status"] != "measured":
            print(f"run {number}: {lane['status']}: {lane['reason']}")
            return 1
        (cell,) = lane["instruments"][0]["cells"]
        for name in NAMES:
            ours[name].append(cell["metrics"][name]["median"])
            theirs[name].append(cell["server_metrics"][name]["median"])
            print(_row(str(number), name, ours[name][-1], theirs[name][-1]), flush=True)
    missed = False
    for name in NAMES:
        a, b = statistics.median(ours[name]), statistics.median(theirs[name])
        print(_row(f"median of {arguments.runs}", name, a, b))
        missed |= abs(a / b - 1) > GOAL
    return int(missed)


def _row(run: str, name: str, a: float, b: float) -> str:
    return f"| {run} | {name} | {a:.1f} | {b:.1f} | {a / b - 1:+.2%} |"


if __name__ == "__main__":
    sys.exit(main())
