"""What each engine could do on each GPU architecture: engines x architectures, with reasons and evidence.

Only what depends on the architecture is folded: engines are asked without a recipe, about nodes of
which nothing is known but their GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from lanes import checks, verdicts
from lanes.observations import Observation
from lanes.plugins import Plugins
from lanes.types import Finding, Kind, Lane, Node, Verdict


@frozen(kw_only=True)
class Capability:
    """One engine on one architecture: `hardware` and `serving` are folded apart."""

    engine: str
    arch: str
    hardware: Verdict
    serving: Verdict
    findings: tuple[Finding, ...]

    @property
    def word(self) -> str:
        """The cell of the matrix: `runnable`, `unknown`, `runnable, no server` ..."""
        server = ", no server" if self.serving is Verdict.UNRUNNABLE else ""
        return self.hardware.value + server

    @property
    def deciding(self) -> Finding | None:
        """The finding about the hardware that decided."""
        return verdicts.fold(self.findings, Kind.HARDWARE)[1]


def architectures() -> tuple[str, ...]:
    """The architectures that reports ask about when none is named: each GPU architecture of the table,
    under the name of its most telling GPU where hosts or rules differ within one."""
    from lanes.hardware.gpus import GPUS

    names: dict[tuple[str, str | None], str] = {}
    for gpu in GPUS:
        names.setdefault((gpu.capability, gpu.host_arch), gpu.name)
    return tuple(names.values())


def report(
    plugins: Plugins, engines: Sequence[str], archs: Sequence[str], seen: Sequence[Observation] = ()
) -> Iterator[Capability]:
    """Ask each engine about each architecture; `seen` is what was observed of lanes. Raises UsageError for names that
    are not known."""
    from lanes import nodes, observations

    asked: list[tuple[str, tuple[Node, ...]]] = [(arch, nodes.hypothetical(arch).nodes) for arch in archs]
    for name in engines:
        engine = plugins.engine(name)
        for arch, place in asked:
            lane = Lane(name=name, engine=name, cluster=arch)
            found = checks.examine(engine, lane, place)
            if seen:
                version = engine.ask("lanes_engine").version
                found = (*found, *observations.findings(seen, name, version, place))
            yield Capability(
                engine=name,
                arch=arch,
                hardware=verdicts.fold(found, Kind.HARDWARE)[0],
                serving=verdicts.fold(found, Kind.SERVING)[0],
                findings=found,
            )
