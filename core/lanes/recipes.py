"""Recipes: TOML files -> lanes.

A recipe is shipped with an engine's plugin, kept in the user's `recipes/` folder, or named by the
path of its file. Unknown keys, wrong types and missing keys are refused with the file, the line, the
key's path, and what would be right.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import attrs

from lanes import paths
from lanes.errors import LanesError, PluginError, RecipeError, UsageError
from lanes.plugins import Engine, Plugins
from lanes.structure import Mistake, structure
from lanes.types import Lane, Model, Recipe

COMMAND_LINE = "the command line"


@attrs.frozen(kw_only=True)
class Listed:
    """A recipe that can be named: its name, the engine it is for, where it lies, and its problem."""

    name: str
    engine: str
    origin: str
    file: Traversable
    recipe: Recipe | None = None
    problem: str | None = None


def parse(text: str, origin: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe from TOML text.

    `origin` names the file in messages; a relative `model.path` is meant beside it. `overrides` maps
    dotted keys to values as typed on a command line (`threads` is short for `options.threads`, unless
    the recipe has a key of that name itself).
    Raises `RecipeError`.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{origin} is not TOML: {error}", "mend the line that it names") from None
    recipe = _recipe(document, text, origin, overrides)
    return attrs.evolve(recipe, model=_resolved(recipe.model, origin))


def _recipe(document: dict[str, Any], text: str, origin: str, overrides: Mapping[str, str] | None) -> Recipe:
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    try:
        if "origin" in document:
            raise Mistake("origin", "there is no such key; lanes itself notes where a recipe was read from")
        recipe = structure(document, Recipe)
        _check(recipe)
    except Mistake as mistake:
        raise _refusal(text, origin, mistake, document) from None
    return attrs.evolve(recipe, origin=origin)


def _check(recipe: Recipe) -> None:
    """Raise the `Mistake` that no type shows."""
    if not recipe.name:
        raise Mistake("name", "should not be empty")
    if recipe.nodes < 1:
        raise Mistake("nodes", f"should be 1 or more, not {recipe.nodes}")
    if recipe.patience_s is not None and not recipe.patience_s > 0:
        raise Mistake("patience_s", f"should be more than 0, not {recipe.patience_s:g}")
    for name in recipe.env:
        if not name or "=" in name:
            raise Mistake(f"env.{name}", "the name of an environment variable holds no '=', and is not empty")
    if recipe.build is not None and not recipe.image:
        raise Mistake("image", "the key is missing; it is the name of what [build] builds")
    given = [k for k in ("path", "package", "repo") if getattr(recipe.model, k) is not None]
    for key in given:
        if not getattr(recipe.model, key):
            raise Mistake(f"model.{key}", "should not be empty; leave it out")
    if len(given) > 1:
        raise Mistake(
            f"model.{given[1]}", f"model.{given[0]} and model.{given[1]} exclude each other; keep one"
        )


def _resolved(model: Model, origin: str) -> Model:
    if model.path is None:
        return model
    return attrs.evolve(model, path=str(paths.under(Path(origin).parent, model.path)))


def _override(document: dict[str, Any], key: str, value: str) -> None:
    own = key in {field.name for field in attrs.fields(Recipe)}
    *tables, last = key.split(".") if own or "." in key else ("options", key)
    if not all((*tables, last)):
        raise UsageError(f"--set {key}: a name is missing beside a dot")
    table = document
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {key}: {name} is not a table")
    table[last] = _value(value, as_text=tables == ["env"])


def _value(text: str, as_text: bool) -> Any:
    """A value as typed: TOML where it is TOML, else the words themselves."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = document.pop("value")
    # Environment variables are strings: nobody should have to quote OMP_NUM_THREADS=4 twice.
    return text if document or (as_text and not isinstance(value, str)) else value


def _refusal(text: str, origin: str, mistake: Mistake, document: Mapping[str, Any]) -> RecipeError:
    """Say where a mistake is: in which line, or that it came from the command line."""
    written = _loaded(text) if text else {} if origin == COMMAND_LINE else document
    value = _at(document, mistake.key)
    if value is not _ABSENT and repr(value) != repr(_at(written, mistake.key)):
        return RecipeError(f"--set {mistake.key.removeprefix('options.')}: {mistake.problem}")
    line = _line_of(text, mistake.key)
    where = f"{origin}, line {line}" if line else origin
    return RecipeError(f"{where}: {mistake.key}: {mistake.problem}")


_ABSENT = object()


def _at(document: Any, key: str) -> Any:
    """What stands at a key's path such as `mounts[1].source`, or `_ABSENT`."""
    for part in re.findall(r"\[\d+\]|[^.\[\]]+", key):
        try:
            document = document[int(part[1:-1]) if part.startswith("[") else part]
        except (LookupError, TypeError):
            return _ABSENT
    return document


def _loaded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def _line_of(text: str, key: str) -> int | None:
    """The line on which a key stands, or else the table that it is missing from.

    TOML has many ways to write a key; its own reader knows them all: it is the line after which the
    text begins to have that key.
    """
    lines = text.split("\n")
    while key:
        begin = 1
        for number in range(1, len(lines) + 1):
            try:
                document = tomllib.loads("\n".join(lines[:number]) + "\n")
            except (ValueError, RecursionError):
                continue  # in the middle of a value
            if _at(document, key) is not _ABSENT:
                return begin
            begin = number + 1
        key = re.sub(r"(\[\d+\]|(^|\.)[^.\[\]]*)$", "", key)
    return None


def listed(plugins: Plugins, engine: str | None = None) -> Iterator[Listed]:
    """All recipes that can be named, of one engine or of all; the user's own come first."""
    for file in sorted(paths.recipes().glob("*.toml")):
        entry = _listed(file, file.stem, str(file))
        if engine in (None, entry.engine):
            yield entry
    for plugin in plugins.engines:
        if plugin.problem is None and engine in (None, plugin.name):
            yield from _shipped(plugins.engine(plugin.name))


def _shipped(engine: Engine) -> Iterator[Listed]:
    try:
        package = engine.ask("lanes_engine").recipes
    except PluginError:
        return
    try:
        files = sorted(importlib.resources.files(package).iterdir(), key=lambda f: f.name) if package else ()
    except Exception as error:
        # A stranger's package may raise anything when it is imported; the other recipes are still good.
        yield Listed(
            name=package,
            engine=engine.name,
            origin=package,
            file=Path(package),
            problem=f"the recipes of {engine.plugin.title} cannot be read: {type(error).__name__}: {error}",
        )
        return
    for file in files:
        if file.name.endswith(".toml"):
            yield _listed(file, file.name.removesuffix(".toml"), f"{package}/{file.name}", engine.name)


def _listed(file: Traversable, name: str, origin: str, engine: str = "") -> Listed:
    try:
        recipe = parse(_read(file, origin), origin)
        return Listed(name=name, engine=recipe.engine, origin=origin, file=file, recipe=recipe)
    except LanesError as error:
        return Listed(name=name, engine=engine, origin=origin, file=file, problem=str(error))


def _read(file: Traversable, origin: str) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe file {origin}", "`lanes recipes` lists the recipes") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{origin} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise RecipeError(f"{origin} cannot be read: {error.strerror}") from None


def find(
    name: str, plugins: Plugins, overrides: Mapping[str, str] | None = None, engine: str | None = None
) -> Recipe:
    """The recipe of this name (of this engine, where one is given), or in this file. Raises
    `RecipeError`."""
    if name.endswith(".toml") or "/" in name:
        file = os.path.expanduser(name)
        return parse(_read(Path(file), file), file, overrides)
    entries = list(listed(plugins, engine))
    for entry in entries:
        if entry.name == name:
            return parse(_read(entry.file, entry.origin), entry.origin, overrides)
    near = get_close_matches(name, [e.name for e in entries], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise RecipeError(
        f"there is no recipe {name!r}", f"{hint}`lanes recipes` lists them; a file is named by its path"
    )


def default(
    engine: Engine, plugins: Plugins, nodes: int | None, overrides: Mapping[str, str] | None = None
) -> Recipe:
    """The recipe that an engine declares for this number of nodes; where there is none (or the number is
    not known), that for the fewest: its check then says what it would need. Raises `UsageError` when
    there is none at all, or when several would do."""
    declared: Mapping[int, Sequence[str]] = engine.ask("lanes_engine").default_recipes
    if nodes not in declared:
        nodes = min(declared, default=nodes)
    names = declared.get(nodes or 0, ())
    if len(names) == 1:
        return find(names[0], plugins, overrides, engine.name)
    if names:
        raise UsageError(
            f"engine {engine.name!r} has several recipes for {nodes} node(s): {', '.join(names)}",
            "choose one with --recipe",
        )
    others = ", ".join(e.name for e in listed(plugins, engine.name))
    raise UsageError(
        f"engine {engine.name!r} has no default recipe",
        f"name one with --recipe ({others})" if others else "name a recipe's file with --recipe",
    )


def of_model(engine: str, model: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """A recipe for a model file or folder given on the command line: the engine's own defaults."""
    path = Path(os.path.expanduser(model)).absolute()
    document: dict[str, Any] = {
        "name": path.stem or engine,
        "engine": engine,
        "model": {"name": path.stem, "path": str(path)},
    }
    return _recipe(document, "", COMMAND_LINE, overrides)


def with_model(recipe: Recipe, model: str) -> Recipe:
    """The recipe with another model file or folder, under the recipe's own name for clients."""
    path = str(Path(os.path.expanduser(model)).absolute())
    return attrs.evolve(recipe, model=Model(name=recipe.model.name, path=path))


def lane(recipe: Recipe, engine: Engine) -> Lane:
    """Bind a recipe to its engine: the options become typed. Raises `RecipeError`."""
    if recipe.engine != engine.name:
        raise UsageError(f"recipe {recipe.name!r} is for engine {recipe.engine!r}, not {engine.name!r}")
    options_class = engine.ask("lanes_options")
    if options_class is None:
        if recipe.options:
            raise RecipeError(f"{recipe.origin}: engine {engine.name!r} has no options", "remove [options]")
        return Lane(name=recipe.name, engine=engine.name, recipe=recipe)
    try:
        options = structure(dict(recipe.options), options_class, "options")
    except Mistake as mistake:
        raise _refusal(_text(recipe.origin), recipe.origin, mistake, {"options": recipe.options}) from None
    return Lane(name=recipe.name, engine=engine.name, recipe=recipe, options=options)


def _text(origin: str) -> str:
    """The text of the file that a recipe was read from, or "" where there is none."""
    package, _, name = origin.rpartition("/")
    try:
        file = Path(origin) if Path(origin).is_file() else importlib.resources.files(package) / name
        return file.read_text(encoding="utf-8-sig")
    except (ImportError, OSError, ValueError):
        return ""
