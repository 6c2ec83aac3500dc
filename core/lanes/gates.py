"""Checks that engines share: what an engine says it needs, held against the nodes of a lane.

Each gate answers one question about all nodes with one finding: that of the worst node, which is named
where there are several. A gate answers None where its question does not apply: on hardware that is only
asked about, a fact that is no property of the hardware (driver, disks, free memory) and is not known
says nothing. On a real node such a fact is UNKNOWN, never RUNNABLE, and the finding says where to look.
All findings about nodes are DECLARED: what the engine needs is a table's word, however well the node is
known. What a binary really holds is PROBED by core, from a recipe's `artifacts`.
"""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from lanes.types import Disk, Evidence, Finding, Gpu, Kind, Node, Verdict

if TYPE_CHECKING:
    from lanes.hardware.rules import Answer, Code
    from lanes.hardware.targets import Target

GIB = 2**30

_RUNNABLE, _UNKNOWN, _UNRUNNABLE = Verdict.RUNNABLE, Verdict.UNKNOWN, Verdict.UNRUNNABLE
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}


@frozen(kw_only=True)
class _Said:
    """What a gate says of one node. `next_step` is what to do about it."""

    verdict: Verdict
    reason: str
    next_step: str | None = None


def sm(
    nodes: Sequence[Node],
    codes: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    source: str,
    what: str = "the published build",
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `sm`: does the GPU code that a build is declared to hold run on the GPUs?

    `codes` are the compiler's names: `sm_90a`, `sm_100f`, `compute_90` (PTX), `gfx942`; a mapping gives
    them for each host architecture (`x86_64`, `aarch64`). Held by the rules of `lanes.hardware.rules`.
    """

    def one(node: Node) -> _Said:
        held = _codes_for(node, codes)
        return _each_gpu(node, lambda target: _runs(target, held, what))

    return _finding("sm", nodes, one, source, engine_version, date, recheck_when, next_step)


def sm_only(
    nodes: Sequence[Node],
    capabilities: Sequence[str],
    *,
    source: str,
    why: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `sm`: the engine itself admits these capabilities alone.

    `10` is any capability of major 10, `12.1` just that one, `gfx942` AMD's target. `why` tells how it
    refuses the others.
    """

    def one(node: Node) -> _Said:
        return _each_gpu(node, lambda target: _admitted(target, capabilities, why))

    return _finding("sm", nodes, one, source, engine_version, date, recheck_when, next_step)


def host_arch(
    nodes: Sequence[Node],
    machines: Sequence[str],
    *,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `host_arch`: is there a build for the host's processor (`x86_64`, `aarch64`)?"""
    known = [_machine(machine) for machine in machines]

    def one(node: Node) -> _Said:
        if node.arch is None:
            return _not_known(node, "the host's architecture is not known", "`uname -m` prints")
        if _machine(node.arch) in known:
            return _Said(verdict=_RUNNABLE, reason=f"there is a build for {_machine(node.arch)} hosts")
        return _Said(
            verdict=_UNRUNNABLE, reason=f"there are builds for {' and '.join(known)}, not for {node.arch}"
        )

    return _finding("host_arch", nodes, one, source, engine_version, date, recheck_when, next_step)


def cuda(
    nodes: Sequence[Node],
    minimum: str,
    *,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `driver`: does the driver serve CUDA `minimum` (`13.0`)?"""

    def one(node: Node) -> _Said | None:
        if node.cuda is None:
            if node.hypothetical or node.gpus == ():
                return None
            reason = f"CUDA {minimum} is needed, and what the driver serves is not known"
            return _not_known(node, reason, "`nvidia-smi` prints")
        if _version(node.cuda) >= _version(minimum):
            return _Said(verdict=_RUNNABLE, reason=f"the driver serves CUDA {node.cuda}, {minimum} is needed")
        return _Said(
            verdict=_UNRUNNABLE,
            reason=f"the driver serves CUDA up to {node.cuda}, and {minimum} is needed",
            next_step="update the driver, or use a build for an older CUDA",
        )

    return _finding("driver", nodes, one, source, engine_version, date, recheck_when, next_step)


def memory(
    nodes: Sequence[Node],
    *,
    weights_bytes: int | None,
    kv_bytes: int | None = 0,
    overhead_bytes: int | None = 0,
    gpus_used: int,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `memory`: do weights, KV cache and overhead fit each GPU that is used?

    All sizes are those of one rank, on one GPU; `gpus_used` are those of each node. None is not known, and
    makes the answer UNKNOWN unless what is known is too much already. GPUs that share the host's memory
    share it among each other too. Whether there are GPUs at all is another gate's question.
    """
    sizes = {"weights": weights_bytes, "KV cache": kv_bytes, "overhead": overhead_bytes}
    need = sum(size or 0 for size in sizes.values())
    missing = [name for name, size in sizes.items() if size is None]
    parts = " + ".join(f"{size / GIB:.1f} GiB of {name}" for name, size in sizes.items() if size)

    def one(node: Node) -> _Said | None:
        if node.gpus == ():
            return None
        have = _gpu_memory(node, gpus_used)
        if have is None:
            return _not_known(node, "how much memory its GPUs have is not known", "`nvidia-smi` prints")
        if need > have:
            return _Said(
                verdict=_UNRUNNABLE,
                reason=f"a rank needs {parts}, and a GPU has {have / GIB:.1f} GiB for it",
                next_step="spread the model over more GPUs, or choose a smaller one",
            )
        if missing:
            known = f"{parts} fit {have / GIB:.1f} GiB, and " if parts else ""
            return _Said(
                verdict=_UNKNOWN,
                reason=f"{known}the size of {' and '.join(missing)} is not known",
                next_step="find it out and put it into the recipe",
            )
        return _Said(
            verdict=_RUNNABLE, reason=f"a rank needs {parts}, and a GPU has {have / GIB:.1f} GiB for it"
        )

    return _finding("memory", nodes, one, source, engine_version, date, recheck_when, next_step)


def free_memory(
    nodes: Sequence[Node],
    minimum_bytes: int,
    *,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `free-memory`: is so much of the host's memory available now (`MemAvailable`)?

    Where not even the whole memory would do, nobody need look at what is free.
    """

    def one(node: Node) -> _Said | None:
        if node.memory_bytes is not None and node.memory_bytes < minimum_bytes:
            return _Said(
                verdict=_UNRUNNABLE,
                reason=f"{minimum_bytes / GIB:.0f} GiB must be free, and there are {node.memory_bytes / GIB:.1f} GiB in all",
            )
        free = node.memory_available_bytes
        if free is None:
            if node.hypothetical:
                return None
            reason = f"{minimum_bytes / GIB:.0f} GiB must be free, and what is free is not known"
            return _not_known(node, reason, "MemAvailable in /proc/meminfo says")
        said = f"{minimum_bytes / GIB:.0f} GiB must be free, and {free / GIB:.1f} GiB are"
        if free >= minimum_bytes:
            return _Said(verdict=_RUNNABLE, reason=said)
        return _Said(
            verdict=_UNRUNNABLE,
            reason=said,
            next_step="stop what else uses memory there, and drop the file cache",
        )

    return _finding("free-memory", nodes, one, source, engine_version, date, recheck_when, next_step)


def disk(
    nodes: Sequence[Node],
    needed_bytes: int | None,
    *,
    path: str,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `disk`: is there room for `needed_bytes` at `path`? None is not known."""

    def one(node: Node) -> _Said | None:
        under = _disk_of(node.disks, path)
        if under is None or needed_bytes is None:
            if node.hypothetical:
                return None
            if needed_bytes is None:
                step = "find out its size and put it into the recipe"
                reason = f"how much is needed at {path} is not known"
                return _Said(verdict=_UNKNOWN, reason=reason, next_step=step)
            return _not_known(node, f"what is free at {path} is not known", f"`df {path}` prints")
        said = f"{needed_bytes / GIB:.0f} GiB are needed at {path}, and {under.free_bytes / GIB:.0f} GiB are free"
        if under.free_bytes >= needed_bytes:
            return _Said(verdict=_RUNNABLE, reason=said)
        return _Said(verdict=_UNRUNNABLE, reason=said, next_step="free some space, or stage to another disk")

    return _finding("disk", nodes, one, source, engine_version, date, recheck_when, next_step)


def image_platform(
    nodes: Sequence[Node],
    platforms: Sequence[str] | None,
    *,
    image: str,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `image`: is the container image made for the host (`linux/arm64`)? None is not known."""

    def one(node: Node) -> _Said:
        if platforms is None:
            return _Said(
                verdict=_UNKNOWN,
                reason=f"which platforms {image} is for is not known",
                next_step=f"see what `docker image inspect {image}` says of its architecture",
            )
        if node.arch is None:
            return _not_known(node, "the host's architecture is not known", "`uname -m` prints")
        machines = [_machine(platform.split("/")[1]) for platform in platforms]
        if _machine(node.arch) in machines:
            return _Said(verdict=_RUNNABLE, reason=f"{image} is made for {node.arch}")
        return _Said(
            verdict=_UNRUNNABLE,
            reason=f"{image} is made for {' and '.join(machines)}, and the host is {node.arch}",
            next_step="name an image that is made for that host",
        )

    return _finding("image", nodes, one, source, engine_version, date, recheck_when, next_step)


def node_count(
    nodes: Sequence[Node],
    allowed: Sequence[int],
    *,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `nodes`: does the engine run on so many nodes?"""
    words = " or ".join(map(str, allowed))
    good = len(nodes) in allowed
    said = _Said(
        verdict=_RUNNABLE if good else _UNRUNNABLE,
        reason=f"it runs on {words} nodes, and there {'is' if len(nodes) == 1 else 'are'} {len(nodes)}",
        next_step=None if good else f"use a cluster of {words}",
    )
    return _made("nodes", said, source, engine_version, date, recheck_when, next_step)


def gpu_count(
    nodes: Sequence[Node],
    per_node: int,
    *,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding | None:
    """Question `gpus`: has each node as many GPUs as hold ranks there?

    Of hardware that is only asked about, one may buy as many as it takes.
    """

    def one(node: Node) -> _Said | None:
        if node.gpus is None:
            return None if node.hypothetical else _gpus_not_known(node)
        have = len(node.gpus)
        if have >= per_node:
            return _Said(
                verdict=_RUNNABLE,
                reason=f"{_gpus(per_node)} of each node {_are(per_node)} used, and it has {have}",
            )
        if node.hypothetical and have:
            return None
        return _Said(
            verdict=_UNRUNNABLE,
            reason=f"{_gpus(per_node)} of each node {_are(per_node)} used, and it has {have or 'none'}",
            next_step="use nodes with more GPUs, or spread the lane over more nodes",
        )

    return _finding("gpus", nodes, one, source, engine_version, date, recheck_when, next_step)


def serving(
    *,
    available: bool,
    reason: str,
    source: str,
    engine_version: str | None = None,
    date: datetime.date | None = None,
    recheck_when: str | None = None,
    next_step: str | None = None,
) -> Finding:
    """Question `server`, of the kind SERVING: is there a server that can be measured?"""
    said = _Said(verdict=_RUNNABLE if available else _UNRUNNABLE, reason=reason)
    made = _made("server", said, source, engine_version, date, recheck_when, next_step)
    return evolve(made, kind=Kind.SERVING)


def program(name: str, *, engine_version: str | None = None, next_step: str | None = None) -> Finding:
    """Question `program`, of the kind CONFIGURATION: is this program on the PATH of this machine? PROBED."""
    found = shutil.which(name)
    said = _Said(
        verdict=_RUNNABLE if found else _UNRUNNABLE,
        reason=f"{name} is {found}" if found else f"there is no {name} on this machine",
    )
    made = _made("program", said, "PATH", engine_version, None, None, next_step)
    return evolve(made, kind=Kind.CONFIGURATION, evidence=Evidence.PROBED)


# -- one node, one GPU ----------------------------------------------------------------------------


def _not_known(node: Node, reason: str, told_by: str) -> _Said:
    """On a real node somebody can look; hardware that is only asked about is nowhere."""
    step = None if node.hypothetical else f"see what {told_by} on that node"
    return _Said(verdict=_UNKNOWN, reason=reason, next_step=step)


def _gpus_not_known(node: Node) -> _Said:
    return _not_known(node, "which GPUs it has is not known", "`nvidia-smi` or `rocminfo` prints")


def _each_gpu(node: Node, judge: Callable[[Target], _Said]) -> _Said:
    """The worst of the node's GPUs; no GPU is a no, and not knowing them is not knowing."""
    if node.gpus is None:
        return _gpus_not_known(node)
    if not node.gpus:
        return _Said(
            verdict=_UNRUNNABLE,
            reason="it needs a GPU, and there is none",
            next_step="use nodes with a GPU; `lanes caps` shows which would do",
        )
    return _worst(_of_gpu(node, gpu, judge) for gpu in dict.fromkeys(node.gpus))


def _of_gpu(node: Node, gpu: Gpu, judge: Callable[[Target], _Said]) -> _Said:
    from lanes.hardware.targets import gpu_named, of_capability

    if gpu.target is None:
        reason = f"the compute capability of {gpu.name} is not known"
        return _not_known(node, reason, "`nvidia-smi --query-gpu=compute_cap --format=csv` prints")
    named = gpu_named(gpu.name)
    # The driver's word on the capability counts; the name adds what the table knows of the GPU.
    return judge(named if named and named.capability == gpu.target else of_capability(gpu.target))


def _runs(target: Target, held: Sequence[Sequence[str]], what: str) -> _Said:
    """The best that the codes offer, for each build that it may be (one, where the host is known)."""
    if not held:
        return _Said(verdict=_UNKNOWN, reason=f"what {what} holds for this host is not known")
    answers = [_best(codes, target, what) for codes in held]
    worst = _worst(answers)
    # Which build it will be is not known: only what all of them say is said.
    if len({answer.verdict for answer in answers}) > 1:
        return _Said(
            verdict=_UNKNOWN, reason=f"it depends on the host's architecture, not known: {worst.reason}"
        )
    return worst


def _best(names: Sequence[str], target: Target, what: str) -> _Said:
    from lanes.hardware.rules import CodeKind, runs_on

    codes = [_code(name) for name in names]
    fitting = [code for code in codes if (code.kind is CodeKind.AMD) == (target.vendor == "amd")]
    answers: list[tuple[Code, Answer]] = [(code, runs_on(code, target)) for code in fitting]
    # Machine code comes first: a driver compiles PTX only where there is none.
    answers.sort(
        key=lambda pair: (pair[1].verdict.severity, pair[0].kind is CodeKind.PTX, pair[0].suffix == "")
    )
    if not answers or answers[0][1].verdict is _UNRUNNABLE:
        held = ", ".join(code.name for code in fitting) or "none for GPUs of that make"
        return _Said(verdict=_UNRUNNABLE, reason=f"{what} has no code for {target.label}: it holds {held}")
    best = answers[0][1]
    return _Said(verdict=best.verdict, reason=f"{what}: {best.reason}", next_step=best.condition)


def _admitted(target: Target, capabilities: Sequence[str], why: str) -> _Said:
    words = _capability_words(capabilities)
    if any(one in (target.capability, target.capability.split(".")[0]) for one in capabilities):
        return _Said(verdict=_RUNNABLE, reason=f"it admits {words}, and {target.label} is one")
    return _Said(verdict=_UNRUNNABLE, reason=f"it admits {words} alone, and {target.label} is none: {why}")


def _capability_words(capabilities: Sequence[str]) -> str:
    amd = [one for one in capabilities if one.startswith("gfx")]
    nvidia = [one if "." in one else f"{one}.x" for one in capabilities if one not in amd]
    makes = [f"compute capability {' and '.join(nvidia)}"] if nvidia else []
    return " and ".join((*makes, *amd))


def _code(name: str) -> Code:
    from lanes.hardware.rules import Code, CodeKind

    if name.startswith("gfx"):
        return Code(kind=CodeKind.AMD, arch=name)
    found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", name)
    if found is None:
        raise ValueError(f"{name!r} is no name of GPU code such as sm_90a, compute_90 or gfx942")
    kind = CodeKind.SASS if found[1] == "sm" else CodeKind.PTX
    suffix = "a" if found[3] == "a" else "f" if found[3] == "f" else ""
    return Code(kind=kind, arch=found[2], suffix=suffix)  # type: ignore[arg-type]


def _codes_for(node: Node, codes: Sequence[str] | Mapping[str, Sequence[str]]) -> list[Sequence[str]]:
    """The builds that the node may get: one where its host is known, all where it is not."""
    if not isinstance(codes, Mapping):
        return [codes]
    if node.arch is None:
        return list(codes.values())
    return [names for machine, names in codes.items() if _machine(machine) == _machine(node.arch)]


def _gpu_memory(node: Node, used: int) -> int | None:
    """Bytes that one rank may use: a GPU's own, or its share of a memory that GPUs and host share."""
    if not node.gpus:
        return None
    if any(gpu.unified for gpu in node.gpus):
        whole = node.memory_bytes or node.gpus[0].memory_bytes
        return None if whole is None else whole // max(used, 1)
    sizes = [gpu.memory_bytes for gpu in node.gpus]
    return None if None in sizes else min(size for size in sizes if size is not None)


def _disk_of(disks: Iterable[Disk], path: str) -> Disk | None:
    """The filesystem that holds `path`: that with the longest path above it."""
    above = [one for one in disks if (path + "/").startswith(one.path.rstrip("/") + "/")]
    return max(above, key=lambda one: len(one.path), default=None)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _machine(name: str) -> str:
    return _MACHINES.get(name.lower(), name.lower())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


# -- one finding for all nodes --------------------------------------------------------------------


def _worst(said: Iterable[_Said]) -> _Said:
    return max(said, key=lambda one: one.verdict.severity)


def _finding(
    question: str,
    nodes: Sequence[Node],
    judge: Callable[[Node], _Said | None],
    source: str,
    engine_version: str | None,
    date: datetime.date | None,
    recheck_when: str | None,
    next_step: str | None,
) -> Finding | None:
    """Ask of each node; None where the question applies to none of them."""
    answers = [(node, said) for node in nodes if (said := judge(node)) is not None]
    if not answers:
        return None
    node, worst = max(answers, key=lambda pair: pair[1].verdict.severity)
    if len({said for _, said in answers}) > 1:
        worst = evolve(worst, reason=f"on {node.name} {worst.reason}")
    return _made(question, worst, source, engine_version, date, recheck_when, next_step)


def _made(
    question: str,
    said: _Said,
    source: str,
    engine_version: str | None,
    date: datetime.date | None,
    recheck_when: str | None,
    next_step: str | None,
) -> Finding:
    step = next_step or said.next_step
    return Finding(
        question=question,
        verdict=said.verdict,
        reason=said.reason,
        source=source,
        evidence=Evidence.DECLARED,
        engine_version=engine_version,
        date=date,
        next_step=step if said.verdict is not _RUNNABLE else said.next_step,
        recheck_when=recheck_when,
    )
