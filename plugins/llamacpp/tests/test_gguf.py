"""Reading a model's header: whole, cut off, or hostile."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from lanes_llamacpp import gguf


def test_a_whole_file_says_what_it_is(make_gguf: Callable[..., Path]) -> None:
    path = make_gguf()
    found = gguf.read([path])
    assert found.architecture == "toy"
    assert found.trained_context == 4096
    assert found.needed_bytes == path.stat().st_size
    # 2 layers x 2 KV heads x 16 wide x (key + value) x 2 bytes.
    assert found.kv_bytes(100) == 100 * 2 * 2 * 16 * 2 * 2
    assert found.kv_bytes(100, "q8_0", "q8_0") == int(100 * 2 * 2 * 16 * 2 * 34 / 32)


def test_heads_may_differ_by_layer(make_gguf: Callable[..., Path]) -> None:
    found = gguf.read([make_gguf(metadata={"toy.attention.head_count_kv": [1, 3]})])
    assert found.kv_bytes(100) == 100 * 4 * 16 * 2 * 2


def test_a_file_in_parts_reads_as_one(make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_gguf()
    parts = []
    for number in range(0, whole.stat().st_size, 37):
        parts.append(tmp_path / f"part{number}")
        parts[-1].write_bytes(whole.read_bytes()[number : number + 37])
    assert gguf.read(parts) == gguf.read([whole])


def test_every_cut_is_noticed(make_gguf: Callable[..., Path]) -> None:
    path = make_gguf()
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(gguf.GgufError, match=r"cut off|empty|not a GGUF"):
            gguf.read([path])


@pytest.mark.parametrize("version", [1, 4, 2**31])
def test_other_versions_are_refused(make_gguf: Callable[..., Path], version: int) -> None:
    with pytest.raises(gguf.GgufError, match=f"version {version}"):
        gguf.read([make_gguf(version=version)])


def test_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(gguf.GgufError, match="not a GGUF file"):
        gguf.read([path])


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<QQ", 2**63, 1),
        struct.pack("<QQ", 1, 2**63),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62) + b"x" * 20,
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**60),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99) + b"\0" * 20,
    ],
    ids=["tensors", "pairs", "key-length", "array-length", "nested-array", "unknown-type"],
)
def test_hostile_counts_cost_nothing(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + body)
    with pytest.raises(gguf.GgufError):
        gguf.read([path])


def test_damage_is_an_error_or_harmless(make_gguf: Callable[..., Path]) -> None:
    path = make_gguf()
    data = path.read_bytes()
    dice = random.Random(1)
    for _ in range(500):
        broken = bytearray(data)
        for _ in range(dice.randint(1, 8)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        path.write_bytes(broken)
        try:
            gguf.read([path]).kv_bytes(1)
        except gguf.GgufError as error:
            assert str(error)
