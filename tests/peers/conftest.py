"""The programs of others, as `pip install` brings them; a test that needs one skips without it and says how to get it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from lanes.instruments import benchy, tooleval
from lanes.instruments.programs import Program


def need(program: Program) -> None:
    if lacking := program.lacking():
        pytest.skip(lacking)


@pytest.fixture
def llama_benchy() -> None:
    need(benchy.PROGRAM)


@pytest.fixture
def tool_eval_bench() -> None:
    need(tooleval.PROGRAM)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> str:
    """tool-eval-bench 3.0.0, in an environment of its own whose bin is in LANES_TEST_TOOL_EVAL_3."""
    folder = os.environ.get("LANES_TEST_TOOL_EVAL_3")
    if not folder:
        pytest.skip(
            "LANES_TEST_TOOL_EVAL_3 names no folder with tool-eval-bench 3.0.0: pip install tool-eval-bench==3.0.0"
        )
    return folder


@pytest.fixture
def instrument_of() -> Callable[[Any, str], dict[str, Any]]:
    """What one instrument found, out of the only lane of a result."""

    def find(document: Any, name: str) -> dict[str, Any]:
        (lane,) = document["lanes"]
        found: dict[str, Any] = next(one for one in lane["instruments"] if one["name"] == name)
        return found

    return find


@pytest.fixture
def running() -> Callable[[str], list[psutil.Process]]:
    """The processes whose command line holds a word."""

    def find(word: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if any(word in part for part in process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    return find


@pytest.fixture
def files_with() -> Callable[[Path, str], list[Path]]:
    """The files under a folder that hold a word."""

    def find(folder: Path, word: str) -> list[Path]:
        return [path for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]

    return find
