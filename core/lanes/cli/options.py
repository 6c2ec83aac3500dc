"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lanes.errors import UsageError

if TYPE_CHECKING:
    from lanes.away.here import Vantage
    from lanes.bench.plan import Plan
    from lanes.instruments import Chosen
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

    def __init__(self, name: str = "KEY=VALUE", example: str = "threads=2") -> None:
        self.name, self._example = name, example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, sign, text = str(value).partition("=")
        if not sign or not key.strip():
            self.fail(f"{value!r} should be {self.name}, such as {self._example}", param, ctx)
        return key.strip(), text.strip()


class Rates(click.ParamType[Any]):
    """Requests a second, with commas between them: `0.5,2.5`."""

    name = "R[,R...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of requests a second such as 0.5,2.5", param, ctx)


class Quantity(click.ParamType[Any]):
    """A quantity that `lanes.bench` reads: a share, a time, an objective."""

    def __init__(self, name: str, module: str, reader: str) -> None:
        self.name = name
        self._module, self._reader = module, reader

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        import importlib

        if not isinstance(value, str):
            return value
        try:
            return getattr(importlib.import_module(self._module), self._reader)(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Shapes(click.ParamType[Any]):
    """`suffix`, `ctx` or both."""

    name = "SHAPE[,SHAPE]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(str(value).replace(" ", "").split(","))


_PLAN = (
    click.option("--pp", type=Integers(), show_default="2048", help="Prompt tokens."),
    click.option("--tg", type=Integers(), show_default="128", help="Answer tokens."),
    click.option("--depth", type=Integers(), show_default="0", help="Tokens of context."),
    click.option(
        "--depth-shape",
        type=Shapes(),
        show_default="suffix",
        help="What depth means: `suffix`, the prompt follows a cached prefix of that length; `ctx`, the prompt "
        "is of that length, all of it cold; or both.",
    ),
    click.option("--concurrency", type=Integers(), show_default="1", help="Streams at once."),
    click.option(
        "--load",
        type=click.Choice(["burst", "closed"]),
        show_default="burst",
        help="`burst`: all streams start at once; `closed`: each is kept busy, one request after the other, and "
        "ramp-up and ramp-down are not counted.",
    ),
    click.option(
        "--rate",
        type=Rates(),
        help="Requests a second, sent by a random schedule whether answers come or not; latencies count from "
        "the schedule.",
    ),
    click.option(
        "--requests",
        type=int,
        metavar="N",
        help="Requests of a pass, for --load closed (default: 10 a stream) and --rate (default: 100).",
    ),
    click.option("--passes", type=int, show_default="5", help="Measured passes a cell."),
    click.option("--warmups", type=int, show_default="2", help="Passes before them, not counted."),
    click.option(
        "--until",
        type=Quantity("SHARE", "lanes.bench.units", "share"),
        help="Go on with passes until the intervals of prefill and decode are as narrow as `3%` of the median.",
    ),
    click.option(
        "--budget",
        "budget_s",
        type=Quantity("TIME", "lanes.bench.units", "seconds"),
        help="With --until: spend no more than, say, `10min` on a cell.",
    ),
    click.option(
        "--max-passes", type=int, metavar="N", show_default="100", help="With --until: make no more passes."
    ),
    click.option(
        "--slo",
        type=Quantity("SLO", "lanes.bench.slo", "parse"),
        help="Count the requests that met an objective such as `ttft=2s,itl=50ms`.",
    ),
    click.option(
        "--instrument",
        "instruments",
        metavar="NAME[,NAME...]",
        multiple=True,
        show_default="probe",
        help="What to find out: instruments, or the presets `quick`, `perf`, `agent` and `full`; "
        "`lanes instruments` lists them. May be repeated.",
    ),
    click.option(
        "--with",
        "instrument_settings",
        type=Setting("NAME.KEY=VALUE", "surface.patience_s=120"),
        multiple=True,
        help="Set an option of an instrument, such as `surface.patience_s=120`; may be repeated.",
    ),
    click.option(
        "--bisect",
        is_flag=True,
        help="With the instrument survival: when a prompt kills the lane, launch it again and again to find the "
        "smallest one that does.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        help="Start from a named plan: `seed-depth`, depths to 262,144 in both shapes with one stream and two.",
    ),
)


def plan(command: F) -> F:
    """What to measure: each combination of the lists is a cell."""
    for option in reversed(_PLAN):
        command = option(command)
    return command


def what(
    instruments: Sequence[str],
    instrument_settings: Sequence[tuple[str, str]],
    bisect: bool = False,
    **values: Any,
) -> tuple[Plan, tuple[Chosen, ...]]:
    """What the options above ask for: the plan, and the instruments. Raises `UsageError`."""
    from lanes.instruments import choose

    given = dict(instrument_settings) | ({"survival.bisect": "true"} if bisect else {})
    return _make_plan(**values), choose(instruments, given)


def _make_plan(preset: str | None = None, **values: Any) -> Plan:
    """What is given, over the preset, over the defaults of `Plan`."""
    from lanes.bench.plan import PRESETS, Plan

    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", f"there is {', '.join(PRESETS)}")
    given = {name: value for name, value in values.items() if value is not None}
    if "rate" in given and "load" not in given:
        given["load"] = "open"
    try:
        return Plan(comparison="", **PRESETS.get(preset or "", {}) | given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def vantage(command: F) -> F:
    """From where to measure."""
    for option in reversed(
        (
            click.option(
                "--from",
                "node",
                metavar="NODE",
                help="Measure from this host instead of here: what `ssh` takes, or a node of --cluster. It needs the "
                "same lanes; nothing is left there.",
            ),
            click.option(
                "--from-python",
                "python",
                metavar="PATH",
                help="With --from: the Python there that has lanes (default: `lanes` is on the path).",
            ),
        )
    ):
        command = option(command)
    return command


def vantage_of(node: str | None, python: str | None, cluster: str | None) -> Vantage | None:
    """What the options above come to; None where it is here. Raises `UsageError`."""
    if node is None:
        if python is not None:
            raise UsageError("--from-python goes with --from", "say from which node to measure")
        return None
    from lanes.away import here

    host = here.host_of(node, cluster)
    return here.Vantage(host=host, python=python) if host.ssh is not None else None


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


def _allowed(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> dict[str, str | None]:
    """The host scripts that may run: those named here, and those of the settings, which say where they are."""
    from lanes import settings

    return {**dict.fromkeys(names), **settings.read().scripts}


allow_script = click.option(
    "--allow-script",
    "allowed",
    multiple=True,
    metavar="NAME",
    callback=_allowed,
    help="Let this script of the recipe run on the nodes themselves; --dry-run shows its text. May be repeated; "
    "[scripts] in settings.toml allows for good.",
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
            click.option("--cluster", metavar="C", help="Use this cluster, by name or file."),
            click.option(
                "--take-over",
                metavar="REASON",
                help="Take over nodes whose owner has given no sign of life; the result says so for ever.",
            ),
            click.option(
                "--port", type=click.IntRange(1, 65535), help="Serve on this port (default: a free one)."
            ),
            despite,
            allow_script,
            click.option(
                "--retries",
                type=click.IntRange(0),
                default=1,
                metavar="N",
                show_default=True,
                help="How often to start again when a boot failed for a cause that may pass.",
            ),
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
    *,
    real: bool = False,
) -> tuple[list[Bound], list[Place]]:
    """The lanes that a command line names, each with its place: one for each recipe, and one for each
    engine without any. With `real`, a cluster's nodes are asked: something will be started there.

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
    where = _Where(arch, cluster, node, real)
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

    def __init__(self, arch: str | None, cluster: str | None, node: str | None, real: bool) -> None:
        from lanes import clusters, nodes

        given = {"--arch": arch, "--cluster": cluster, "--node": node}
        named = [option for option, value in given.items() if value]
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)} exclude each other", "give one of them")
        self._arch = arch
        self._fixed: Place | None = None
        if cluster:
            named_so = clusters.find(cluster)
            if real:
                self._fixed = clusters.seen(clusters.changeable(named_so), clusters.file(cluster))
            else:
                self._fixed = clusters.place(named_so)
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
