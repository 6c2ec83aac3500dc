"""Does it answer sense? Facts that every model knows, and a few sentences, by content and by reasoning.

A speed says nothing of a lane that fails here: it is UNRUNNABLE by observation.

The questions come with two answered ones before them, so that a model that was never taught to chat knows what
is asked for too.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from lanes.errors import LaneError
from lanes.instruments.asking import Asker, Exchange, Message
from lanes.instruments.base import Context, Instrument, Measured, Row
from lanes.types import Evidence, Finding, Kind, Verdict

QUESTION = "sense"
"""The finding's question: `--despite sense` goes on against it."""

_FACTS = (
    ("a capital", "What is the capital of Germany?", "Berlin", "What is the capital of Spain?", "Madrid",
     "What is the capital of France?", "Paris"),
    ("a sum", "What is 1 + 1?", "2", "What is 2 + 2?", "4", "What is 2 + 3?", "5|five"),
    ("a colour", "What colour is grass?", "green", "What colour is snow?", "white", "What colour is blood?", "red"),
    ("an animal", "Which animal barks?", "dog", "Which animal moos?", "cow", "Which animal meows?", "cats?|kitten"),
)  # fmt: skip
"""A name, two questions with their answers, the one that is asked, and a pattern of the right answer, which stands
nowhere in the request."""
_PROSE = (
    "Tell me about the mountains.",
    "Mountains are high and steep. Snow lies on their tops, and rivers begin there. People climb them in summer.",
    "Tell me about the sea.",
)
_SHORT, _LONG, _THINKING = 24, 160, 2048
"""Tokens for a fact, for the sentences, and for a model that thinks before it says either."""
_WITHIN = 200
"""Characters in which a fact should stand."""

_MARK = re.compile(
    r"<\|[^|>\s]{1,40}\|>|</?(?:start|end)_of_turn>|</s>|\[/?INST\]|<\|?eot_id\|?>|<\uff5c[^>]{1,40}\uff5c>"
)
"""Marks of chat templates, which belong into no answer."""
_COMMON = re.compile(
    "the|of|and|an?|to|in|is|it|that|was|for|on|are|with|as|at|be|this|by|from|they|you|have|or|his|her|s?he|we|i|not|"
    "but|can|its|their|there|which|has|so|all|one|if|more|about|when|people|like|many|some|into|them"
)
"""Words of which every English text has some."""
_LEAST_COMMON = 0.08
_LEAST_WORDS = 8
_REPEATED = 0.12
"""What is left of a text of nothing but repetitions when it is compressed."""
_LEAST_REPEATED = 200


def run(context: Context) -> Measured:
    """Ask, judge, and add what was observed to the lane's findings."""
    asker = Asker(context.endpoint, context.plan.limits.stall_s)
    context.began({"facts": [fact[5] for fact in _FACTS], "prose": _PROSE[2]})
    try:
        rows = []
        for number, row in enumerate(_rows(asker)):
            context.row(row)
            rows.append(row)
            context.progress(f"{row.name} {row.status}", (number + 1) / (len(_FACTS) + 1))
    except _Lost as lost:
        return Measured(status="crashed" if context.alive() or lost.gone else "failed", reason=str(lost))
    finally:
        asker.close()
    verdict, reason = judge(rows)
    context.observe(
        Finding(
            question=QUESTION,
            kind=Kind.SANITY,
            verdict=verdict,
            evidence=Evidence.OBSERVED,
            reason=reason,
            source="the instrument smoke",
            engine_version=context.subject.environment.get("engine_version"),
            next_step="`lanes history show RUN --json` has every question and answer",
        )
    )
    if verdict is Verdict.UNRUNNABLE:
        return Measured(
            status="unrunnable",
            reason=reason,
            next_step="compare the answers (`lanes history show RUN --json`) with those of another engine",
        )
    return Measured()


class _Lost(LaneError):
    """The server did not answer; `gone` says that it accepts no connection."""

    def __init__(self, message: str, gone: bool) -> None:
        super().__init__(message)
        self.gone = gone


@frozen(kw_only=True)
class _Answer:
    """What was said, cut where a template's marks begin; `marks` are those."""

    content: str
    reasoning: str
    marks: str | None
    exchange: Exchange


def _rows(asker: Asker) -> Iterator[Row]:
    for fact in _FACTS:
        yield _fact(asker, *fact)
    yield _prose(asker)


def judge(rows: list[Row]) -> tuple[Verdict, str]:
    """What the rows come to, with the reason: the first fault, unless most facts were right."""
    facts, prose = rows[:-1], rows[-1]
    wrong = [row for row in facts if row.fault]
    if len(wrong) > len(facts) / 2:
        return Verdict.UNRUNNABLE, f"{len(wrong)} of {len(facts)} plain facts are wrong: {wrong[0].reason}"
    if prose.fault:
        return Verdict.UNRUNNABLE, f"it does not write sense: {prose.reason}"
    if wrong:
        return Verdict.DEGRADED, f"{len(wrong)} of {len(facts)} plain facts are wrong: {wrong[0].reason}"
    doubts = [row.reason for row in rows if row.reason]
    if doubts:
        return Verdict.DEGRADED, f"it answers sense; {doubts[0]}"
    return Verdict.RUNNABLE, "it answers sense"


def _fact(asker: Asker, name: str, *parts: str) -> Row:
    *shots, question, right = parts
    answer = _ask(asker, (*shots, question), _SHORT)
    pattern = re.compile(rf"(?<![\w.])(?:{right})(?!\w)", re.IGNORECASE)
    evidence = {"exchanges": [answer.exchange.as_json()]}
    if pattern.search(answer.content[:_WITHIN]):
        return Row(name=name, status="right", reason=_ran_on(answer), evidence=evidence)
    if not answer.content.strip() and pattern.search(answer.reasoning):
        reason = "the right answer stands in the reasoning alone: no content came"
        return Row(name=name, status="right", reason=reason, evidence=evidence)
    said = _quoted(answer.content or answer.reasoning)
    return Row(
        name=name, status="wrong", fault=True, reason=f"to {question!r} it answers {said}", evidence=evidence
    )


def _prose(asker: Asker) -> Row:
    name = "a few sentences"
    answer = _ask(asker, _PROSE, _LONG)
    exchanges = [answer.exchange.as_json()]
    fault = _nonsense(answer)
    if fault is not None and fault[0] == "repeats":
        # Small models may run in circles when they always take the likeliest token; broken ones always do.
        answer = _ask(asker, _PROSE, _LONG, temperature=0.8, seed=42)
        exchanges.append(answer.exchange.as_json())
        again = _nonsense(answer)
        if again is None:
            reason = "at temperature 0 it repeats itself without end, at 0.8 it does not"
            return Row(name=name, status="sense", reason=reason, evidence={"exchanges": exchanges})
        fault = again
    if fault is not None:
        return Row(name=name, status=fault[0], fault=True, reason=fault[1], evidence={"exchanges": exchanges})
    return Row(name=name, status="sense", reason=_ran_on(answer), evidence={"exchanges": exchanges})


def _nonsense(answer: _Answer) -> tuple[str, str] | None:
    """What is wrong with what was written, the content and the thoughts each for itself."""
    for what, text in (("", answer.content), ("in its reasoning ", answer.reasoning)):
        if text.strip() and (fault := nonsense(text)):
            return fault[0], f"{what}{fault[1]}: {_quoted(text)}"
    if not (answer.content.strip() or answer.reasoning.strip()):
        return "empty", "it answers nothing"
    return None


def nonsense(text: str) -> tuple[str, str] | None:
    """What is wrong with an English text, in a word and in a few; None when it reads like one."""
    odd = sum(1 for c in text if c == "\ufffd" or (ord(c) < 32 and c not in "\n\r\t"))
    if odd > max(2, len(text) / 50):
        return "gibberish", f"{odd} of {len(text)} characters are broken"
    if len(text) >= _LEAST_REPEATED and _repetition(text):
        return "repeats", "it repeats itself without end"
    words = re.findall(r"[^\W\d_]+", text.lower())
    if len(words) < _LEAST_WORDS:
        return None if words else ("gibberish", "there is no word in it")
    if sum(1 for word in words if _COMMON.fullmatch(word)) / len(words) < _LEAST_COMMON:
        return "gibberish", "it is not made of English words"
    if Counter(words).most_common(1)[0][1] > len(words) * 0.5:
        return "repeats", "it repeats a word without end"
    return None


def _repetition(text: str) -> bool:
    packed = len(zlib.compress(text.encode(), 9))
    return packed / len(text.encode()) < _REPEATED


def _ran_on(answer: _Answer) -> str | None:
    if answer.marks is None:
        return None
    return f"it goes on with marks of a chat template ({answer.marks}), which does not fit the model"


def _ask(asker: Asker, turns: tuple[str, ...], most: int, **more: Any) -> _Answer:
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(turns)
    ]
    one = _answered(asker.chat(messages=messages, max_tokens=most, **more))
    said = one.message
    if not said.content.strip() and said.finish_reason == "length":
        # It thinks first, and what it thought filled the answer.
        one = _answered(asker.chat(messages=messages, max_tokens=_THINKING, **more))
        said = one.message
    return _cut(one, said)


def _cut(one: Exchange, said: Message) -> _Answer:
    mark = _MARK.search(said.content)
    content = said.content[: mark.start()] if mark else said.content
    return _Answer(
        content=content, reasoning=said.reasoning, marks=mark.group() if mark else None, exchange=one
    )


def _answered(one: Exchange) -> Exchange:
    if not one.ok:
        raise _Lost(
            f"a plain question was not answered: {one.error or one.text[:100]}", one.trouble == "refused"
        )
    return one


def _quoted(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 80 else text[:77] + "...")


INSTRUMENT = Instrument(
    name="smoke",
    summary="does it answer sense: plain facts, and a few sentences",
    cost="seconds",
    run=run,
)
