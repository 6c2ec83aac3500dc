"""The names by which people ask for an architecture, read into one value.

`sm_121`, `sm121`, `SM 12.1`, `12.1`, `121a`, `compute_121`, `gb10`, `dgx-spark`, `NVIDIA GB10`,
`gfx942`, `MI300X` ... Anything else is a UsageError that lists the nearest names.
"""

from __future__ import annotations

import difflib
import re
from typing import Literal

from attrs import frozen

from lanes.errors import UsageError
from lanes.hardware.gpus import GPUS, GpuModel, by_capability

Suffix = Literal["", "a", "f"]

_SM = re.compile(r"(?:sm|compute|cc)?(\d{2,3})([af]?)")
_DOTTED = re.compile(r"(?:sm|compute|cc)?(\d{1,2})\.(\d)([af]?)")
_GFX = re.compile(r"gfx[0-9a-f]{3,5}")
_MEMORY = re.compile(r"(\d{1,4})g(?:i?b)?")
# What drivers and shops put around a name without changing the GPU that is meant.
_NOISE = re.compile(
    r"nvidia|amd|tesla|geforce|instinct|radeon|tensor|core|gpu|nvgpu|graphics|generation|blackwell|"
    r"sxm\d*|pcie|nvl\d*|oam|hbm\d*e?|workstation|server|edition|max|q"
)


@frozen(kw_only=True)
class Target:
    """An architecture that code is to run on.

    `capability` is `12.1` for NVIDIA and `gfx942` for AMD. `models` are the GPUs that are meant: one
    when a GPU was named, all of that capability otherwise, none for a capability without a known
    GPU. `memory_bytes` is set where the name said it (`a100-80gb`). `spelled` is what was asked for.
    """

    capability: str
    vendor: Literal["nvidia", "amd"]
    models: tuple[GpuModel, ...] = ()
    suffix: Suffix = ""
    memory_bytes: int | None = None
    spelled: str = ""

    @property
    def major(self) -> int:
        """NVIDIA's major capability; 0 for AMD."""
        return int(self.capability.partition(".")[0]) if self.vendor == "nvidia" else 0

    @property
    def minor(self) -> int:
        """NVIDIA's minor capability; 0 for AMD."""
        return int(self.capability.partition(".")[2]) if self.vendor == "nvidia" else 0

    @property
    def arch(self) -> str:
        """The compiler's name: `sm_121`, `gfx942`."""
        return _arch_name(self.capability)

    @property
    def model(self) -> GpuModel | None:
        """The GPU that is meant, where it is just one."""
        return self.models[0] if len(self.models) == 1 else None

    @property
    def tegra(self) -> bool:
        """Is it outside NVIDIA's promise of binary compatibility?"""
        return bool(self.models) and all(model.tegra for model in self.models)

    @property
    def unified(self) -> bool:
        """Does the GPU share the host's memory?"""
        return bool(self.models) and all(model.unified for model in self.models)

    @property
    def host_arch(self) -> str | None:
        """The host's machine (`aarch64`), where every GPU that is meant comes with the same one."""
        hosts = {model.host_arch for model in self.models}
        return hosts.pop() if len(hosts) == 1 else None

    @property
    def label(self) -> str:
        """`sm_121 (GB10)`; without a GPU's name where several or none are meant."""
        return f"{self.arch} ({self.model.name})" if self.model else self.arch


_SPLIT = re.compile(r"[\s_\-()®™/]+")


def _squeeze(name: str) -> str:
    return _SPLIT.sub("", name.lower())


def _arch_name(capability: str) -> str:
    return capability if capability.startswith("gfx") else "sm_" + capability.replace(".", "")


_NAMES = {_squeeze(name): gpu for gpu in GPUS for name in (gpu.name, *gpu.aliases)}


def of_capability(capability: str, *, suffix: Suffix = "", spelled: str = "") -> Target:
    """The target of a capability that is already well formed (`12.1`, `gfx942`)."""
    vendor: Literal["nvidia", "amd"] = "amd" if capability.startswith("gfx") else "nvidia"
    return Target(
        capability=capability,
        vendor=vendor,
        models=by_capability(capability),
        suffix=suffix,
        spelled=spelled or capability,
    )


def parse_target(text: str) -> Target:
    """Read an architecture as people write it.

    Raises UsageError for a name that is not known, with the nearest known ones.
    """
    gpu, memory_bytes = _gpu_named(text)
    if gpu is not None:
        return gpu_target(gpu, spelled=text, memory_bytes=memory_bytes)
    name = _squeeze(text)
    generation = {model.capability for model in GPUS if _squeeze(model.architecture) == name}
    if len(generation) == 1:
        return of_capability(generation.pop(), spelled=text)
    if generation:
        raise UsageError(
            f"{text!r} names several architectures",
            f"Choose one: {', '.join(map(_arch_name, sorted(generation)))}.",
        )
    if _GFX.fullmatch(name.partition(":")[0]):
        return of_capability(name.partition(":")[0], spelled=text)
    capability, suffix = _capability(name)
    if capability is None:
        near = nearest(text)
        raise UsageError(
            f"unknown GPU architecture {text[:60]!r}",
            f"Did you mean {', '.join(near)}?"
            if near
            else "Try a name such as sm_121, gb10, h200 or gfx942.",
        )
    return of_capability(capability, suffix=suffix, spelled=text)


def gpu_named(name: str) -> Target | None:
    """The target of a GPU by the name that its driver gives; None for a GPU that is not in the table."""
    gpu, memory_bytes = _gpu_named(name)
    return gpu_target(gpu, spelled=name, memory_bytes=memory_bytes) if gpu else None


def gpu_target(gpu: GpuModel, *, spelled: str = "", memory_bytes: int | None = None) -> Target:
    """The target that one GPU of the table stands for."""
    return Target(
        capability=gpu.capability,
        vendor=gpu.vendor,
        models=(gpu,),
        memory_bytes=memory_bytes,
        spelled=spelled or gpu.name,
    )


def nearest(text: str, limit: int = 3) -> tuple[str, ...]:
    """The known names that look most like `text`, best first."""
    names: dict[str, str] = {}
    for gpu in GPUS:
        for name in (gpu.name, *gpu.aliases):
            names[_squeeze(name)] = name.lower().replace(" ", "-")
        arch = _arch_name(gpu.capability)
        names[_squeeze(arch)] = arch
    found = difflib.get_close_matches(_squeeze(text), names, n=limit, cutoff=0.5)
    return tuple(dict.fromkeys(names[key] for key in found))


def _gpu_named(text: str) -> tuple[GpuModel | None, int | None]:
    whole = _NAMES.get(_squeeze(text))
    if whole:
        return whole, None
    words = [word for word in _SPLIT.split(text.lower()) if word and not _NOISE.fullmatch(word)]
    sizes = [word for word in words if _MEMORY.fullmatch(word)]
    gpu = _NAMES.get("".join(word for word in words if word not in sizes))
    size = _MEMORY.fullmatch(sizes[0]) if sizes else None
    # A Grace Hopper calls itself "GH200 480GB" after its host's memory: only a size it is sold with counts.
    known = gpu is not None and size is not None and int(size[1]) in gpu.memory_gb
    return gpu, int(size[1]) * 10**9 if size and known else None


def _capability(name: str) -> tuple[str | None, Suffix]:
    dotted = _DOTTED.fullmatch(name)
    packed = _SM.fullmatch(name)
    if dotted:
        major, minor, tail = int(dotted[1]), int(dotted[2]), dotted[3]
    elif packed:
        major, minor, tail = int(packed[1][:-1]), int(packed[1][-1]), packed[2]
    else:
        return None, ""
    # Whoever types sm_900 has made a slip: NVIDIA's majors go from 1 to 12 so far, with room to grow.
    if not 3 <= major <= 19:
        return None, ""
    suffix: Suffix = "a" if tail == "a" else "f" if tail == "f" else ""
    return f"{major}.{minor}", suffix
