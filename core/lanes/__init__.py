"""lanes: serve a model with any engine, measure every lane alike, compare them honestly.

What a plugin needs is re-exported here; each name is imported when it is first used, so that
`lanes --help` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lanes._version import __version__

if TYPE_CHECKING:
    from lanes.hookspecs import CONTRACT as CONTRACT
    from lanes.hookspecs import hookimpl as hookimpl
    from lanes.instruments.base import Context as Context
    from lanes.instruments.base import Explained as Explained
    from lanes.instruments.base import Instrument as Instrument
    from lanes.instruments.base import Measured as Measured
    from lanes.instruments.base import Row as Row
    from lanes.instruments.base import Subject as Subject
    from lanes.types import Artifact as Artifact
    from lanes.types import Build as Build
    from lanes.types import CanaryRung as CanaryRung
    from lanes.types import Cause as Cause
    from lanes.types import Container as Container
    from lanes.types import Copy as Copy
    from lanes.types import Dialect as Dialect
    from lanes.types import Endpoint as Endpoint
    from lanes.types import EngineInfo as EngineInfo
    from lanes.types import Evidence as Evidence
    from lanes.types import ExecRung as ExecRung
    from lanes.types import Exit as Exit
    from lanes.types import Files as Files
    from lanes.types import Finding as Finding
    from lanes.types import Gpu as Gpu
    from lanes.types import HostScript as HostScript
    from lanes.types import HttpRung as HttpRung
    from lanes.types import Image as Image
    from lanes.types import Kind as Kind
    from lanes.types import Ladder as Ladder
    from lanes.types import Lane as Lane
    from lanes.types import Launch as Launch
    from lanes.types import LogRung as LogRung
    from lanes.types import Model as Model
    from lanes.types import Mount as Mount
    from lanes.types import Node as Node
    from lanes.types import Phase as Phase
    from lanes.types import Placement as Placement
    from lanes.types import Postmortem as Postmortem
    from lanes.types import Process as Process
    from lanes.types import Recipe as Recipe
    from lanes.types import Rehearsal as Rehearsal
    from lanes.types import Seat as Seat
    from lanes.types import Staged as Staged
    from lanes.types import StopPlan as StopPlan
    from lanes.types import Trial as Trial
    from lanes.types import Verdict as Verdict

_CONTRACT = ("CONTRACT", "hookimpl")
_INSTRUMENTS = ("Context", "Explained", "Instrument", "Measured", "Row", "Subject")
_TYPES = (
    "Artifact", "Build", "CanaryRung", "Cause", "Container", "Copy", "Dialect", "Endpoint",
    "EngineInfo", "Evidence", "ExecRung", "Exit", "Files", "Finding", "Gpu", "HostScript", "HttpRung", "Image", "Kind",
    "Ladder", "Lane", "Launch", "LogRung", "Model", "Mount", "Node", "Phase", "Placement",
    "Postmortem", "Process", "Recipe", "Rehearsal", "Seat", "Staged", "StopPlan", "Trial", "Verdict",
)  # fmt: skip

__all__ = ["__version__", *_CONTRACT, *_INSTRUMENTS, *_TYPES]  # noqa: PLE0604 (names of the tuples)


def __getattr__(name: str) -> Any:
    if name in _CONTRACT:
        from lanes import hookspecs

        return getattr(hookspecs, name)
    if name in _INSTRUMENTS:
        from lanes.instruments import base

        return getattr(base, name)
    if name in _TYPES:
        from lanes import types

        return getattr(types, name)
    raise AttributeError(f"module 'lanes' has no attribute {name!r}")
