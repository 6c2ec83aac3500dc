"""Small GGUF files made up for the tests, and a lane over any model."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from lanes.types import Lane, Model, Node, Recipe
from lanes_llamacpp.options import LlamaOptions

HERE = Node(name="here", arch="x86_64", os="linux", cpus=4, memory_bytes=16 * 2**30, gpus=())


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def pair(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    if isinstance(value, list):
        return string(key) + struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
    return string(key) + struct.pack("<II", 4, value)


def gguf_bytes(metadata: Mapping[str, Any] | None = None, version: int = 3, elements: int = 64) -> bytes:
    """A GGUF with one f32 tensor, as llama.cpp would read it."""
    known = {
        "general.architecture": "toy",
        "toy.context_length": 4096,
        "toy.embedding_length": 64,
        "toy.block_count": 2,
        "toy.attention.head_count": 4,
        "toy.attention.head_count_kv": 2,
        **(metadata or {}),
    }
    header = b"GGUF" + struct.pack("<IQQ", version, 1, len(known))
    header += b"".join(pair(key, value) for key, value in known.items())
    header += string("weight") + struct.pack("<IQIQ", 1, elements, 0, 0)
    return header + b"\0" * (-len(header) % 32) + b"\0" * (4 * elements)


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a small GGUF under a name and return its path."""

    def make(name: str = "toy.gguf", **about: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(gguf_bytes(**about))
        return path

    return make


@pytest.fixture
def lane_of() -> Callable[..., Lane]:
    """A lane for a model, with these options."""

    def make(model: Model | Path, **options: Any) -> Lane:
        if isinstance(model, Path):
            model = Model(name="toy", path=str(model))
        recipe = Recipe(name="toy", engine="llamacpp", model=model, origin="toy.toml")
        return Lane(name="toy", engine="llamacpp", recipe=recipe, options=LlamaOptions(**options))

    return make


@pytest.fixture
def here() -> Node:
    """A machine of 16 GiB without a GPU."""
    return HERE


@pytest.fixture
def no_llama_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PATH without llama-server."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))


@pytest.fixture
def llama_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with a llama-server (which only needs to be there)."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text("#!/bin/true\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program
