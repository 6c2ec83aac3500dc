"""Prompts are cold, natural, and the same for every lane of a comparison."""

from __future__ import annotations

import itertools
import re

from lanes.bench.plan import Cell, Plan
from lanes.bench.prompts import Prompt, nonce, task
from lanes.bench.prose import sentences, words

CELL = Cell(pp=2048, tg=128)


def test_no_sentence_comes_twice_in_a_very_long_prompt() -> None:
    some = list(itertools.islice(sentences("a"), 16_000))
    assert len(set(some)) == len(some)
    assert sum(len(s.split()) for s in some) > 195_000


def test_two_prompts_share_no_long_run_of_words() -> None:
    def runs(seed: str) -> set[tuple[str, ...]]:
        text = [w.strip() for w in itertools.islice(words(seed), 30_000)]
        return {tuple(text[i : i + 12]) for i in range(len(text))}

    assert len(runs("a") & runs("b")) <= 2


def test_the_text_reads_as_prose() -> None:
    text = "".join(itertools.islice(words("prose"), 5_000))
    assert not re.search(r"[{}|]|  |\b[Aa] [aeiou]", text)
    assert all(s[0].isupper() or s[0] == '"' for s in itertools.islice(sentences("prose"), 500))


def test_a_seed_gives_the_same_text_everywhere_and_for_ever() -> None:
    assert next(sentences("lanes")) == next(sentences("lanes"))
    assert next(sentences("lanes")) == EXPECTED


EXPECTED = "For most of June, a narrow crowd stopped at the mill pond, since Petra guarded his former neighbour's kettle."


def test_nonces_differ_in_all_that_must_be_cold_and_in_nothing_else() -> None:
    plan = Plan(comparison="x", block=1)
    variants = [
        nonce(plan, CELL, 0, 0),
        nonce(plan, CELL, 1, 0),
        nonce(plan, CELL, None, 0),
        nonce(plan, CELL, 0, 1),
        nonce(Plan(comparison="y", block=1), CELL, 0, 0),
        nonce(Plan(comparison="x", block=2), CELL, 0, 0),
        nonce(plan, Cell(pp=2048, tg=128, concurrency=2), 0, 0),
    ]
    assert len(set(variants)) == len(variants)
    assert nonce(Plan(comparison="x", block=1, passes=9), CELL, 0, 0) == variants[0]


def test_the_nonce_stands_at_the_very_start_and_the_task_at_the_end() -> None:
    text = Prompt("0123456789abcdef", task(128)).cut(100)
    assert text.startswith("[0123456789abcdef] ")
    assert text.endswith(task(128))
    assert "about 150 words" in text


def test_a_longer_cut_begins_like_a_shorter_one() -> None:
    prompt = Prompt("00")
    assert prompt.cut(200).startswith(prompt.cut(50).rstrip("\n.?!"))
    assert Prompt("00").cut(50) == prompt.cut(50)
    assert prompt.cut(0) == prompt.cut(-3) == "[00]\n\n"
