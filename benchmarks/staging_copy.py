"""How long staging a sparse file takes, against cp and rsync, and what a killed copy copies again.

    python benchmarks/staging_copy.py [--folder DIR] [--rounds N]

A file of 10 GB of which 1 GB is data: `lanes`, before it verifies, against `cp --sparse=always` and `sync` of
what it wrote. A file of 4 GB of which 400 MB is data: the same against `rsync --sparse` and `sync`. All are
whole programs, started anew, and take turns, so that whatever else the machine does meets them alike; the
figures are medians. Goals: at most 1.1 times cp, at most a fifth of rsync; and a copy that was killed half-way
and started again copies nothing that was there, but for the piece that was under way. Exits with 1 when one is
missed. DIR has to be on a disk with 15 GB free, not in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lanes.staging.worker import PIECE

MOST_OF_CP = 1.1
MOST_OF_RSYNC = 0.2

STAGE = """
import json, sys, attrs
from lanes.hosts import HERE
from lanes.staging import copies
from lanes.staging.crew import Station
from lanes.types import Copy

copy = Copy(name="rows", source=sys.argv[1], target=sys.argv[2], sparse=True)
(copied,) = copies.carry_out([copy], [Station(name="here", host=HERE)], None, lambda line: print(line, flush=True))
print(json.dumps(attrs.asdict(copied)))
"""


def sparse_file(path: Path, size: int, data: int) -> None:
    """Data in pieces of 1 MiB, spread evenly."""
    count = data >> 20
    with path.open("wb") as file:
        for number in range(count):
            file.seek(number * (size // count) // 4096 * 4096)
            file.write(os.urandom(1 << 20))
        file.truncate(size)


def lanes(source: Path, target: Path) -> float:
    """Seconds until everything is on the disk, without those of verifying."""
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-c", STAGE, source, target], check=True, capture_output=True, text=True
    )
    took = time.perf_counter() - began
    return took - float(json.loads(ran.stdout.splitlines()[-1])["verify_s"])


def other(*program: str) -> float:
    """Seconds of a program that copies, and of the sync after it."""
    began = time.perf_counter()
    subprocess.run(program, check=True)
    subprocess.run(["sync", program[-1]], check=True)
    return time.perf_counter() - began


def compare(source: Path, target: Path, rival: tuple[str, ...], rounds: int) -> float:
    """The share of the rival's time that `lanes` takes."""
    seconds: dict[str, list[float]] = {"lanes": [], rival[0]: []}
    for number in range(rounds + 1):
        for name, values in seconds.items():
            target.unlink(missing_ok=True)
            subprocess.run(["sync"], check=True)
            took = lanes(source, target) if name == "lanes" else other(*rival, str(source), str(target))
            if number:  # the first one reads the file from disk
                values.append(took)
    held = source.stat()
    print(
        f"{held.st_size / 1e9:.1f} GB of which {held.st_blocks * 512 / 1e9:.2f} GB are data, {rounds} rounds"
    )
    for name, values in seconds.items():
        print(
            f"  {name:6} median {statistics.median(values):.2f} s   {min(values):.2f} to {max(values):.2f} s"
        )
    return statistics.median(seconds["lanes"]) / statistics.median(seconds[rival[0]])


def resume(source: Path, target: Path) -> tuple[int, int, int]:
    """The bytes in the file, those that a killed copy left and the next kept, and those it copied."""
    target.unlink(missing_ok=True)
    half = source.stat().st_blocks * 512 // 2
    killed = subprocess.Popen([sys.executable, "-c", STAGE, source, target], stdout=subprocess.DEVNULL)
    partial = target.with_name(target.name + ".lanes-partial")
    while killed.poll() is None and not (partial.exists() and partial.stat().st_blocks * 512 > half):
        time.sleep(0.002)
    killed.kill()
    killed.wait()
    ran = subprocess.run(
        [sys.executable, "-c", STAGE, source, target], check=True, capture_output=True, text=True
    )
    copied = json.loads(ran.stdout.splitlines()[-1])
    return copied["kept"] + copied["copied"], copied["kept"], copied["copied"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where to work: on a disk")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        large, small, target = Path(folder, "large"), Path(folder, "small"), Path(folder, "target")
        sparse_file(large, 10_000_000_000, 1_000_000_000)
        sparse_file(small, 4_000_000_000, 400_000_000)
        of_cp = compare(large, target, ("cp", "--sparse=always"), arguments.rounds)
        print(f"  lanes takes {of_cp:.2f} of cp and sync (goal: at most {MOST_OF_CP})")
        of_rsync = compare(small, target, ("rsync", "--sparse"), arguments.rounds)
        print(f"  lanes takes {of_rsync:.2f} of rsync and sync (goal: at most {MOST_OF_RSYNC})")
        data, kept, copied = resume(large, target)
        same = subprocess.run(["cmp", large, target], check=False).returncode == 0
        print(
            f"killed half-way: {kept / 1e6:.0f} of {data / 1e6:.0f} MB were kept, {copied / 1e6:.0f} MB copied then"
        )
        resumed = same and kept > data / 2 - 4 * PIECE and copied <= data - kept
    return int(of_cp > MOST_OF_CP or of_rsync > MOST_OF_RSYNC or not resumed)


if __name__ == "__main__":
    sys.exit(main())
