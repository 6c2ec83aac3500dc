"""Prompts meet their length whatever the server's tokens are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from lanes.bench.prompts import Prompt
from lanes.bench.ruler import Ruler
from lanes.types import Dialect, Endpoint

TOKENIZERS: dict[str, Callable[[str], int]] = {
    "words": lambda text: len(text.split()),
    "four characters": lambda text: -(-len(text) // 4),
    "bytes": lambda text: len(text.encode()),
    "words, and 40 for the frame": lambda text: 40 + len(text.split()),
}


class Tokenizer:
    """What a ruler asks of a client: a server that counts tokens in its own way."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.endpoint = Endpoint(url="", model="m", dialect=Dialect(tokenize_path="/tokenize"))
        self.count, self.asked = count, 0

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, int]:
        self.asked += 1
        return {"count": self.count(body["content"])}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("tokens", [600, 2048, 16384])
def test_a_prompt_meets_its_length(kind: str, tokens: int) -> None:
    client = Tokenizer(TOKENIZERS[kind])
    ruler = Ruler(client)  # type: ignore[arg-type]
    for number in range(3):
        text = asyncio.run(ruler.fit(Prompt(f"nonce{number}"), tokens, template=False))
        # A word of ours has up to 14 letters, and prompts are cut at whole words.
        assert abs(TOKENIZERS[kind](text) - tokens) <= (16 if kind == "bytes" else 4)
    assert client.asked <= 3 * 6
