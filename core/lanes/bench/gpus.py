"""Power, clocks, temperature and throttling of the GPUs beside us, while the server on this host works.

NVML is asked by a process of its own, `python -m lanes.bench.gpus`, which writes a line of JSON a sample:
a driver in trouble makes its calls hang where nothing ends them, and the client should not share its
interpreter with them. The energy counter is read only when a line comes on standard input: that takes a
processor 4 to 5 ms for each GPU (H200, driver 580), all else together 0.1 ms. The process ends when
its standard input does.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lanes.types import Endpoint

EVERY_S = 0.25
_KEPT = 40_000
"""Samples: hours of them."""
_WAIT_S = 2.0
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""Where there is an NVIDIA driver, there is one of them."""
_REASONS = {
    0x04: "its power cap",
    0x08: "a hardware slowdown",
    0x20: "its temperature (by the driver)",
    0x40: "its temperature (by the hardware)",
    0x80: "the power supply's brake",
}
"""Bits of NVML's clocks event reasons that take speed away (nvml.h, nvmlClocksEventReasons)."""
_FLAGGED = 0.05
"""The share of samples from which throttling is told."""


class Gpus:
    """Samples the GPUs of this host from `start` to `stop`, where `endpoint` is on this host and it has any."""

    def __init__(self, endpoint: Endpoint, argv: Sequence[str] | None = None) -> None:
        self._argv = argv or (sys.executable, "-P", "-m", "lanes.bench.gpus")
        self._wanted = argv is not None or (any(Path(d).exists() for d in _DEVICES) and is_here(endpoint))
        self._process: subprocess.Popen[str] | None = None
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._news = threading.Condition()
        self._over = False

    def start(self) -> None:
        if not self._wanted:
            return
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to deal with
            )
        except OSError:
            return
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def begin(self) -> None:
        """Ask for a sample with the energy counters, and wait for it: a pass is about to begin."""
        now_ns = time.time_ns()
        self.ask()
        self._answered(now_ns)

    def ask(self) -> None:
        """Ask for a sample with the energy counters now."""
        if self._process is not None and self._process.stdin:
            with contextlib.suppress(OSError):  # it has ended
                os.write(self._process.stdin.fileno(), b"\n")

    def stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for text in process.stdout:
            try:
                sample = json.loads(text)
            except ValueError:
                continue
            with self._news:
                self._samples.append(sample)
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def between(self, began_ns: int, ended_ns: int) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return the figures of the GPUs that worked between two times, and what is to be said of them. At the
        first one `begin` has returned, at the second one it was to `ask`."""
        if self._process is None:
            return {}, ()
        return figures(self._answered(ended_ns), began_ns, ended_ns)

    def _answered(self, after_ns: int) -> list[dict[str, Any]]:
        """Wait for a sample that was asked for and made after a time; return all so far."""

        def there() -> bool:
            latest = reversed(self._samples)
            made = itertools.takewhile(lambda one: one["at_ns"] >= after_ns, latest)
            return self._over or any(one.get("asked") for one in made)

        if self._process is None:
            return []
        with self._news:
            self._news.wait_for(there, _WAIT_S)
            return list(self._samples)


def figures(
    samples: Sequence[dict[str, Any]], began_ns: int, ended_ns: int
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the figures of the GPUs that were busy at all between two times.

    `gpu_power_w` is the sum of their mean powers; `gpu_energy_j` the growth of their energy counters,
    between samples by straight lines, or power x time where a GPU has no counter; `gpu_clock_mhz` the
    lowest median clock of the streaming multiprocessors; `gpu_temperature_c` the highest.
    """
    inside = [one for one in samples if began_ns <= one["at_ns"] <= ended_ns]
    busy = {gpu["index"] for one in inside for gpu in one["gpus"] if (gpu.get("busy") or 0) > 0}
    seen = {index: [gpu for one in inside for gpu in one["gpus"] if gpu["index"] == index] for index in busy}
    power_w, energy_j = 0.0, 0.0
    clocks: list[float] = []
    temperatures: list[float] = []
    notes: list[str] = []
    for index, rows in sorted(seen.items()):
        powers = [row["power_w"] for row in rows if row.get("power_w") is not None]
        power = statistics.fmean(powers) if powers else 0.0
        power_w += power
        counted = _energy(samples, index, began_ns, ended_ns)
        energy_j += counted if counted is not None else power * (ended_ns - began_ns) / 1e9
        if found := [row["clock_mhz"] for row in rows if row.get("clock_mhz") is not None]:
            clocks.append(statistics.median(found))
        temperatures += [row["temperature_c"] for row in rows if row.get("temperature_c") is not None]
        notes += _throttled(index, rows)
    if not busy:
        return {}, ()
    found_all = {
        "gpus": float(len(busy)),
        "gpu_power_w": power_w or None,
        "gpu_energy_j": energy_j or None,
        "gpu_clock_mhz": min(clocks, default=None),
        "gpu_temperature_c": max(temperatures, default=None),
    }
    return {name: float(value) for name, value in found_all.items() if value is not None}, tuple(notes)


def _energy(samples: Sequence[dict[str, Any]], index: int, began_ns: int, ended_ns: int) -> float | None:
    points = [
        (one["at_ns"], gpu["energy_j"])
        for one in samples
        for gpu in one["gpus"]
        if gpu["index"] == index and gpu.get("energy_j") is not None
    ]
    begin, end = _at(points, began_ns), _at(points, ended_ns)
    return end - begin if begin is not None and end is not None and end > begin else None


def _at(points: Sequence[tuple[int, float]], at_ns: int) -> float | None:
    """The value on the line between the points around `at_ns`; None outside of them."""
    before = [p for p in points if p[0] <= at_ns]
    after = [p for p in points if p[0] >= at_ns]
    if not before or not after:
        return None
    (t0, v0), (t1, v1) = before[-1], after[0]
    return v0 if t1 == t0 else v0 + (v1 - v0) * (at_ns - t0) / (t1 - t0)


def _throttled(index: int, rows: Sequence[dict[str, Any]]) -> list[str]:
    working = [
        row["reasons"] for row in rows if row.get("reasons") is not None and (row.get("busy") or 0) > 0
    ]
    said = []
    for bit, why in _REASONS.items():
        share = sum(bool(reasons & bit) for reasons in working) / len(working) if working else 0.0
        if share >= _FLAGGED:
            said.append(f"GPU {index} was throttled by {why} in {share:.0%} of the samples")
    return said


def is_here(endpoint: Endpoint) -> bool:
    """Whether the endpoint's host is this one."""
    host = urlsplit(endpoint.url).hostname or ""
    if host in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):
        return True
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
        # Only an address of this host can be bound.
        family = socket.AF_INET6 if ":" in str(address) else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def sample(pynvml: Any, energy: bool) -> list[dict[str, Any]]:
    """What NVML says of each GPU now, of its energy counter if `energy`; None where it does not tell."""

    def told(name: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, name)(*arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    rows = []
    for index in range(told("nvmlDeviceGetCount") or 0):
        gpu = told("nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            continue
        energy_mj = told("nvmlDeviceGetTotalEnergyConsumption", gpu) if energy else None
        power_mw = told("nvmlDeviceGetPowerUsage", gpu)
        use = told("nvmlDeviceGetUtilizationRates", gpu)
        reasons = told("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if reasons is None:  # its name before driver 535
            reasons = told("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        rows.append(
            {
                "index": index,
                "power_w": power_mw / 1e3 if power_mw is not None else None,
                "energy_j": energy_mj / 1e3 if energy_mj is not None else None,
                "clock_mhz": told("nvmlDeviceGetClockInfo", gpu, getattr(pynvml, "NVML_CLOCK_SM", 1)),
                "temperature_c": told("nvmlDeviceGetTemperature", gpu, 0),
                "busy": use.gpu if use is not None else None,
                "reasons": reasons,
            }
        )
    return rows


def main() -> None:
    """Write samples until standard input ends."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
    except Exception:  # no driver, no library: nothing to tell
        return
    asked = False
    while True:
        line = json.dumps({"at_ns": time.time_ns(), "asked": asked, "gpus": sample(pynvml, asked)})
        try:
            os.write(sys.stdout.fileno(), f"{line}\n".encode())
        except OSError:
            return
        asked = bool(select.select([sys.stdin], [], [], EVERY_S)[0])
        if asked and not os.read(sys.stdin.fileno(), 4096):
            return


if __name__ == "__main__":
    main()
