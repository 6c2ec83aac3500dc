"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lanes.errors import UsageError

if TYPE_CHECKING:
    from lanes.bench.plan import Plan
    from lanes.lifecycle import Bound
    from lanes.nodes import Place

F = TypeVar("F", bound=Callable[..., Any])


class Integers(click.ParamType[Any]):
    """Whole numbers with commas between them: `1,2,4`; `4k` is 4096."""

    name = "N[,N...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(_integer(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,2,4", param, ctx)


def _integer(text: str) -> int:
    text = text.strip().lower()
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


class Setting(click.ParamType[Any]):
    """`KEY=VALUE`."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, sign, text = str(value).partition("=")
        if not sign or not key.strip():
            self.fail(f"{value!r} should be KEY=VALUE, such as threads=2", param, ctx)
        return key.strip(), text.strip()


def plan(command: F) -> F:
    """What to measure: each combination of the lists is a cell."""
    for option in reversed(
        (
            click.option("--pp", type=Integers(), default="2048", show_default=True, help="Prompt tokens."),
            click.option("--tg", type=Integers(), default="128", show_default=True, help="Answer tokens."),
            click.option(
                "--depth",
                type=Integers(),
                default="0",
                show_default=True,
                help="Cached tokens before the prompt.",
            ),
            click.option(
                "--concurrency", type=Integers(), default="1", show_default=True, help="Streams at once."
            ),
            click.option("--passes", type=int, default=5, show_default=True, help="Measured passes a cell."),
            click.option(
                "--warmups", type=int, default=2, show_default=True, help="Passes before them, not counted."
            ),
        )
    ):
        command = option(command)
    return command


def make_plan(comparison: str, **values: Any) -> Plan:
    """The plan from the options above. Raises `UsageError`."""
    from lanes.bench.plan import Plan

    try:
        return Plan(comparison=comparison, **values)
    except ValueError as error:
        raise UsageError(str(error)) from None


settings = click.option(
    "--set",
    "settings",
    type=Setting(),
    multiple=True,
    help="Set a key of the recipe: an option (threads=2), env.NAME=value, patience_s=3600; may be repeated.",
)
despite = click.option(
    "--despite",
    multiple=True,
    metavar="QUESTION",
    help="Go on against a finding, by its question (sm, memory, ...); the result says so for ever.",
)


def lane(command: F) -> F:
    """Where a lane comes from, beside its engine and recipe."""
    for option in reversed(
        (
            click.option("--model", help="Serve this model file or folder instead of the recipe's."),
            settings,
            click.option(
                "--arch",
                metavar="A",
                help="Ask about this hardware instead of what is here: gb10, h200, sm_90, gfx942; nothing is launched.",
            ),
            click.option(
                "--cluster", metavar="C", help="Ask about this cluster, by name or file; nothing is launched."
            ),
            click.option(
                "--port", type=click.IntRange(1, 65535), help="Serve on this port (default: a free one)."
            ),
            despite,
            click.option("--dry-run", is_flag=True, help="Show all that would be done, and do nothing."),
        )
    ):
        command = option(command)
    return command


def bind(
    engines: Sequence[str],
    recipe_names: Sequence[str],
    model: str | None,
    settings: Sequence[tuple[str, str]],
    arch: str | None = None,
    cluster: str | None = None,
    node: str | None = None,
) -> tuple[list[Bound], list[Place]]:
    """The lanes that a command line names, each with its place: one for each recipe, and one for each
    engine without any.

    Raises `UsageError`: everything that is misspelt is found before anything starts.
    """
    import attrs

    from lanes import recipes
    from lanes.lifecycle import Bound
    from lanes.plugins import Plugins

    if not engines and not recipe_names:
        raise UsageError(
            "say what to run: --engine E or --recipe R", "`lanes engines` and `lanes recipes` list them"
        )
    where = _Where(arch, cluster, node)
    plugins = Plugins()
    wanted = {name: plugins.engine(name) for name in engines}
    overrides = dict(settings)
    found = [recipes.find(name, plugins, overrides) for name in recipe_names]
    for one in found:
        if engines and one.engine not in wanted:
            raise UsageError(
                f"recipe {one.name!r} is for engine {one.engine!r}, not for {', '.join(engines)}"
            )
    for name, engine in wanted.items():
        if not any(one.engine == name for one in found):
            found.append(
                recipes.of_model(name, model, overrides)
                if model is not None
                else recipes.default(engine, plugins, where.size, overrides)
            )
    if model is not None and recipe_names:
        found = [recipes.with_model(one, model) for one in found]
    bounds, places = [], []
    for one in found:
        engine = plugins.engine(one.engine)
        places.append(where.place(one.nodes))
        lane = attrs.evolve(recipes.lane(one, engine), cluster=places[-1].name)
        bounds.append(Bound(lane=lane, engine=engine))
    return bounds, places


class _Where:
    """What --arch, --cluster and --node come to. Raises `UsageError` for names that are not known."""

    def __init__(self, arch: str | None, cluster: str | None, node: str | None) -> None:
        from lanes import clusters, nodes

        given = {"--arch": arch, "--cluster": cluster, "--node": node}
        named = [option for option, value in given.items() if value]
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)} exclude each other", "give one of them")
        self._arch = arch
        self._fixed: Place | None = None
        if cluster:
            self._fixed = clusters.place(clusters.find(cluster))
        elif node:
            self._fixed = nodes.remote(node)
        elif not arch:
            self._fixed = nodes.here()

    @property
    def size(self) -> int | None:
        """The number of nodes, None where hardware is asked about that may be had in any number."""
        return len(self._fixed.seats) if self._fixed else None

    def place(self, count: int) -> Place:
        import attrs

        from lanes import nodes

        if self._fixed is None:
            return nodes.hypothetical(str(self._arch), count)
        # A recipe for fewer nodes than there are runs on the first ones.
        return attrs.evolve(self._fixed, seats=self._fixed.seats[:count])
