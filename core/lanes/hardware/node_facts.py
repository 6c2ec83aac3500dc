"""Raw answers of a machine made into a Node; pure functions, so that any machine can be tried in a test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from lanes.hardware import amd_kfd, nvidia_smi
from lanes.hardware.targets import gpu_named
from lanes.types import Disk, Fact, Gpu, Node


@frozen(kw_only=True)
class Gathered:
    """Raw answers of a node: texts by name, what could not be had and why, the disks."""

    texts: Mapping[str, str] = field(factory=dict)
    failures: Mapping[str, str] = field(factory=dict)
    disks: tuple[Disk, ...] = ()


def node_from(name: str, gathered: Gathered) -> Node:
    """Make a Node of what was gathered; a pure function.

    `gpus` is None, not empty, where a driver is there that did not answer.
    """
    texts = gathered.texts
    memory = _meminfo(texts.get("/proc/meminfo", ""))
    gpus, cuda, source = _gpus(gathered)
    total = memory.get("MemTotal")
    filled = [_filled(gpu, total, source) for gpu in gpus or ()]
    node = Node(
        name=name,
        arch=_arch(texts.get("uname -m")),
        os=_os(texts),
        cpus=int(texts["nproc"]) if texts.get("nproc", "").strip().isdigit() else None,
        memory_bytes=total,
        memory_available_bytes=memory.get("MemAvailable"),
        gpus=None if gpus is None else tuple(gpu for gpu, _ in filled),
        cuda=cuda,
        docker=texts.get("docker", "").strip() or None,
        disks=gathered.disks,
    )
    return evolve(node, facts=tuple(_facts(node, gathered, source, [where for _, where in filled])))


def _filled(gpu: Gpu, host_memory: int | None, source: str) -> tuple[Gpu, str]:
    """The GPU with what its driver did not tell, and where each value comes from."""
    named = gpu_named(gpu.name)
    if gpu.target is None and named:
        gpu = evolve(gpu, target=named.capability)
        source += "; capability by its name"
    if gpu.memory_bytes is None and gpu.unified and host_memory is not None:
        # GB10 and its like have no memory of their own: the driver says "not supported".
        gpu = evolve(gpu, memory_bytes=host_memory)
        source += "; memory from /proc/meminfo"
    return gpu, source


def _gpus(gathered: Gathered) -> tuple[tuple[Gpu, ...] | None, str | None, str]:
    """GPUs, the driver's CUDA version, and which source told."""
    told: dict[str, Any] = json.loads(gathered.texts.get("nvml", "{}"))
    smi = nvidia_smi.parse_gpus(gathered.texts.get("nvidia-smi", ""))
    amd = tuple(_kfd_gpus(gathered.texts))
    cuda = told.get("cuda") or nvidia_smi.parse_cuda_version(gathered.texts.get("nvidia-smi --version", ""))
    nvml = tuple(
        nvidia_smi.described(
            name=gpu.get("name") or "unknown GPU",
            capability=gpu.get("capability"),
            memory_bytes=gpu.get("memory_bytes"),
            driver=told.get("driver"),
            uuid=gpu.get("uuid"),
        )
        for gpu in told.get("gpus", ())
    )
    if nvml or smi:
        return (*(nvml or smi), *amd), cuda, "NVML" if nvml else "nvidia-smi"
    if amd:
        return amd, cuda, amd_kfd.TOPOLOGY
    silent = any(key in gathered.failures for key in ("nvml", "nvidia-smi"))
    return (None if silent else ()), cuda, "no driver of a GPU was seen"


def _facts(node: Node, gathered: Gathered, gpu_source: str, sources: list[str]) -> list[Fact]:
    facts = [
        Fact(name="arch", value=node.arch or "unknown", source="uname -m"),
        Fact(name="os", value=node.os or "unknown", source="/etc/os-release, uname -sr"),
        Fact(name="cpus", value=str(node.cpus or "unknown"), source="nproc"),
    ]
    for name, size in (("memory", node.memory_bytes), ("available memory", node.memory_available_bytes)):
        facts.append(Fact(name=name, value=_size(size), source="/proc/meminfo"))
    for gpu, source in zip(node.gpus or (), sources, strict=True):
        memory = f"{_size(gpu.memory_bytes)}{', shared with the host' if gpu.unified else ''}"
        facts.append(
            Fact(name="gpu", value=f"{gpu.name}, {gpu.target or 'unknown'}, {memory}", source=source)
        )
    if not node.gpus:
        facts.append(Fact(name="gpu", value="unknown" if node.gpus is None else "none", source=gpu_source))
    if node.gpus and node.gpus[0].driver:
        facts.append(Fact(name="driver", value=node.gpus[0].driver, source=gpu_source))
    if node.cuda:
        facts.append(Fact(name="cuda", value=node.cuda, source=gpu_source))
    for disk in node.disks:
        value = f"{_size(disk.free_bytes)} of {_size(disk.total_bytes)} free"
        facts.append(Fact(name=f"disk {disk.path}", value=value, source="df"))
    facts.append(Fact(name="docker", value=node.docker or "no client", source="PATH"))
    for source, why in (*gathered.failures.items(), *_refusals(gathered)):
        facts.append(Fact(name=f"no answer of {source}", value=why, source=source))
    return facts


def _refusals(gathered: Gathered) -> Iterator[tuple[str, str]]:
    """What NVML would not tell of each GPU."""
    told: dict[str, Any] = json.loads(gathered.texts.get("nvml", "{}"))
    for index, gpu in enumerate(told.get("gpus", ())):
        for name, why in gpu.get("errors", {}).items():
            yield f"NVML on the {name} of GPU {index}", why


def _meminfo(text: str) -> dict[str, int]:
    """MemTotal and the like, in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[0].isdigit() and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def _arch(machine: str | None) -> str | None:
    names = {"amd64": "x86_64", "arm64": "aarch64"}
    machine = (machine or "").strip().lower()
    return names.get(machine, machine) or None


def _os(texts: Mapping[str, str]) -> str | None:
    for line in texts.get("/etc/os-release", "").splitlines():
        if line.startswith("PRETTY_NAME="):
            pretty = line.partition("=")[2].strip("\"'")
            return f"{pretty} ({texts.get('uname -sr', '').strip()})"
    return texts.get("uname -sr", "").strip() or None


def _size(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _kfd_gpus(texts: Mapping[str, str]) -> Iterator[Gpu]:
    nodes = [path for path in texts if path.startswith(amd_kfd.TOPOLOGY) and "/mem_banks/" not in path]
    for path in sorted(nodes):
        banks = path.replace("/properties", "/mem_banks/")
        gpu = amd_kfd.parse_node(
            texts[path], tuple(text for name, text in texts.items() if name.startswith(banks))
        )
        if gpu is not None:
            yield gpu
