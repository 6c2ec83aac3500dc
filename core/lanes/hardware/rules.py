"""Which code runs on which GPU: NVIDIA's rules for cubin, PTX, `a` and `f`, and AMD's exact names.

Capabilities are never compared by `>=` alone: a suffix, a change of the major number or an embedded
GPU (Tegra) each end compatibility in their own way. Sources: NVIDIA's CUDA programming guide
(compute capability, binary and PTX compatibility, architecture- and family-specific features) and
AMD's list of LLVM targets.
"""

from __future__ import annotations

import enum
import re

from attrs import frozen

from lanes.hardware.gpus import by_capability
from lanes.hardware.targets import Suffix, Target
from lanes.types import Verdict


class CodeKind(enum.Enum):
    """What a piece of GPU code is."""

    SASS = "sass"
    """Machine code for NVIDIA GPUs, a cubin."""
    PTX = "ptx"
    """NVIDIA's intermediate language, compiled by the driver when it is loaded."""
    LTO = "lto"
    """Intermediate code that only a linker reads; it cannot be loaded by itself."""
    AMD = "amd"
    """A code object for AMD GPUs."""
    OTHER = "other"
    """An entry of a kind that is not known to `lanes`."""


@frozen(kw_only=True)
class Code:
    """GPU code for one architecture: `arch` is `90` for NVIDIA (major x 10 + minor), `gfx942` for AMD.

    AMD's feature suffixes stay part of `arch` (`gfx942:xnack+`). `relocatable` code waits for a device linker and is
    no help by itself.
    """

    kind: CodeKind
    arch: str
    suffix: Suffix = ""
    relocatable: bool = False

    @property
    def name(self) -> str:
        """The compiler's spelling: `sm_90a`, `compute_80`, `gfx942`, with a mark on relocatable code."""
        prefix = {
            CodeKind.SASS: "sm_",
            CodeKind.PTX: "compute_",
            CodeKind.LTO: "lto_",
            CodeKind.OTHER: "other_",
        }
        return f"{prefix.get(self.kind, '')}{self.arch}{self.suffix}{' (relocatable)' if self.relocatable else ''}"

    @property
    def capability(self) -> str:
        """`9.0`, or AMD's name without features."""
        return (
            self.arch.partition(":")[0] if self.kind is CodeKind.AMD else f"{self.arch[:-1]}.{self.arch[-1]}"
        )


@frozen(kw_only=True)
class Answer:
    """Whether code runs on a target: the verdict, the rule in one sentence, and what it hangs on.

    `condition` is what must also be true and is not decided here (a driver new enough for the PTX).
    """

    verdict: Verdict
    reason: str
    condition: str | None = None


FAMILIES = {
    "10.0": ("10.0", "10.3"),
    "10.3": ("10.3",),
    "11.0": ("11.0",),
    "12.0": ("12.0", "12.1"),
    "12.1": ("12.1",),
}
"""Capability of `f` code -> the capabilities it runs on (CUDA 12.9 and later)."""

THOR_BEFORE_CUDA_13 = "10.1"
JIT_CONDITION = "the driver must be at least as new as the toolkit that made the PTX"


def runs_on(code: Code, target: Target) -> Answer:
    """Say whether `code` runs on `target`, by the rules; never by experience, except where noted."""
    if (code.kind is CodeKind.AMD) != (target.vendor == "amd"):
        maker = "AMD" if code.kind is CodeKind.AMD else "NVIDIA"
        return _no(f"{code.name} is code for {maker} GPUs, and {target.label} is none")
    if code.kind is CodeKind.AMD:
        return _amd(code, target)
    if code.kind in (CodeKind.LTO, CodeKind.OTHER) or code.relocatable:
        return _unknown(
            f"{code.name} has to be linked before it can be loaded, which nobody has promised here"
        )
    if code.suffix:
        return _suffixed(code, target)
    return _ptx(code, target) if code.kind is CodeKind.PTX else _cubin(code, target)


def _cubin(code: Code, target: Target) -> Answer:
    if code.capability == target.capability:
        return _yes(f"{code.name} is made for {target.label}")
    major, minor = _numbers(code)
    if code.capability == THOR_BEFORE_CUDA_13 and target.capability == "11.0":
        return _unknown(
            f"{code.name} is what CUDA 12 called Thor; whether {target.label} still takes it is not promised"
        )
    if major != target.major:
        return _no(
            f"a cubin runs within its major capability only: {code.name} is {major}.x, {target.label} is {target.major}.x"
        )
    if target.tegra or any(model.tegra for model in by_capability(code.capability)):
        return _unknown(
            f"NVIDIA promises no binary compatibility with Tegra: {code.name} on {target.label} is untold"
        )
    if minor > target.minor:
        return _no(
            f"a cubin needs the same or a higher minor capability: {code.name} is newer than {target.label}"
        )
    for model in target.models:
        if code.capability in model.unproven:
            return _unknown(f"{code.name} should run on {target.label} by the rules (likely), but unproven: "
                            f"{model.unproven[code.capability]}")  # fmt: skip
    return _yes(f"a cubin runs on a higher minor of its major: {code.name} on {target.label}")


def _ptx(code: Code, target: Target) -> Answer:
    if _numbers(code) > (target.major, target.minor):
        return _no(f"PTX is compiled forward only: {code.name} is newer than {target.label}")
    return Answer(
        verdict=Verdict.RUNNABLE,
        reason=f"PTX is compiled forward at load: {code.name} on {target.label}",
        condition=JIT_CONDITION,
    )


def _suffixed(code: Code, target: Target) -> Answer:
    condition = JIT_CONDITION if code.kind is CodeKind.PTX else None
    if code.capability == target.capability:
        return Answer(
            verdict=Verdict.RUNNABLE, reason=f"{code.name} is made for {target.label}", condition=condition
        )
    if code.suffix == "a":
        return _no(f"the suffix a binds code to one capability: {code.name} runs on {code.capability} alone")
    family = FAMILIES.get(code.capability)
    if family is None:
        return _unknown(f"the family of {code.name} is not known")
    if target.capability not in family:
        return _no(f"the suffix f covers a family: {code.name} runs on {' and '.join(family)}")
    return Answer(
        verdict=Verdict.RUNNABLE,
        reason=f"the suffix f covers the family {' and '.join(family)}: {code.name} on {target.label}",
        condition=condition,
    )


def _amd(code: Code, target: Target) -> Answer:
    base, _, features = code.arch.partition(":")
    if "generic" in base:
        return _unknown(f"{base} is a generic target, and which GPUs it covers is not in the table")
    if base != target.capability:
        return _no(f"AMD code runs on exactly the target it is named for: {base} is not {target.label}")
    on = re.findall(r"(\w+)\+", features)
    if on:
        return _unknown(f"{code.arch} runs on {target.label} only where {' and '.join(on)} is switched on")
    return _yes(f"{code.name} is made for {target.label}")


def _numbers(code: Code) -> tuple[int, int]:
    return int(code.arch[:-1]), int(code.arch[-1])


def _yes(reason: str) -> Answer:
    return Answer(verdict=Verdict.RUNNABLE, reason=reason)


def _no(reason: str) -> Answer:
    return Answer(verdict=Verdict.UNRUNNABLE, reason=reason)


def _unknown(reason: str) -> Answer:
    return Answer(verdict=Verdict.UNKNOWN, reason=reason)
