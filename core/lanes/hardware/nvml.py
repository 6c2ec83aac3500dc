"""Local NVIDIA GPUs through NVML, asked in a process of its own.

A driver in trouble makes NVML calls hang in the kernel, where nothing ends them; so the question is asked
by a child process, and whoever waits for it can stop waiting. `python -m lanes.hardware.nvml`
prints one JSON object: `driver`, `cuda`, `gpus` (a list of `name`, `capability`, `memory_bytes`, `uuid`,
and `errors` by name), or `error`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any


def ask() -> dict[str, Any]:
    """What NVML says; `error` where it says nothing. Needs no CUDA context."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {"error": "the package nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as refusal:
        return {"error": str(refusal)}

    def told(call: Callable[..., Any], *args: Any) -> tuple[Any, str | None]:
        # GB10 does not support the memory query, old drivers lack others: each may fail by itself.
        try:
            value = call(*args)
        except (pynvml.NVMLError, AttributeError) as refusal:
            return None, str(refusal) or type(refusal).__name__
        return (value.decode(errors="replace") if isinstance(value, bytes) else value), None

    cuda, _ = told(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    driver, _ = told(pynvml.nvmlSystemGetDriverVersion)
    count, error = told(pynvml.nvmlDeviceGetCount)
    gpus: list[dict[str, Any]] = []
    for index in range(count or 0):
        handle, lost = told(pynvml.nvmlDeviceGetHandleByIndex, index)
        if lost:
            gpus.append({"errors": {"gpu": lost}})
            continue
        asked = {
            "name": told(pynvml.nvmlDeviceGetName, handle),
            "capability": told(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
            "memory": told(pynvml.nvmlDeviceGetMemoryInfo, handle),
            "uuid": told(pynvml.nvmlDeviceGetUUID, handle),
        }
        capability, memory = asked["capability"][0], asked["memory"][0]
        gpus.append(
            {
                "name": asked["name"][0],
                "capability": f"{capability[0]}.{capability[1]}" if capability else None,
                "memory_bytes": memory.total if memory else None,
                "uuid": asked["uuid"][0],
                "errors": {name: why for name, (_, why) in asked.items() if why},
            }
        )
    version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
    return {"driver": driver, "cuda": version, "gpus": gpus} | ({"error": error} if error else {})


if __name__ == "__main__":
    json.dump(ask(), sys.stdout)
