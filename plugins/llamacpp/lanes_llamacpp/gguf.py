"""Read the header of a GGUF file: is it one, is it whole, what was it trained for?

Nothing here trusts the file: every count is held against the bytes that are there, and a header of
more than `MAX_HEADER_BYTES` is refused. Layout: the GGUF specification, versions 2 and 3, in
ggml/docs/gguf.md; sizes of tensor types: `type_traits` in ggml/src/ggml.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

MAX_HEADER_BYTES = 256 * 2**20
"""The largest vocabularies make headers of some 20 MiB."""
_KEEP_STRING_BYTES = 1024
_KEEP_ITEMS = 4096
_CHUNK_BYTES = 2**20

_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}

# Type number: (elements in a block, bytes of a block).
_TENSOR_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip

_CACHE_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip


class GgufError(ValueError):
    """The file cannot be used; the message is one sentence about it, without its name."""


@frozen(kw_only=True)
class Gguf:
    """What a header says.

    `needed_bytes` is the size that the file must have at least: the end of its last tensor.
    `metadata` holds scalars, short strings and short arrays; vocabularies are left out.
    """

    version: int
    tensors: int
    needed_bytes: int
    metadata: Mapping[str, Any]

    @property
    def architecture(self) -> str | None:
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else None

    @property
    def trained_context(self) -> int | None:
        """Tokens that the model was trained for."""
        return self._number("context_length")

    @property
    def sliding_window(self) -> bool:
        """Whether some layers keep less than the whole context, so that `kv_bytes` is too much."""
        return bool(self._number("attention.sliding_window"))

    def kv_bytes(self, context: int, type_k: str = "f16", type_v: str = "f16") -> int | None:
        """Bytes of a KV cache for `context` tokens when every layer keeps all of them, or None where
        the header does not say."""
        layers = self._number("block_count")
        heads = self._number("attention.head_count")
        width = self._number("embedding_length")
        per_layer = self.metadata.get(f"{self.architecture}.attention.head_count_kv", heads)
        if not layers or not heads or not width or per_layer is None:
            return None
        kv_heads = sum(per_layer) if isinstance(per_layer, tuple) else layers * int(per_layer)
        key = self._number("attention.key_length") or width // heads
        value = self._number("attention.value_length") or width // heads
        return int(context * kv_heads * (key * _CACHE_BYTES[type_k] + value * _CACHE_BYTES[type_v]))

    def _number(self, key: str) -> int | None:
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if type(value) is int else None


def read(parts: Sequence[Path]) -> Gguf:
    """Read the header of the file that the `parts` make, joined in order.

    Raises `GgufError` when it is no GGUF, is cut off, or contradicts itself; `OSError` when it cannot
    be read.
    """
    cursor = _Cursor(parts)
    try:
        return _read(cursor)
    finally:
        cursor.close()


def _read(cursor: _Cursor) -> Gguf:
    if cursor.size == 0:
        raise GgufError("the file is empty")
    magic = cursor.take(4) if cursor.size >= 4 else b""
    if magic != b"GGUF":
        raise GgufError(f"it is not a GGUF file: it starts with {magic!r}, not with b'GGUF'")
    version = cursor.number("I")
    if version not in (2, 3):
        raise GgufError(f"it is of GGUF version {version}, and llama.cpp reads versions 2 and 3")
    tensors, pairs = cursor.number("Q"), cursor.number("Q")
    # A pair takes at least 13 bytes (key length, type, value), a tensor's entry at least 24.
    cursor.expect(pairs * 13 + tensors * 24)
    metadata = {}
    for _ in range(pairs):
        key = cursor.string()
        value = _value(cursor, cursor.number("I"))
        if key is not None and value is not None:
            metadata[key] = value
    ends = [_tensor_end(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 2**16:
        raise GgufError(f"its header is broken: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    needed = start + max(ends) if ends else cursor.at
    if needed > cursor.size:
        raise GgufError(
            f"it is cut off: {cursor.size:,} bytes are there of the {needed:,} that its header needs"
        )
    return Gguf(version=version, tensors=tensors, needed_bytes=needed, metadata=metadata)


def _value(cursor: _Cursor, kind: int) -> Any:
    """Read a value; None where it is skipped."""
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        raise GgufError(f"its header is broken: there is no value type {kind}")
    item, count = cursor.number("I"), cursor.number("Q")
    if item in _SCALARS:
        width = struct.calcsize(_SCALARS[item])
        cursor.expect(count * width)
        data = cursor.take(count * width)
        return struct.unpack(f"<{count}{_SCALARS[item]}", data) if count <= _KEEP_ITEMS else None
    if item != _STRING:
        raise GgufError(f"its header is broken: there is no array of type {item}")
    cursor.expect(count * 8)
    cursor.skip_strings(count)
    return None


def _tensor_end(cursor: _Cursor) -> int:
    """Read a tensor's entry: where its data ends, counted from the start of all data.

    A type that is newer than the table here counts as empty, so that the result stays a lower bound.
    """
    cursor.skip_string()
    dimensions = cursor.number("I")
    if dimensions > 8:
        raise GgufError(f"its header is broken: a tensor has {dimensions} dimensions")
    elements = 1
    for _ in range(dimensions):
        elements *= cursor.number("Q")
    per_block, block_bytes = _TENSOR_TYPES.get(cursor.number("I"), (1, 0))
    offset: int = cursor.number("Q")
    return offset + elements // per_block * block_bytes


_LENGTH = struct.Struct("<Q")
"""The length in bytes that a string begins with."""


class _Cursor:
    """The bytes of the header, fetched as far as they are asked for."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._parts = list(parts)
        self.size = sum(part.stat().st_size for part in self._parts)
        self.at = 0
        self._next = 0
        self._file: Any = None
        self._data = bytearray()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def expect(self, count: int) -> None:
        """Raise `GgufError` unless the file has `count` bytes more."""
        if self.at + count > self.size:
            raise GgufError(f"it is cut off: its {self.size:,} bytes end within its header")

    def _fetch(self, count: int) -> None:
        self.expect(count)
        if self.at + count > MAX_HEADER_BYTES:
            raise GgufError(f"its header is larger than {MAX_HEADER_BYTES // 2**20} MiB")
        while len(self._data) < self.at + count:
            if self._file is None:
                self._file = self._parts[self._next].open("rb")
                self._next += 1
            chunk = self._file.read(_CHUNK_BYTES)
            self._data += chunk
            if not chunk:
                self._file.close()
                self._file = None
                if self._next == len(self._parts):
                    raise GgufError("it became shorter while it was read")

    def take(self, count: int) -> bytes:
        self._fetch(count)
        self.at += count
        return bytes(self._data[self.at - count : self.at])

    def number(self, code: str) -> Any:
        width = struct.calcsize(code)
        self._fetch(width)
        self.at += width
        return struct.unpack_from(f"<{code}", self._data, self.at - width)[0]

    def skip_string(self) -> int:
        """Go past a string; return its length in bytes."""
        length = int(self.number("Q"))
        self.expect(length)
        self._fetch(length)
        self.at += length
        return length

    def skip_strings(self, count: int) -> None:
        """Go past so many strings. A vocabulary has hundreds of thousands, and each is a moment to wait for."""
        data, at, length = self._data, self.at, _LENGTH.unpack_from
        while True:
            last = len(data) - _LENGTH.size
            while count and at <= last:
                at += _LENGTH.size + length(data, at)[0]
                count -= 1
            self._fetch(at - self.at + (_LENGTH.size if count else 0))
            if not count:
                self.at = at
                return

    def string(self) -> str | None:
        """Read a string, or None when it is long."""
        length = self.skip_string()
        if length > _KEEP_STRING_BYTES:
            return None
        return self._data[self.at - length : self.at].decode("utf-8", "replace")
