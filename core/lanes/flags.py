"""Command lines of engines, read as the engine's own parser would.

Engines use argparse: a flag may be cut short as long as only one begins so, the last of two counts, and
what is wrong ends the process, on several nodes after each of them has pulled an image. So a command
line is read before anything is launched, against a snapshot of the parser of one version.
"""

from __future__ import annotations

import difflib
import enum
import importlib.resources
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import field, frozen

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_SIZE = re.compile(r"\d+(\.\d+)?([KMGT]i?)?", re.IGNORECASE)


@frozen(kw_only=True)
class Flag:
    """One option string. `kind` is the type of its values: `str`, `int`, `float`, `json`, `size` (a whole
    number, or 1M, 1Mi), `other` (a function of the engine's); `nargs` is argparse's, 0 for a switch."""

    name: str
    dest: str
    kind: str
    nargs: int | str | None
    choices: tuple[str, ...] = ()


class Fault(enum.Enum):
    """What may be wrong with an argument."""

    UNKNOWN = "unknown"
    """The snapshot has no such flag; another version may."""
    REFUSED = "refused"
    """The parser ends the process."""
    CHOICE = "choice"
    """The flag does not take this word; in another version it may."""
    TWICE = "twice"
    """Given more than once, and not the same: the parser takes the last, and the recipe says both."""
    REPEATED = "repeated"
    """Given more than once, with the same value."""


@frozen(kw_only=True)
class Problem:
    """One thing that is wrong: a clause that says what, and what to do."""

    fault: Fault
    reason: str
    next_step: str


@frozen(kw_only=True)
class Settings:
    """What a command line sets: `dest` -> the values given last, and what is wrong with it."""

    values: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...] = field(factory=tuple)

    def text(self, dest: str) -> str | None:
        """The value of a setting; None where it is not given."""
        return next(iter(self.values.get(dest, ())), None)

    def number(self, dest: str) -> int | None:
        """The value of a setting that is a whole number; None where it is not given, or is none."""
        text = self.text(dest)
        return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None

    def on(self, dest: str) -> bool:
        """Whether a switch is given, and not its opposite (`--no-x`, `--disable-x` beside `--enable-x`)."""
        return self.text(dest) == f"--{dest.replace('_', '-')}"

    def given(self, dest: str) -> bool:
        """Whether a setting is made at all."""
        return dest in self.values


@frozen(kw_only=True)
class Parser:
    """The parser of one version of an engine, as far as a snapshot of its option strings tells.

    `data` is the package that holds the snapshot, `flags-VERSION.json`: option string -> [dest, kind, nargs,
    choices]. `sizes` are words that a setting of kind `size` takes besides numbers. With `json_keys`,
    underscores may stand for dashes, and a JSON value may be given by its keys (`--config.method x`).
    Settings in `appended` may be given several times.
    """

    program: str
    version: str
    data: str
    sizes: frozenset[str] = frozenset()
    json_keys: bool = False
    appended: frozenset[str] = frozenset()

    @cached_property
    def known(self) -> Mapping[str, Flag]:
        """All option strings of the snapshot. Read when first needed: listing engines needs none of it."""
        snapshot = importlib.resources.files(self.data) / f"flags-{self.version}.json"
        rows = json.loads(snapshot.read_text(encoding="utf-8"))
        return {name: _flag(name, *row) for name, row in rows.items()}

    def read(self, arguments: Sequence[str]) -> Settings:
        """Read a command line (without the program) as the engine's parser would."""
        values: dict[str, tuple[str, ...]] = {}
        problems: list[Problem] = []
        spelled: dict[str, list[tuple[str, ...]]] = {}
        words = list(arguments)
        while words:
            word = words.pop(0)
            if not _is_flag(word):
                problems.append(_stray(word))
                continue
            written, equals, inline = word.partition("=")
            name, key = self._name(written)
            flag = self._find(name, problems)
            if flag is None:
                while words and not _is_flag(words[0]):  # the unknown flag's own values
                    words.pop(0)
                continue
            given = [inline] if equals else list(_take(words, flag.nargs))
            if key:  # a key of a JSON value, of which there may be several
                values.setdefault(flag.dest, ())
                continue
            problems += self._wrong(flag, given, inline if equals else None)
            spelled.setdefault(flag.dest, []).append((name, *given))
            values[flag.dest] = (flag.name,) if flag.nargs == 0 else tuple(given)
        twice = (each for dest, each in spelled.items() if len(each) > 1 and dest not in self.appended)
        return Settings(values=values, problems=(*problems, *map(self._twice, twice)))

    def _name(self, written: str) -> tuple[str, str]:
        """A flag's name with dashes, and the key of its JSON value that is meant."""
        if not self.json_keys:
            return written, ""
        name, _, key = written.partition(".")
        return (name.replace("_", "-") if name.startswith("--") else name), key

    def _find(self, name: str, problems: list[Problem]) -> Flag | None:
        if name in self.known:
            return self.known[name]
        longer = [flag for flag in self.known if flag.startswith(name)] if name.startswith("--") else []
        if len(longer) == 1:
            return self.known[longer[0]]
        if longer:
            problems.append(
                Problem(
                    fault=Fault.REFUSED,
                    reason=f"{name} is ambiguous: it could be {_listed(longer)}",
                    next_step="write the flag out",
                )
            )
            return None
        near = difflib.get_close_matches(name, self.known, n=3, cutoff=0.6)
        problems.append(
            Problem(
                fault=Fault.UNKNOWN,
                reason=f"{self.program} {self.version} has no flag {name}",
                next_step=f"the nearest are {_listed(near)}"
                if near
                else "remove it, unless your build has it",
            )
        )
        return None

    def _wrong(self, flag: Flag, given: Sequence[str], inline: str | None) -> Iterator[Problem]:
        if flag.nargs == 0 and inline is not None:
            yield _refused(
                f"{flag.name} is a switch and takes no value, not {inline!r}", "leave the value out"
            )
        elif flag.nargs in (None, "+") and not given:
            yield _refused(f"{flag.name} needs a value", "give one, or leave the flag out")
        for value in given if flag.nargs != 0 else ():
            if flag.choices and value not in flag.choices:
                near = difflib.get_close_matches(value, flag.choices, n=3) or flag.choices
                yield Problem(
                    fault=Fault.CHOICE,
                    reason=f"{flag.name} does not take {value!r}",
                    next_step=f"it takes {_listed(near)}",
                )
            elif not (_fits(value, flag.kind) or (flag.kind == "size" and value in self.sizes)):
                yield _refused(
                    f"{flag.name} takes {_KINDS[flag.kind]}, not {value!r}", "correct it in the recipe"
                )

    def _twice(self, spelled: Sequence[tuple[str, ...]]) -> Problem:
        # Two names of one flag with one value say the same; two switches of one setting do not.
        same = len({words[1:] or words for words in spelled}) == 1
        said = " and ".join(" ".join(words) for words in spelled)
        return Problem(
            fault=Fault.REPEATED if same else Fault.TWICE,
            reason=f"the command line says {said}, and {self.program} takes the last",
            next_step="keep one: the option, or what extra_args say",
        )


def _flag(name: str, dest: str, kind: str, nargs: int | str | None, choices: Sequence[object] = ()) -> Flag:
    return Flag(name=name, dest=dest, kind=kind, nargs=nargs, choices=tuple(map(str, choices)))


def _is_flag(word: str) -> bool:
    # As argparse sees it: -1 is a value, since no flag looks like a number, and so is what has a space.
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word) and " " not in word


def _take(words: list[str], nargs: int | str | None) -> Iterator[str]:
    most = {None: 1, "?": 1, 0: 0}.get(nargs, len(words))
    while most > 0 and words and not _is_flag(words[0]):
        yield words.pop(0)
        most -= 1


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _stray(word: str) -> Problem:
    return Problem(
        fault=Fault.REFUSED,
        reason=f"{word!r} follows no flag that takes it",
        next_step="remove it, or put its flag before it",
    )


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "json": "JSON",
    "size": "a number such as 65536 or 64Ki",
}


def _fits(value: str, kind: str) -> bool:
    if kind == "size":
        return _SIZE.fullmatch(value) is not None
    readers: dict[str, Callable[[str], object]] = {"int": int, "float": float, "json": json.loads}
    try:
        readers.get(kind, str)(value)
    except ValueError:
        return False
    return True


def _refused(reason: str, next_step: str) -> Problem:
    return Problem(fault=Fault.REFUSED, reason=reason, next_step=next_step)
