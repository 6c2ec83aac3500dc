"""Ways to measure a lane that serves, chosen by name; the contract is in `base`.

To add one here: a module with an `INSTRUMENT`, its name in `BUILT_IN`, and the presets that it belongs to.
Others bring theirs as extensions: the hook `lanes_instruments` (entry-point group `lanes.extensions`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from lanes.errors import PluginError, UsageError
from lanes.instruments.base import Context as Context
from lanes.instruments.base import Explained as Explained
from lanes.instruments.base import Instrument as Instrument
from lanes.instruments.base import Measured as Measured
from lanes.instruments.base import Row as Row
from lanes.instruments.base import Subject as Subject
from lanes.plugins import Plugins
from lanes.structure import Mistake, structure

BUILT_IN = ("smoke", "surface", "probe", "benchy", "contention", "invariance", "tooleval", "survival")
"""The modules of this package that hold an `INSTRUMENT` of the same name, in the order in which they run."""

PRESETS: dict[str, tuple[str, ...]] = {
    "quick": ("smoke", "probe"),
    "perf": ("probe", "benchy"),
    "agent": ("surface", "contention", "tooleval", "survival"),
    "full": BUILT_IN,
}
"""Instruments by the name of a question; they run in this order, so those that may kill the lane come last."""

DEFAULT = ("probe",)


@frozen(kw_only=True)
class Chosen:
    """An instrument with its options."""

    instrument: Instrument
    options: Any = None


@frozen(kw_only=True)
class Known:
    """All instruments that are installed, by name, and what is wrong with plugins that should bring some."""

    instruments: Mapping[str, Instrument]
    problems: tuple[PluginError, ...] = ()


def known(plugins: Plugins) -> Known:
    """Ask all extensions. One that is broken, or brings a name that is taken, is a problem; the others count."""
    found = {name: importlib.import_module(f"lanes.instruments.{name}").INSTRUMENT for name in BUILT_IN}
    origins = dict.fromkeys((*found, *PRESETS), "lanes itself")
    problems: list[PluginError] = []
    for title, item in plugins.collect("lanes_instruments"):
        if isinstance(item, PluginError):
            problems.append(item)
        elif not isinstance(item, Instrument):
            what = f"lanes_instruments of {title} returned a {type(item).__name__}, not an Instrument"
            problems.append(PluginError(what, "report this to the plugin's author"))
        elif item.name in origins:
            what = f"{title} brings an instrument {item.name!r}, and so does {origins[item.name]}"
            problems.append(PluginError(what, "its author should choose another name"))
        else:
            found[item.name] = item
            origins[item.name] = title
    return Known(instruments=found, problems=tuple(problems))


def choose(
    names: Iterable[str], settings: Mapping[str, str] | None = None, plugins: Plugins | None = None
) -> tuple[Chosen, ...]:
    """The instruments of these names, presets or lists of them with commas, each once, in this order.
    `settings` maps `NAME.KEY` to values as typed on a command line.

    Raises `UsageError`, with one sentence, for a name or a key that is not known; where a plugin that is
    broken may be the one that should bring it, that is what it says.
    """
    every = known(plugins or Plugins())
    there = every.instruments
    wanted: dict[str, None] = {}
    for name in _split(names) or DEFAULT:
        for one in PRESETS.get(name, (name,)):
            if one not in there:
                raise every.problems[0] if every.problems else _unknown(one, there)
            wanted[one] = None
    given: dict[str, dict[str, Any]] = {}
    for key, text in (settings or {}).items():
        name, dot, field = key.partition(".")
        if not dot or not field or name not in wanted:
            raise UsageError(
                f"--with {key}: no instrument of this run is called {name!r}",
                f"write NAME.KEY=VALUE, with NAME one of {', '.join(wanted)}",
            )
        given.setdefault(name, {})[field] = _value(text)
    return tuple(
        Chosen(instrument=there[name], options=_options(there[name], given.get(name, {}))) for name in wanted
    )


def _split(names: Iterable[str]) -> list[str]:
    return [part for name in names for one in name.split(",") if (part := one.strip())]


def _unknown(name: str, there: Iterable[str]) -> UsageError:
    every = [*there, *PRESETS]
    near = difflib.get_close_matches(name, every, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UsageError(
        f"there is no instrument {name!r}",
        f"{hint}there is {', '.join(there)}, and the presets {', '.join(PRESETS)}",
    )


def _value(text: str) -> Any:
    """A value as typed: TOML where it is TOML, a list where it has commas, else the words themselves."""
    import tomllib

    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text.split(",") if "," in text else text
    return document["value"] if len(document) == 1 else text


def _options(instrument: Instrument, given: dict[str, Any]) -> Any:
    if instrument.options is None:
        if given:
            raise UsageError(
                f"--with {instrument.name}.{next(iter(given))}: {instrument.name} has no options",
                "leave it out",
            )
        return None
    try:
        return structure(given, instrument.options, instrument.name)
    except Mistake as mistake:
        raise UsageError(
            f"--with {mistake.key}: {mistake.problem}", "`lanes run --help` shows how to set it"
        ) from None
