"""A book and a tokenizer for llama-benchy, made here, so that it asks no hub and its prompts have the length asked.

llama-benchy cuts its prompts with a tokenizer of its own, and a wrong one makes them too long or too short; one
that it cannot load it replaces by another in silence. Here the book is of plain sentences whose every word is one
token of the server's, so that a tokenizer of whole words counts as the server does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from attrs import frozen

from lanes.bench.client import Client
from lanes.bench.prose import sentences
from lanes.bench.ruler import Ruler
from lanes.errors import LanesError
from lanes.types import Endpoint

BOOK_URL = "http://127.0.0.1/lanes-book"
"""What the book is called; llama-benchy finds it in its cache under this name and fetches nothing."""

_TOKENS = 120_000
_SEARCHED = 400_000
_WARMUP = "Warmup"
_ITEM = re.compile(r"\w+|[^\w\s]")
_PLAIN = re.compile(r"[A-Za-z ,.?]+")
_GROUP = 8
_SHORT = 7
"""Letters up to which a common word is nearly always one token; used where the server does not count."""

Count = Callable[[str], Awaitable[int | None]]


@frozen(kw_only=True)
class Text:
    """A book, the words that it is made of, and what a reader should know of how they were chosen."""

    book: str
    items: tuple[str, ...]
    warmup: int = 1
    """Tokens of the word that llama-benchy's warm-up repeats, by which it learns what the chat template adds."""
    note: str | None = None

    def write(self, home: Path) -> Path:
        """Put the book into llama-benchy's cache under `home`; return the tokenizer's folder."""
        cache = home / ".cache" / "llama-benchy"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / f"{hashlib.md5(BOOK_URL.encode(), usedforsecurity=False).hexdigest()}.txt").write_text(
            self.book
        )
        folder = home / "tokenizer"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(self.items, self.warmup)))
        return folder


async def fitting(endpoint: Endpoint) -> Text:
    """Return a text whose words are one token each at `endpoint`: by its tokenizer where it has one."""
    if endpoint.dialect.tokenize_path is not None:
        try:
            count = Ruler(Client(endpoint)).count_bare
            words, warmup = await _single(count), await count(f"one {_WARMUP} {_WARMUP}")
            return text_of(words, ((warmup or 3) - 1) // 2)
        except LanesError:
            pass
    short = frozenset(word for word in _words() if len(word) <= _SHORT)
    return text_of(
        short,
        1,
        "the server does not count tokens: llama-benchy's prompts are of short words, one token each",
    )


def text_of(single: Iterable[str], warmup: int = 1, note: str | None = None) -> Text:
    """Return a book of the sentences that hold nothing but these words. Raises LanesError when there are none."""
    allowed = frozenset(single)
    book: list[str] = []
    tokens = 0
    for sentence in itertools.islice(sentences("llama-benchy"), _SEARCHED):
        items = _ITEM.findall(sentence)
        if _PLAIN.fullmatch(sentence) and allowed.issuperset(i for i in items if i.isalpha()):
            book.append(sentence)
            tokens += len(items)
            if tokens >= _TOKENS:
                break
    if not book:
        raise LanesError(
            "no sentence of the book is of whole tokens", "give a tokenizer: --with benchy.tokenizer=PATH"
        )
    text = " ".join(book)
    return Text(book=text, items=tuple(dict.fromkeys(_ITEM.findall(text))), warmup=warmup, note=note)


def _words() -> frozenset[str]:
    """All words of the prose, those that begin a sentence too."""
    some = itertools.islice(sentences("llama-benchy"), 20_000)
    return frozenset(item for sentence in some for item in _ITEM.findall(sentence) if item.isalpha())


async def _single(count: Count) -> frozenset[str]:
    """The words that are one token when a space is before them. Raises LanesError when nothing is counted."""
    words = sorted(_words())
    if await count("one two") != 2:
        raise LanesError("the server's tokenizer does not count")
    found: set[str] = set()
    groups = [words[at : at + _GROUP] for at in range(0, len(words), _GROUP)]
    while groups:
        group = groups.pop()
        if await count(" ".join(["one", *group])) == 1 + len(group):
            found.update(group)
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[:half], group[half:]]
    return frozenset(found)


def _tokenizer(items: Iterable[str], warmup: int) -> dict[str, object]:
    """A tokenizer of whole words in the format of the library `tokenizers`; it puts no space before , . and ?

    The warm-up's word falls into as many pieces as the server has tokens for it.
    """
    places = "|".join(f"(?<=^{_WARMUP[:n]}){_WARMUP[n]}(?={_WARMUP[n + 1 :]}$)" for n in range(1, warmup))
    cut = {"type": "Split", "pattern": {"Regex": places}, "behavior": "MergedWithNext", "invert": False}
    words = {"type": "Whitespace"}
    vocabulary = {"[UNK]": 0}
    for item in items:
        vocabulary.setdefault(item, len(vocabulary))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, cut]} if warmup > 1 else words,
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
