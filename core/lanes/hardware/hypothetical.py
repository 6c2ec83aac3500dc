"""A node that one only plans to buy, made from an architecture's name."""

from __future__ import annotations

from lanes.hardware.targets import Target, parse_target
from lanes.types import Fact, Gpu, Node

_SOURCE = "the table of GPUs in lanes.hardware.gpus"


def hypothetical_node(arch: str | Target, *, gpus: int = 1) -> Node:
    """A node with `gpus` GPUs of that architecture, holding only what its name implies.

    Memory stays None where the name leaves it open (`sm_90` is an H100, an H200 or a GH200). A card that
    fits any host is taken to sit in an x86_64 one, as nearly all do, and a fact says so. Raises UsageError for a name that is not known.
    """
    target = arch if isinstance(arch, Target) else parse_target(arch)
    memory = target.memory_bytes or (target.model.memory_bytes if target.model else None)
    gpu = Gpu(
        name=target.model.name if target.model else target.arch,
        target=target.capability,
        memory_bytes=memory,
        unified=target.unified,
    )
    facts = [Fact(name="gpu", value=f"{gpus} x {target.label}", source=_SOURCE)]
    host = target.host_arch
    if host:
        facts.append(Fact(name="arch", value=host, source=_SOURCE))
    elif target.models and all(model.host_arch is None for model in target.models):
        host = "x86_64"
        facts.append(Fact(name="arch", value=host, source="taken for granted: a card for any host"))
    return Node(
        name=target.spelled,
        arch=host,
        memory_bytes=memory if target.unified else None,
        gpus=(gpu,) * gpus,
        facts=tuple(facts),
        hypothetical=True,
    )
