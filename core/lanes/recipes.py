"""Recipes: TOML files -> lanes.

A recipe is shipped with an engine's plugin, kept in the user's `recipes/` folder, or named by the
path of its file. Unknown keys, wrong types and missing keys are refused with the file, the line, the
key's path, and what would be right.
"""

from __future__ import annotations

import importlib.resources
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
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not TOML: {error}", "mend the line that it names") from None
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    document.setdefault("origin", origin)
    try:
        recipe = structure(document, Recipe)
    except Mistake as mistake:
        raise _refusal(text, origin, mistake) from None
    given = [k for k in ("path", "package", "repo") if getattr(recipe.model, k)]
    if len(given) > 1:
        raise RecipeError(f"{origin}: model.{given[0]} and model.{given[1]} exclude each other", "keep one")
    return attrs.evolve(recipe, model=_resolved(recipe.model, origin))


def _resolved(model: Model, origin: str) -> Model:
    if model.path is None:
        return model
    path = Path(model.path).expanduser()
    return attrs.evolve(
        model, path=str(path if path.is_absolute() else Path(origin).parent.absolute() / path)
    )


def _override(document: dict[str, Any], key: str, value: str) -> None:
    own = key in {field.name for field in attrs.fields(Recipe)}
    *tables, last = key.split(".") if own or "." in key else ("options", key)
    table = document
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {key}: {name} is not a table")
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = value


def _refusal(text: str, origin: str, mistake: Mistake) -> RecipeError:
    line = _line_of(text, mistake.key)
    where = f"{origin}, line {line}" if line else origin
    return RecipeError(f"{where}: {mistake.key}: {mistake.problem}")


def _line_of(text: str, key: str) -> int | None:
    """The line on which a dotted key stands, so that a person need not search for it."""
    *tables, last = re.sub(r"\[.*?\]", "", key).split(".")
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = header[1]
            if table == ".".join([*tables, last]):
                return number
        elif table == ".".join(tables) and re.match(rf"\s*[\"']?{re.escape(last)}[\"']?\s*=", line):
            return number
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
        files = importlib.resources.files(package).iterdir() if package else ()
    except (ImportError, PluginError):
        return
    for file in sorted(files, key=lambda f: f.name):
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
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe file {origin}", "`lanes recipes` lists the recipes") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{origin} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise RecipeError(f"{origin} cannot be read: {error.strerror}") from None


def find(name: str, plugins: Plugins, overrides: Mapping[str, str] | None = None) -> Recipe:
    """The recipe of this name, or in this file. Raises `RecipeError`."""
    if name.endswith(".toml") or "/" in name:
        return parse(_read(Path(name).expanduser(), name), name, overrides)
    entries = list(listed(plugins))
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
        return find(names[0], plugins, overrides)
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
    path = Path(model).expanduser().absolute()
    document: dict[str, Any] = {
        "name": path.stem or engine,
        "engine": engine,
        "model": {"name": path.stem, "path": str(path)},
        "origin": "the command line",
    }
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    try:
        return structure(document, Recipe)
    except Mistake as mistake:
        raise UsageError(f"--set {mistake.key}: {mistake.problem}") from None


def with_model(recipe: Recipe, model: str) -> Recipe:
    """The recipe with another model file or folder, under the recipe's own name for clients."""
    path = str(Path(model).expanduser().absolute())
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
        text = Path(recipe.origin).read_text() if Path(recipe.origin).is_file() else ""
        raise _refusal(text, recipe.origin, mistake) from None
    return Lane(name=recipe.name, engine=engine.name, recipe=recipe, options=options)
