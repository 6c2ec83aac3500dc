"""The GPUs that `lanes` knows by name, as data.

Sources: NVIDIA's list of compute capabilities and AMD's list of LLVM targets; sizes as sold. A GPU
that is missing here still works when it is named by its capability (`sm_90`, `gfx942`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

GB = 10**9


@frozen(kw_only=True)
class GpuModel:
    """A GPU as it is sold.

    `capability` is NVIDIA's compute capability (`12.1`) or AMD's target (`gfx942`). `memory_gb` lists
    the sizes it is sold with, in units of 10^9 bytes (a card shows a few percent more, so this is on
    the safe side); `visible_bytes` is what the system shows where that is known to differ.
    `host_arch` is the machine it is soldered to, None where it is a card for any host. `tegra` GPUs are
    outside NVIDIA's promise of binary compatibility. `cuda_min` is the first CUDA that can compile for it.
    `unproven` maps a capability whose plain code should run here, by the rules, to the reason for doubt.
    """

    name: str
    capability: str
    architecture: str
    aliases: tuple[str, ...] = ()
    vendor: Literal["nvidia", "amd"] = "nvidia"
    memory_gb: tuple[int, ...] = ()
    visible_bytes: int | None = None
    unified: bool = False
    host_arch: str | None = None
    tegra: bool = False
    cuda_min: str | None = None
    unproven: Mapping[str, str] = field(factory=dict)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes to count on; None where the GPU is sold with several sizes, or with none of its own."""
        if self.visible_bytes is not None:
            return self.visible_bytes
        return self.memory_gb[0] * GB if len(self.memory_gb) == 1 else None


def _nvidia(name: str, capability: str, architecture: str, *memory_gb: int, arm: bool = False) -> GpuModel:
    return GpuModel(
        name=name,
        capability=capability,
        architecture=architecture,
        memory_gb=memory_gb,
        host_arch="aarch64" if arm else None,
        cuda_min=CUDA_MIN.get(capability),
    )


def _amd(
    name: str, capability: str, architecture: str, *memory_gb: int, aliases: tuple[str, ...] = ()
) -> GpuModel:
    return GpuModel(
        name=name,
        capability=capability,
        architecture=architecture,
        vendor="amd",
        memory_gb=memory_gb,
        aliases=aliases,
    )


CUDA_MIN: Mapping[str, str] = {"12.0": "12.8", "12.1": "12.9", "11.0": "13.0"}
"""Capability -> the first CUDA toolkit that compiles for it, where that matters today."""

CUDA_13_FLOOR = (7, 5)
"""CUDA 13 compiles for nothing below this capability."""

GPUS: tuple[GpuModel, ...] = (
    _nvidia("V100", "7.0", "Volta", 16, 32),
    _nvidia("T4", "7.5", "Turing", 16),
    _nvidia("A100", "8.0", "Ampere", 40, 80),
    _nvidia("A30", "8.0", "Ampere", 24),
    _nvidia("A10", "8.6", "Ampere", 24),
    _nvidia("A40", "8.6", "Ampere", 48),
    _nvidia("RTX 3090", "8.6", "Ampere", 24),
    GpuModel(
        name="Jetson Orin",
        aliases=("orin", "agx orin", "jetson agx orin"),
        capability="8.7",
        architecture="Ampere",
        unified=True,
        host_arch="aarch64",
        tegra=True,
    ),
    _nvidia("L4", "8.9", "Ada", 24),
    _nvidia("L40S", "8.9", "Ada", 48),
    _nvidia("RTX 4090", "8.9", "Ada", 24),
    _nvidia("H100", "9.0", "Hopper", 80),
    GpuModel(
        name="H200",
        capability="9.0",
        architecture="Hopper",
        memory_gb=(141,),
        # 150754820096 bytes by NVML on an H200 with driver 580.159.04.
        visible_bytes=150_754_820_096,
    ),
    _nvidia("GH200", "9.0", "Hopper", 96, 144, arm=True),
    _nvidia("B200", "10.0", "Blackwell", 180),
    _nvidia("GB200", "10.0", "Blackwell", 180, arm=True),
    _nvidia("B300", "10.3", "Blackwell Ultra", 288),
    _nvidia("GB300", "10.3", "Blackwell Ultra", 288, arm=True),
    GpuModel(
        name="Jetson Thor",
        # Toolkits before CUDA 13 called it 10.1.
        aliases=("thor", "agx thor", "jetson agx thor", "sm_101", "10.1"),
        capability="11.0",
        architecture="Blackwell",
        unified=True,
        host_arch="aarch64",
        tegra=True,
        cuda_min=CUDA_MIN["11.0"],
    ),
    _nvidia("RTX 5090", "12.0", "Blackwell", 32),
    _nvidia("RTX PRO 6000", "12.0", "Blackwell", 96),
    GpuModel(
        name="GB10",
        aliases=("dgx spark", "spark"),
        capability="12.1",
        architecture="Blackwell",
        memory_gb=(128,),
        # About 121.7 GiB of the 128 GB are left to the operating system.
        visible_bytes=int(121.7 * 2**30),
        unified=True,
        host_arch="aarch64",
        cuda_min=CUDA_MIN["12.1"],
        unproven={
            "12.0": "builders ship 120f and 121a apart because plain sm_120 code has ended in an illegal "
            "instruction or in broken tokens there"
        },
    ),
    _amd("MI300X", "gfx942", "CDNA 3", 192),
    _amd("MI325X", "gfx942", "CDNA 3", 256),
    _amd("MI350X", "gfx950", "CDNA 4", 288),
    _amd("MI355X", "gfx950", "CDNA 4", 288),
    GpuModel(
        name="Strix Halo",
        aliases=("ryzen ai max", "ryzen ai max+ 395"),
        capability="gfx1151",
        architecture="RDNA 3.5",
        vendor="amd",
        unified=True,
        host_arch="x86_64",
    ),
    _amd("RX 7900", "gfx1100", "RDNA 3", aliases=("rx 7900 xtx", "rx 7900 xt")),
    _amd("RX 7800", "gfx1101", "RDNA 3", aliases=("rx 7800 xt", "rx 7700 xt")),
    _amd("RX 7600", "gfx1102", "RDNA 3"),
    _amd("RX 9060", "gfx1200", "RDNA 4", aliases=("rx 9060 xt",)),
    _amd("RX 9070", "gfx1201", "RDNA 4", aliases=("rx 9070 xt",)),
)


def by_capability(capability: str) -> tuple[GpuModel, ...]:
    """The known GPUs of one capability, in the order of the table; empty where none is known."""
    return tuple(gpu for gpu in GPUS if gpu.capability == capability)
