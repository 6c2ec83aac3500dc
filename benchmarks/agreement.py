"""Hold the probe's figures against the engine's own account, over several runs.

    python benchmarks/agreement.py [--runs 3] [options of `lanes run`]

llama.cpp tells its own times in the `timings` block of each stream's last chunk. Each run of
`lanes run --engine llamacpp` gives medians of both over the same passes, for one stream, two and four;
docs/measuring.md says which interval each side counts. Goal: prefill of one stream and decode of all
differ by at most 2%, medians over the runs. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

GOAL = 0.02
STREAMS = (1, 2, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    arguments, rest = parser.parse_known_args()
    pairs: dict[tuple[int, str], list[tuple[float, float]]] = {}
    print("| run | streams | figure | lanes | the engine's timings | difference |")
    print("|---|---|---|---|---|---|")
    for number in range(1, arguments.runs + 1):
        argv = [sys.executable, "-m", "lanes", "run", "--engine", "llamacpp", "--json"]
        argv += ["--concurrency", ",".join(map(str, STREAMS)), "--set", f"parallel={max(STREAMS)}", *rest]
        ran = subprocess.run(argv, check=False, stdout=subprocess.PIPE)
        (lane,) = json.loads(ran.stdout)["lanes"]
        if lane["status"] != "measured":
            print(f"run {number}: {lane['status']}: {lane['reason']}")
            return 1
        for cell in lane["instruments"][0]["cells"]:
            streams = cell["concurrency"]
            for name in ("prefill_tps", "decode_tps") if streams == 1 else ("decode_tps",):
                ours = cell["metrics"][name if streams == 1 else "stream_decode_tps"]["median"]
                pairs.setdefault((streams, name), []).append((ours, cell["server_metrics"][name]["median"]))
                print(_row(str(number), streams, name, *pairs[streams, name][-1]), flush=True)
    missed = False
    for (streams, name), found in pairs.items():
        a, b = (statistics.median(side) for side in zip(*found, strict=True))
        print(_row(f"median of {arguments.runs}", streams, name, a, b))
        missed |= abs(a / b - 1) > GOAL
    return int(missed)


def _row(run: str, streams: int, name: str, a: float, b: float) -> str:
    return f"| {run} | {streams} | {name} | {a:.1f} | {b:.1f} | {a / b - 1:+.2%} |"


if __name__ == "__main__":
    sys.exit(main())
