"""Find plugins, keep the broken ones apart, and ask one engine.

Entry points are loaded one by one. One that fails to import, was made for another contract, or breaks
its rules is kept with its problem in words; everything else works. Asking an engine calls its own
implementation with the wrappers of extensions around it, never another engine's, and checks the
result's type at the border.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import attrs
import pluggy

from lanes import hookspecs, types
from lanes.errors import LanesError, PluginError

ENGINES = "lanes.engines"
EXTENSIONS = "lanes.extensions"

COLLECTED = frozenset({"lanes_check", "lanes_diagnose"})
"""Asked of the lane's engine and of every extension."""
EXTENSION_ONLY = frozenset({"lanes_instruments", "lanes_executors"})
REQUIRED = frozenset(
    {"lanes_engine", "lanes_check", "lanes_stage", "lanes_launch", "lanes_healthcheck", "lanes_stop"}
)
"""What every engine implements."""


@attrs.frozen(kw_only=True)
class Plugin:
    """One entry point: what it is, where it comes from, and what is wrong with it (None: nothing)."""

    name: str
    group: str
    distribution: str
    value: str
    problem: str | None = None

    @property
    def title(self) -> str:
        return f"{self.name} (from {self.distribution})"


@cache
def hook_names() -> frozenset[str]:
    """The names of all hooks in the contract."""
    return frozenset(n for n in vars(hookspecs) if n.startswith("lanes_"))


class Plugins:
    """All plugins that are installed. Pass `entry_points` to use others than the environment's."""

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        self._pm.add_hookspecs(hookspecs)
        found = list(entry_points) if entry_points is not None else list(_installed())
        names = Counter((e.group, e.name) for e in found)
        loaded = []
        for entry in sorted(found, key=lambda e: (e.group, e.name, _distribution(e))):
            if names[entry.group, entry.name] > 1:
                rivals = ", ".join(
                    sorted(_distribution(e) for e in found if (e.group, e.name) == (entry.group, entry.name))
                )
                problem: str | None = (
                    f"several distributions provide {entry.name!r} ({rivals}); uninstall all but one"
                )
            else:
                problem = self._load(entry)
            loaded.append(
                Plugin(
                    name=entry.name,
                    group=entry.group,
                    distribution=_distribution(entry),
                    value=entry.value,
                    problem=problem,
                )
            )
        self.all: tuple[Plugin, ...] = tuple(loaded)

    def _load(self, entry: importlib.metadata.EntryPoint) -> str | None:
        """Load and register one entry point; return what is wrong with it, or None."""
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:
            return f"{entry.value} failed to import: {_said(error)}"
        problem = _breach(self._pm, plugin, entry.group)
        if problem:
            return problem
        key = f"{entry.group}:{entry.name}"
        try:
            self._pm.register(plugin, key)
        except pluggy.PluginValidationError as error:
            self._pm.unregister(name=key)
            return " ".join(str(error).split())
        except ValueError:
            return f"{entry.value} is registered under another name already"
        return None

    @property
    def engines(self) -> tuple[Plugin, ...]:
        return tuple(p for p in self.all if p.group == ENGINES)

    @property
    def extensions(self) -> tuple[Plugin, ...]:
        return tuple(p for p in self.all if p.group == EXTENSIONS)

    def engine(self, name: str) -> Engine:
        """The engine of this name.

        Raises `PluginError` when there is none, or when its plugin is broken.
        """
        for plugin in self.engines:
            if plugin.name == name:
                if plugin.problem:
                    raise PluginError(
                        f"engine {plugin.title} cannot be used: {plugin.problem}",
                        "`lanes engines` lists those that work",
                    )
                return Engine(plugin, self._pm)
        names = [p.name for p in self.engines if not p.problem]
        near = difflib.get_close_matches(name, names, n=1)
        known = (
            f"installed are: {', '.join(names)}"
            if names
            else "no engine is installed: pip install lanes-llamacpp, or another"
        )
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PluginError(f"there is no engine {name!r}", f"{hint}{known}")

    def collect(self, hook: str) -> Iterator[tuple[str, Any]]:
        """Ask an extension-only hook of every extension: (plugin title, item) pairs. What a hook that raises
        has to say is the item: a `PluginError`, and the others still count."""
        for plugin in self.extensions:
            key = f"{EXTENSIONS}:{plugin.name}"
            if plugin.problem is None and _implements(self._pm, key, hook):
                title = f"extension {plugin.title}"
                try:
                    items = _call(self._pm, hook, key, title, {})[0]
                    if isinstance(items, str) or not isinstance(items, Sequence):
                        raise PluginError(
                            f"{hook} of {title} returned {_kind(items)}, not a sequence",
                            "report this to the plugin's author",
                        )
                except PluginError as error:
                    yield title, error
                    continue
                for item in items:
                    yield title, item


class Engine:
    """One engine, to be asked its hooks."""

    def __init__(self, plugin: Plugin, manager: pluggy.PluginManager) -> None:
        self.plugin = plugin
        self.name = plugin.name
        self._pm = manager
        self._key = f"{ENGINES}:{plugin.name}"

    def ask(self, hook: str, **arguments: Any) -> Any:
        """Call a hook of this engine, wrappers of extensions applied, and check the result's type.

        Returns None where the engine does not implement an optional hook. Raises `PluginError` naming
        the plugin and its distribution when it raises or returns the wrong type; an error of lanes'
        own (`LanesError`) passes through.
        """
        if not _implements(self._pm, self._key, hook):
            return None
        result = _call(self._pm, hook, self._key, f"engine {self.plugin.title}", arguments)
        _check_result(hook, result, f"engine {self.plugin.title}")
        return result

    def collect(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Sequence[Any] | Exception]]:
        """Ask a collected hook of this engine, then of each extension: (plugin title, result) pairs.

        One that raises or returns the wrong type is yielded as its exception: the others still count.
        """
        for name, _ in self._pm.list_name_plugin():
            if (name == self._key or name.startswith(EXTENSIONS)) and _implements(self._pm, name, hook):
                title = (
                    f"engine {self.plugin.title}"
                    if name == self._key
                    else f"extension {name.partition(':')[2]}"
                )
                try:
                    # A wrapper of a collected hook sees what pluggy gives it: a list of results.
                    results = _call(self._pm, hook, name, title, arguments)
                    for result in results:
                        _check_result(hook, result, title)
                        yield title, result
                except Exception as error:
                    yield title, error


def _installed() -> Iterator[importlib.metadata.EntryPoint]:
    for group in (ENGINES, EXTENSIONS):
        yield from importlib.metadata.entry_points(group=group)


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    dist = entry.dist
    return f"{dist.name} {dist.version}" if dist is not None else "an unknown distribution"


def _said(error: BaseException) -> str:
    """An exception in one line: its class and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _breach(manager: pluggy.PluginManager, plugin: Any, group: str) -> str | None:
    """Say how a plugin breaks the contract, or None."""
    contract = getattr(plugin, "LANES_CONTRACT", None)
    if contract is None:
        return f"it does not say which contract it was made for; it should set LANES_CONTRACT = {hookspecs.CONTRACT}"
    if contract != hookspecs.CONTRACT:
        return f"it was made for contract {contract!r}, this lanes speaks contract {hookspecs.CONTRACT}; upgrade the older one"
    implemented: dict[str, bool] = {}
    for name in dir(plugin):
        if not callable(getattr(plugin, name, None)):
            continue
        options = manager.parse_hookimpl_opts(plugin, name)
        known = name in hook_names()
        if options is not None and not known:
            near = difflib.get_close_matches(name, hook_names(), n=1)
            return f"there is no hook {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        if options is None and known:
            return f"{name} is not marked with @lanes.hookimpl"
        if options is not None:
            implemented[name] = bool(options.get("wrapper") or options.get("hookwrapper"))
    return _engine_breach(implemented) if group == ENGINES else _extension_breach(implemented)


def _engine_breach(implemented: dict[str, bool]) -> str | None:
    missing = sorted(REQUIRED - implemented.keys())
    if missing:
        return f"it lacks {', '.join(missing)}"
    for name, wraps in implemented.items():
        if wraps:
            return f"an engine may not wrap hooks ({name}); put the wrapper into an extension (group {EXTENSIONS})"
        if name in EXTENSION_ONLY:
            return f"an engine may not implement {name}; put it into an extension (group {EXTENSIONS})"
    return None


def _extension_breach(implemented: dict[str, bool]) -> str | None:
    for name, wraps in implemented.items():
        # Under firstresult a plain implementation would answer for every engine.
        if not wraps and name not in COLLECTED | EXTENSION_ONLY:
            return f"an extension may only wrap {name} (@lanes.hookimpl(wrapper=True)): a plain one would answer for every engine"
    return None


def _implements(manager: pluggy.PluginManager, key: str, hook: str) -> bool:
    """Whether this plugin has a plain (not wrapping) implementation of the hook."""
    return any(
        i.plugin_name == key and not (i.wrapper or i.hookwrapper)
        for i in getattr(manager.hook, hook).get_hookimpls()
    )


def _call(manager: pluggy.PluginManager, hook: str, key: str, title: str, arguments: dict[str, Any]) -> Any:
    """Call one plugin's implementation of a hook with all wrappers around it."""
    impls = getattr(manager.hook, hook).get_hookimpls()
    others = [i.plugin for i in impls if i.plugin_name != key and not (i.wrapper or i.hookwrapper)]
    try:
        return manager.subset_hook_caller(hook, others)(**arguments)
    except LanesError:
        raise
    except Exception as error:
        wrappers = [i.plugin_name.partition(":")[2] for i in impls if i.wrapper or i.hookwrapper]
        around = f" (wrapped by {', '.join(wrappers)})" if wrappers else ""
        raise PluginError(
            f"{hook} of {title}{around} raised {_said(error)}", "report this to the plugin's author"
        ) from error


def _check_result(hook: str, result: Any, title: str) -> None:
    expected = _return_type(hook)
    wrong = _mismatch(result, expected)
    if wrong:
        raise PluginError(f"{hook} of {title} returned {wrong}", "report this to the plugin's author")


@cache
def _return_type(hook: str) -> Any:
    names = {**vars(types), "Sequence": Sequence, "Any": Any}
    return typing.get_type_hints(getattr(hookspecs, hook), localns=names)["return"]


def _mismatch(value: Any, expected: Any) -> str | None:
    """Say how a hook's result differs from the specification's return type, or None."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is type:
        good = isinstance(value, type) and attrs.has(value)
        return None if good else f"{_kind(value)}, not an attrs class"
    if origin is Sequence:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return f"{_kind(value)}, not a sequence of {_title(arguments[0])}"
        for index, item in enumerate(value):
            if not _is(item, arguments[0]):
                return f"{_kind(item)} at index {index}, not {_title(arguments[0])}"
        return None
    return None if _is(value, expected) else f"{_kind(value)}, not {_title(expected)}"


def _is(value: Any, expected: Any) -> bool:
    return expected is Any or isinstance(value, typing.get_args(expected) or expected)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _title(expected: Any) -> str:
    return " or ".join(t.__name__ for t in typing.get_args(expected) or (expected,))
