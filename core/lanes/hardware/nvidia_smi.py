"""What nvidia-smi prints, read into values; pure functions on text."""

from __future__ import annotations

import re

from lanes.hardware.targets import gpu_named, of_capability
from lanes.types import Gpu

QUERY = ("name", "compute_cap", "memory.total", "driver_version", "uuid")
ARGV = ("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
VERSION_ARGV = ("nvidia-smi", "--version")

# Every way in which nvidia-smi says that it does not know.
_UNKNOWN = re.compile(
    r"\[?(N/A|Not Supported|Unknown Error|GPU is lost|Insufficient Permissions)\]?|", re.IGNORECASE
)
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "KiB": 1 << 10, "B": 1}


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """GPUs from `nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version,uuid --format=csv`.

    With or without the header. `[N/A]` becomes None. Lines that are no GPU (warnings, "No devices
    were found") are passed over. A GPU that shares the host's memory is marked `unified`.
    """
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(QUERY) or cells[0] == "name":
            continue
        name, capability, memory, driver, uuid = (
            None if _UNKNOWN.fullmatch(cell) else cell for cell in cells
        )
        if name is None and capability is None and uuid is None:
            continue
        gpus.append(
            described(
                name=name or "unknown GPU",
                capability=capability if capability and re.fullmatch(r"\d+\.\d", capability) else None,
                memory_bytes=_bytes(memory),
                driver=driver,
                uuid=uuid,
            )
        )
    return tuple(gpus)


def parse_cuda_version(text: str) -> str | None:
    """The newest CUDA that the driver serves (`13.0`), from `nvidia-smi --version` or its banner."""
    found = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", text)
    return found[1] if found else None


def described(
    *, name: str, capability: str | None, memory_bytes: int | None, driver: str | None, uuid: str | None
) -> Gpu:
    """A Gpu as its driver describes it, and whether it shares the host's memory, by the table of GPUs."""
    known = gpu_named(name) or (of_capability(capability) if capability else None)
    return Gpu(
        name=name,
        target=capability,
        memory_bytes=memory_bytes,
        driver=driver,
        uuid=uuid,
        unified=known.unified if known else False,
    )


def _bytes(memory: str | None) -> int | None:
    number, _, unit = (memory or "").partition(" ")
    return int(number) * _UNITS[unit] if number.isdigit() and unit in _UNITS else None
