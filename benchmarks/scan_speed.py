"""How long a scan of a wheel takes, against unpacking that wheel with Python's zipfile.

    pip download --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 --dest . vllm==0.33.0
    python benchmarks/scan_speed.py vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl [--rounds N]

Both are whole processes and take turns, so that whatever else the machine does meets them alike; the figures
are medians, in seconds, with the most memory each process held. A wheel is unpacked in two ways: to disk
(`extractall`), and read through without being written anywhere, which is the harder rival. A sparse library of
a tebibyte shows that memory does not grow with the size. Goals: no longer than `extractall`, no more than
128 MiB. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_BYTES = 128 << 20

# The peak of a process, its own and not what it inherited when it was started.
PEAK = """
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""
SCAN = "import sys\nfrom lanes.hardware.scan import scan\nassert scan([sys.argv[1]]).libraries" + PEAK
UNPACK = "import sys, zipfile\nzipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])" + PEAK
READ = (
    "import sys, zipfile\n"
    "with zipfile.ZipFile(sys.argv[1]) as archive:\n"
    "    for name in archive.namelist():\n"
    "        with archive.open(name) as member:\n"
    "            while member.read(1 << 20): pass" + PEAK
)


def measure(program: str, *arguments: str) -> tuple[float, int]:
    """Seconds, and the most bytes of memory."""
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    return time.perf_counter() - began, int(ran.stderr.split()[-1]) * 1024


def sparse_library(path: Path, size: int = 1 << 40) -> None:
    """A library whose one piece of GPU code takes nearly all of `size` bytes."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    end = size - 4096
    piece = end - 4096 - 16 - 64
    entry = struct.pack("<HHIQ", 2, 0x101, 64, piece).ljust(28, b"\0") + struct.pack("<I", 90)
    table = bytes(64)
    for name, kind, at, length in ((1, 1, 4096, end - 4096), (12, 3, end, len(names))):
        table += struct.pack("<IIQQQQ", name, kind, 2, 0, at, length).ljust(64, b"\0")
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, end + 1024, 0, 64, 0, 0, 64, 3, 2)
    with path.open("wb") as file:
        for at, data in ((0, head), (4096, struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, 64 + piece) + entry),
                         (end, names), (end + 1024, table)):  # fmt: skip
            file.seek(at)
            file.write(data)
        file.truncate(size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path, help="the wheel to scan and to unpack")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    wheel = str(arguments.wheel.resolve())
    programs = {"scan": SCAN, "zipfile, to disk": UNPACK, "zipfile, read only": READ}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    peaks = dict.fromkeys(programs, 0)
    with tempfile.TemporaryDirectory() as folder:
        for round_number in range(arguments.rounds + 1):
            for name, program in programs.items():
                took, peak = measure(program, wheel, f"{folder}/unpacked")
                shutil.rmtree(f"{folder}/unpacked", ignore_errors=True)
                if round_number:  # the first one reads the wheel from disk
                    seconds[name].append(took)
                    peaks[name] = max(peaks[name], peak)
        library = Path(folder, "sparse.so")
        sparse_library(library)
        sparse_s, sparse_peak = measure(SCAN, str(library))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{arguments.wheel.name}, {arguments.wheel.stat().st_size / 1e6:.0f} MB, {arguments.rounds} rounds")
    for name, values in seconds.items():
        spread = f"{min(values):.2f} to {max(values):.2f} s"
        print(f"{name:20} median {medians[name]:.2f} s   {spread}   at most {peaks[name] / 2**20:.0f} MiB")
    print(f"{'scan, sparse 1 TiB':20} {sparse_s:.2f} s   at most {sparse_peak / 2**20:.0f} MiB")
    missed = False
    for name in list(programs)[1:]:
        ratio = medians["scan"] / medians[name]
        print(f"the scan takes {ratio:.2f} of {name}")
    missed |= medians["scan"] > medians["zipfile, to disk"]
    missed |= max(peaks["scan"], sparse_peak) > MOST_BYTES
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
