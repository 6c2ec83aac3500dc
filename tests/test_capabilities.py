"""docs/capabilities.md is what `lanes caps` says, of the engines of this repository."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINES = ("deepinfer", "flare", "llamacpp", "sglang", "tensorfold", "vllm")
HEAD = """# Which engine runs where

What `lanes caps --markdown` prints of the engines in this repository, kept true by a test
(`LANES_TEST_WRITE=1 pytest tests/test_capabilities.py` writes it anew). Only what depends on the GPU's architecture is folded here: `lanes check RECIPE --arch A`
explains one lane, with its sizes and its options. RUNNABLE says that nothing known stands against it, and never that the answers are right.

"""


@pytest.fixture
def report(lanes):
    missing = set(ENGINES) - entry_points(group="lanes.engines").names
    if missing:
        pytest.skip(f"not installed: {' '.join(f'-e plugins/{name}' for name in sorted(missing))}")
    ran = lanes("caps", *(word for name in ENGINES for word in ("--engine", name)), "--markdown")
    assert ran.code == 0, ran.err
    return HEAD + ran.out


def test_the_page_of_capabilities_is_what_caps_prints(report):
    page = ROOT / "docs" / "capabilities.md"
    if os.environ.get("LANES_TEST_WRITE"):
        page.write_text(report)
    assert page.read_text() == report


@pytest.mark.parametrize(
    ("arch", "engine", "word"),
    [
        ("GB10 (sm_121)", "deepinfer", "unrunnable, no server"),
        ("B200 (sm_100)", "deepinfer", "runnable, no server"),
        ("GB10 (sm_121)", "sglang", "runnable"),
        ("V100 (sm_70)", "sglang", "unrunnable"),
        ("H100 (sm_90)", "flare", "unrunnable"),
        ("GB10 (sm_121)", "flare", "runnable"),
        ("Jetson Orin (sm_87)", "vllm", "runnable"),
        ("Jetson Orin (sm_87)", "sglang", "unrunnable"),
    ],
)
def test_the_matrix_says_what_is_known(report, arch, engine, word):
    rows = {
        cells[0]: cells[1:]
        for line in report.splitlines()
        if line.startswith("| ")
        for cells in [line.strip("| ").split(" | ")]
    }
    heads = rows["GPU"]
    assert rows[arch][heads.index(engine)] == word
