"""How long until a command line answers: `lanes --help` against a peer and against Python with click.

    pip install llama-benchy
    python benchmarks/startup.py [--peer PATH_OF_LLAMA_BENCHY] [--rounds N]

The commands take turns, so that whatever else the machine does meets them alike; the figures are
medians of whole processes, in seconds. Goals: at most a third of `llama-benchy --help`, at most 2.5
times `python -c "import click"`. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOALS = {"llama-benchy --help": 1 / 3, 'python -c "import click"': 2.5}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", default=shutil.which("llama-benchy"), help="the llama-benchy program")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    if not arguments.peer:
        print("llama-benchy is not installed: pip install llama-benchy, or name it with --peer")
        return 2
    lanes = Path(sys.executable).with_name("lanes")
    commands = {
        "lanes --help": [str(lanes), "--help"],
        "llama-benchy --help": [arguments.peer, "--help"],
        'python -c "import click"': [sys.executable, "-c", "import click"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(arguments.rounds + 1):
        for name, argv in commands.items():
            began = time.perf_counter()
            subprocess.run(argv, check=True, capture_output=True)
            if round_number:  # the first one reads the files from disk
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:28} median {medians[name]:.3f} s   {min(values):.3f} to {max(values):.3f} s")
    missed = False
    for name, goal in GOALS.items():
        ratio = medians["lanes --help"] / medians[name]
        missed |= ratio > goal
        print(f"lanes --help takes {ratio:.2f} of {name}; goal: at most {goal:.2f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
