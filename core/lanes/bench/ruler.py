"""How long a prompt is, in the server's own tokens: asked where it tells, learned where not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lanes.bench.client import Client
from lanes.bench.prompts import PROSE_CHARS_PER_WORD, Prompt
from lanes.bench.stream import Stream
from lanes.errors import LaneError

_TRIES = 8
_SAMPLES = (60, 360)
"""Words in the prompts of the learning requests; the second is needed without a tokenizer only."""

Ask = Callable[[str], Awaitable[Stream]]
"""Send a prompt and ask for one token."""


class Ruler:
    """Cut prompts to a number of tokens.

    With the dialect's `tokenize_path`, texts are counted by the server and one request's usage tells
    what the chat template adds. Without it, each request's usage teaches a line, tokens = template +
    rate x characters, by least squares; the long prompts of the warm-ups weigh most in it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._path = client.endpoint.dialect.tokenize_path
        self._seen: list[tuple[int, int]] = []
        self._words_per_token = 0.75
        self._frame_tokens = 0.0
        self._specials: int | None = None
        self.template_tokens = 0.0
        self.chars_per_token = 4.5
        self.note: str | None = None

    @property
    def tokenizes(self) -> bool:
        """Whether the server counts tokens for us."""
        return self._path is not None

    async def learn(self, seed: str, ask: Ask) -> Stream:
        """Learn from one or two short requests; return the last one, which may have failed.

        A tokenizer that does not answer is given up, with a `note`.
        """
        for number, count in enumerate(_SAMPLES):
            text = Prompt(f"{seed}{number}").cut(count)
            stream = await ask(text)
            if not stream.ok:
                return stream
            self.observe(text, stream)
            if self._path and stream.prompt_tokens is not None:
                try:
                    self.template_tokens = stream.prompt_tokens - await self.count(text)
                    return stream
                except LaneError as error:
                    self._path = None
                    self.note = f"the prompt's length is estimated, for the tokenizer failed: {error.message}"
        return stream

    def observe(self, text: str, stream: Stream) -> None:
        """Learn from the usage of a request whose prompt was `text`."""
        if self._path or stream.prompt_tokens is None:
            return
        self._seen.append((len(text), stream.prompt_tokens))
        n = len(self._seen)
        mean_x = sum(x for x, _ in self._seen) / n
        mean_y = sum(y for _, y in self._seen) / n
        spread = sum((x - mean_x) ** 2 for x, _ in self._seen)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in self._seen) / spread if spread else 0.0
        if slope > 0:
            self.chars_per_token = 1 / slope
            self.template_tokens = max(mean_y - slope * mean_x, 0.0)
        elif mean_y > 0:
            self.chars_per_token = mean_x / mean_y

    def follow(self, other: Ruler) -> None:
        """Begin with what `other` learned of the same server."""
        self._seen = [*other._seen]
        self._words_per_token, self._frame_tokens = other._words_per_token, other._frame_tokens
        self.template_tokens, self.chars_per_token = other.template_tokens, other.chars_per_token

    async def fit(self, prompt: Prompt, tokens: int, *, template: bool = True) -> str:
        """Return `prompt` cut so that it counts `tokens`, the chat template included if `template`.

        As near as whole words allow; a prompt that cannot be so short is returned without prose.
        """
        wanted = tokens - (self.template_tokens if template else 0)
        if not self._path:
            return self._estimate(prompt, wanted)
        count = max(round((wanted - self._frame_tokens) * self._words_per_token), 0)
        best, best_off = "", float("inf")
        tried: list[tuple[int, int]] = []
        for _ in range(_TRIES):
            text = prompt.cut(count)
            got = await self.count(text)
            off = wanted - got
            if abs(off) < best_off:
                best, best_off = text, abs(off)
            if not off or (count == 0 and off < 0):
                break
            tried.append((count, got))
            self._learn_rate(tried)
            step = round(off * self._words_per_token)
            count = max(count + (step or (1 if off > 0 else -1)), 0)
            if any(count == words for words, _ in tried):
                break
        return best

    def _learn_rate(self, tried: Sequence[tuple[int, int]]) -> None:
        """Learn the words of a token, and the tokens of what is no prose, from (words, tokens) pairs:
        the line through the last two, or one through the origin."""
        (words, tokens), (words0, tokens0) = tried[-1], tried[-2] if len(tried) > 1 else (0, 0)
        if (words - words0) * (tokens - tokens0) > 0:
            self._words_per_token = (words - words0) / (tokens - tokens0)
            self._frame_tokens = tokens - words / self._words_per_token

    def _estimate(self, prompt: Prompt, wanted: float) -> str:
        return cut_to(prompt, wanted * self.chars_per_token)

    async def count(self, text: str) -> int:
        """Return how many tokens the server's tokenizer sees in `text`. Raises LaneError."""
        dialect = self._client.endpoint.dialect
        body = {"model": self._client.endpoint.model, dialect.tokenize_field: text}
        answer = await self._client.post(str(self._path), body)
        if isinstance(answer, dict):
            if isinstance(answer.get("count"), int):
                return int(answer["count"])
            if isinstance(answer.get("tokens"), list):
                return len(answer["tokens"])
        raise LaneError(f"{self._path} answered neither tokens nor a count")

    async def count_bare(self, text: str) -> int | None:
        """Return the tokens of a piece of an answer, or None when the server does not tell.

        Some tokenizers add marks of their own to each text (a begin-of-text token). They are learned
        from a word that is one token, alone and twice: marks = 2 x count(w) - count(w w).
        """
        if not self._path or not text:
            return None
        try:
            if self._specials is None:
                once, twice = await self.count("one"), await self.count("one one")
                self._specials = max(2 * once - twice, 0)
            return max(await self.count(text) - self._specials, 1)
        except LaneError:
            return None


def cut_to(prompt: Prompt, chars: float) -> str:
    """Return `prompt` cut to about so many characters, as near as whole words allow."""
    count = round(chars / PROSE_CHARS_PER_WORD)
    text = prompt.cut(count)
    for _ in range(_TRIES):
        step = round((chars - len(text)) / PROSE_CHARS_PER_WORD)
        if not step or count + step < 0:
            break
        count += step
        text = prompt.cut(count)
    return text
