"""Secrets out of text: by their value where it is known, by the form of tokens and assignments else."""

from __future__ import annotations

import base64
import json
import os
import re
import tomllib
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lanes.describe import HIDDEN, is_secret

_SHORTEST = 6
"""A value that is shorter is in too many words to be taken out wherever it stands."""

_NAME = r"(?:[\w.-]*(?:api[_-]?key|access[_-]?key|secret|passw(?:or)?d|passphrase|credential|(?<![a-z])auth(?![a-z])|bearer)[\w.-]*|[\w.-]*[._-](?:key|token)|token|[\w.-]*apikey)"
_FIELD = re.compile(_NAME, re.IGNORECASE)
_FLAG = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_ASSIGNED = r"\\*[\"']?\s*(?:[:=]|=>)\s*"
_VALUE = r"[^\s\"'\\,;&<>{}()\[\]]{3,}"

_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        HIDDEN,
    ),
    (
        re.compile(
            r"\b(bearer\s+|authorization[\"']?\s*[:=]\s*[\"']?basic\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)"), HIDDEN),
    # Tokens that services mark as theirs.
    (
        re.compile(
            r"\b(?:hf_|sk-|pk-|rk_|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|xox[abprs]-|nvapi-|AKIA|ASIA|AIza|"
            r"dop_v1_|pypi-|npm_|wandb_v1_|eyJ[\w-]+\.eyJ)[\w.-]{10,}"
        ),
        HIDDEN,
    ),
    # "api_key": "...", API_KEY=..., --api-key ..., ?token=...
    (
        # The quotes may be escaped, as in JSON within JSON: those that end it are escaped alike.
        re.compile(rf"(?<![\w.-])({_NAME}{_ASSIGNED})(\\*[\"'])((?:(?!(?<!\\)\2)[^\n])+)", re.IGNORECASE),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(rf"(?<![\w.-])({_NAME}{_ASSIGNED})({_VALUE})", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(rf"(?<![\w.-])(--{_NAME}(?:[\"']?,?\s+[\"']?))({_VALUE})", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
)
_PLAIN = re.compile(r"(?:none|null|true|false|auto|unset|\(hidden\)|\d+(?:\.\d+)?)\W*", re.IGNORECASE)
"""What stands where a secret would, and is none."""


class Redactor:
    """Takes secrets out of text and counts them.

    `known` are the values of secrets, which go wherever they stand: as they are, as JSON or a URL writes
    them, or in base64. The user's home folder becomes `~`.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = sorted({one for one in known if len(one) >= _SHORTEST}, key=len, reverse=True)
        forms = sorted({form for one in self._known for form in _written(one)}, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, forms))) if forms else None
        home = os.path.expanduser("~").rstrip("/")
        self._home = re.compile(re.escape(home) + r"(?![\w.-])") if len(home) > 1 else None
        self.count = 0

    def __call__(self, text: str) -> str:
        """Return `text` without secrets."""
        if self._values is not None:
            text, count = self._values.subn(HIDDEN, text)
            self.count += count
        for pattern, instead in _FORMS:
            text = pattern.sub(lambda found, instead=instead: self._hide(found, instead), text)  # type: ignore[misc]
        return self._home.sub("~", text) if self._home else text

    def data(self, value: Any) -> Any:
        """Return plain JSON data without secrets: text by text, so that no quoting hides one."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(name): self._field(name, one) for name, one in value.items()}
        return [self.data(one) for one in value] if isinstance(value, list | tuple) else value

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and _FIELD.fullmatch(name) and not _PLAIN.fullmatch(value):
            self.count += 1
            return HIDDEN
        return self.data(value)

    def _hide(self, found: re.Match[str], instead: str) -> str:
        value = found.group(found.lastindex) if found.lastindex else found.group()
        if _PLAIN.fullmatch(value) or HIDDEN in found.group():
            return found.group()
        self.count += 1
        return found.expand(instead)

    def left(self, data: bytes) -> bool:
        """Whether any known secret still stands in `data`."""
        text = data.decode("utf-8", "replace")
        return self._values is not None and self._values.search(text) is not None


def _written(secret: str) -> Iterator[str]:
    """The ways in which a text may hold a secret."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield urllib.parse.quote(secret, safe="")
    yield urllib.parse.quote_plus(secret)
    # As part of something longer; its first and its last character there depend on their neighbours.
    for shift, cut in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(shift) + secret.encode()).decode().rstrip("=")[cut:-1]
        if len(encoded) > _SHORTEST:
            yield encoded


def known(lane: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> set[str]:
    """The values of secrets that a lane of a result may have had: in this environment, in its recipe's
    file, on its command lines, in its processes' records."""
    found = {value for name, value in environ.items() if is_secret(name)}
    endpoint = (lane.get("launch") or {}).get("endpoint") or {}
    if variable := (endpoint.get("dialect") or {}).get("api_key_env"):
        found.add(environ.get(variable, ""))
    found |= set(_of_recipe((lane.get("recipe") or {}).get("origin")))
    for process in (lane.get("launch") or {}).get("processes") or ():
        found |= set(of_argv(process.get("argv") or ()))
        found |= {value for name, value in (process.get("env") or {}).items() if is_secret(name)}
    return {value.strip() for value in found if value.strip() and value != HIDDEN}


def known_of_all(lanes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The same of several lanes; launches of one making are looked at once."""
    by_making = {repr(((lane.get("recipe") or {}).get("origin"), lane.get("launch"))): lane for lane in lanes}
    return {value for lane in by_making.values() for value in known(lane)}


def _of_recipe(origin: str | None) -> Iterator[str]:
    """What a recipe's file holds under the names that a result hides."""
    try:
        data = tomllib.loads(Path(origin or "").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    yield from _named(data)


def _named(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            if isinstance(value, str) and is_secret(str(name)):
                yield value
            else:
                yield from _named(value)
    elif isinstance(data, list):
        for value in data:
            yield from _named(value)


def of_argv(argv: Sequence[str]) -> Iterator[str]:
    """The values of flags whose names tell of a secret: `--api-key X`, `--api-key=X`."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, sign, value = word.partition("=")
        if not name.startswith("-") or not _FLAG.fullmatch(name):
            continue
        if sign:
            yield value
        elif following and not following.startswith("-"):
            yield following
