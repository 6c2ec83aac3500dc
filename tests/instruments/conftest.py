"""An instrument pointed at a server, as a run points it, without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from lanes.bench.plan import Limits, Plan
from lanes.instruments.base import Context, Measured, Subject
from lanes.types import Dialect, Endpoint

BRIEF = Limits(connect_s=2, first_byte_s=5, stall_s=2)


@attrs.define
class Driven:
    """What an instrument came to, its rows as the result would have them, and what it told meanwhile."""

    measured: Measured | None = None
    rows: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    told: list[str] = attrs.field(factory=list)
    plan: dict[str, Any] = attrs.field(factory=dict)
    folder: Path = Path()

    @property
    def statuses(self) -> dict[str, str]:
        return {name: row["status"] for name, row in self.rows.items()}

    @property
    def faults(self) -> dict[str, str]:
        return {name: row["status"] for name, row in self.rows.items() if row["fault"]}

    def record(self, kind: str, **data: Any) -> None:
        if kind == "row":
            self.rows[data["row"]["name"]] = data["row"]
        elif kind == "instrument":
            self.plan = data["plan"]


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LANES_HOME", str(tmp_path / "home"))
    yield


@pytest.fixture
def drive(tmp_path: Path) -> Callable[..., Driven]:
    """Run an instrument: `drive(module, url, options, dialect={}, subject={}, **plan)`."""

    def run(
        module: Any,
        url: str,
        options: Any = None,
        *,
        dialect: dict[str, Any] | None = None,
        subject: dict[str, Any] | None = None,
        model: str = "scripted",
        **plan: Any,
    ) -> Driven:
        seen = Driven(folder=tmp_path / "artefacts")
        seen.folder.mkdir(exist_ok=True)
        context = Context(
            endpoint=Endpoint(
                url=url, model=model, dialect=Dialect(**({"tokenize_path": "/tokenize"} | (dialect or {})))
            ),
            plan=Plan(**({"limits": BRIEF} | plan)),
            subject=Subject(name="lane", **(subject or {})),
            options=options,
            record=seen.record,
            tell=seen.told.append,
            observe=lambda finding: None,
            place=lambda: seen.folder,
        )
        seen.measured = module.INSTRUMENT.run(context)
        return seen

    return run
