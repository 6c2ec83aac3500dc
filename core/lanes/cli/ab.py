"""`lanes ab`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import options, output
from lanes.cli.compare import behind, fail_if_slower
from lanes.cli.options import Quantity
from lanes.errors import UsageError

if TYPE_CHECKING:
    from lanes.ab import Name
    from lanes.bench.plan import Plan
    from lanes.comparing.comparison import Comparison
    from lanes.comparing.planning import Price
    from lanes.lifecycle import Bound, Outcome
    from lanes.nodes import Place
    from lanes.results.store import Store

    Lanes = dict[Name, tuple[Bound, Place]]


@click.command("ab")
@click.argument("recipes", nargs=-1, metavar="[RECIPE_A [RECIPE_B]]")
@click.option("--aa", is_flag=True, help="Hold one lane against itself: what differs then is the floor.")
@click.option(
    "--blocks",
    type=click.IntRange(1),
    metavar="N",
    help="How many blocks of one launch of each lane (default: as many as find a difference of the margin).",
)
@click.option(
    "--request",
    "fields",
    type=options.Setting("KEY=VALUE[,VALUE]", "reasoning_effort=low,high"),
    multiple=True,
    help="Send this field with every request. Two values, of lanes that differ in nothing else, need no restart: both "
    "are measured in each launch, A B B A. May be repeated.",
)
@click.option("--apart", is_flag=True, help="With --request: a launch of its own for each value.")
@click.option(
    "--margin",
    type=Quantity("SHARE", "lanes.bench.units", "share"),
    default="10%",
    show_default=True,
    help="The difference that counts: it is found with a power of 80%, and `no difference` means none beyond it.",
)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME",
    help="Judge by this figure alone (decode_tps); may be repeated. Fewer figures need fewer blocks.",
)
@click.option(
    "--boot",
    type=Quantity("TIME", "lanes.bench.units", "seconds"),
    help="How long a launch takes to boot, where none is known: `33min`.",
)
@click.option("--yes", is_flag=True, help="Do not ask whether the price is right.")
@click.option(
    "--resume",
    metavar="RUN",
    help="Go on with an A/B that was interrupted, however it was; all else is as it was asked for.",
)
@fail_if_slower
@options.lane
@options.plan
@output.as_json
def command(
    recipes: tuple[str, ...],
    aa: bool,
    blocks: int | None,
    fields: tuple[tuple[str, str], ...],
    apart: bool,
    margin: float,
    figures: tuple[str, ...],
    boot: float | None,
    yes: bool,
    resume: str | None,
    fail_if_slower: float | None,
    as_json: bool,
    dry_run: bool,
    **asked: Any,
) -> int:
    """Find out which of two lanes is faster: launch them in turn, block after block, and judge.

    Two recipes, or one with two values of an option (--set threads=1,2) or of a field of its requests (--request
    reasoning_effort=low,high). The unit is the launch, for restarts differ by more than passes do; a block is one
    launch of each lane, in an order that a coin chose, or one launch of both where requests alone differ. The price
    is told before anything starts. Whatever interrupts it (kill -9 included), --resume goes on.
    """
    from lanes import paths
    from lanes.results.store import Store

    with Store(paths.history()) as store:
        if resume is not None:
            if recipes or aa or blocks or fields or apart:
                raise UsageError(
                    "--resume takes everything from the run that it goes on with", "give nothing else"
                )
            design, run = _old(store, resume)
        else:
            design, run = _new(recipes, aa, blocks, fields, apart, margin, figures, asked), None
        lanes, plan, judged = _bound(design, real=not dry_run)
        if run is None:
            _complete(design, store, lanes, judged)
            _tell_price(design, store, lanes, plan, boot)
            if dry_run:
                return 0
            if not yes and _asks() and not click.confirm("Go on?", default=True, err=True):
                return 0
        code, found = _carry_out(store, design, run, lanes, plan, as_json)
        return code or behind(found, fail_if_slower)


def _new(
    recipes: Sequence[str],
    aa: bool,
    blocks: int | None,
    fields: Sequence[tuple[str, str]],
    apart: bool,
    margin: float,
    figures: Sequence[str],
    asked: dict[str, Any],
) -> dict[str, Any]:
    """What is to be done, as the run keeps it. Raises `UsageError`."""
    if asked.pop("arch", None):
        raise UsageError("--arch launches nothing, and an A/B is launches", "leave it out")
    if not 1 <= len(recipes) <= 2:
        raise UsageError("an A/B is of one recipe or of two", "`lanes recipes` lists them")
    named = [str(Path(one).absolute()) if Path(one).is_file() else one for one in recipes]
    a, b = _sides(asked.pop("settings"))
    first, second = (named[0], a), (named[-1], b)
    if apart and not fields:
        raise UsageError("--apart goes with --request: all else is launched apart anyway", "leave it out")
    fields_a, fields_b = _fields(fields)
    same = first == second
    if (same and fields_a == fields_b) != aa:
        raise UsageError(
            "both lanes are the same"
            if not aa
            else "--aa holds one lane against itself, and here something differs",
            "say what differs: a second recipe, --set KEY=A,B or --request KEY=A,B; or hold it against itself with --aa"
            if not aa
            else "name one recipe, and one value for each option",
        )
    kept = {name: value for name, value in asked.items() if name in _HOW}
    plan = {name: value for name, value in asked.items() if name not in _HOW}
    made, _ = options.what(**plan)
    from lanes.bench.codec import as_json

    return {
        "a": {"recipe": first[0], "settings": [list(one) for one in first[1]], "request": fields_a},
        "b": {"recipe": second[0], "settings": [list(one) for one in second[1]], "request": fields_b},
        "mirrored": aa,
        "nested": same and bool(fields) and not apart,
        "blocks": blocks,
        "margin": margin,
        "figures": list(figures),
        "plan": as_json(made),
        "instruments": list(plan["instruments"]),
        "instrument_settings": [list(one) for one in plan["instrument_settings"]],
        "how": kept,
    }


_HOW = ("model", "cluster", "take_over", "port", "despite", "allowed", "retries")


def _sides(
    settings: Sequence[tuple[str, str]],
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Each lane's settings: `threads=1,2` is 1 for the first and 2 for the second; one value is for both."""
    from lanes.describe import HIDDEN, hide

    a, b = [], []
    for key, text in settings:
        if HIDDEN in hide({key: text}).values():
            raise UsageError(
                f"--set {key} looks like a secret, and an A/B keeps what it was asked for",
                "name it in the recipe",
            )
        values = _values(text)
        if len(values) > 2:
            raise UsageError(
                f"--set {key}={text} has {len(values)} values, and an A/B has two lanes", "name two"
            )
        a.append((key, values[0]))
        b.append((key, values[-1]))
    return tuple(a), tuple(b)


_OURS = ("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens")
"""Fields of a request that say what is measured."""


def _fields(fields: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of each lane's requests; a value is JSON, or else text: `low`, `2`, `{"enable_thinking": true}`."""
    from lanes.describe import is_secret

    a, b = {}, {}
    for key, text in fields:
        if key in _OURS:
            raise UsageError(
                f"--request {key}: that field is part of what is measured", "--pp, --tg and others set it"
            )
        values = [_json(one) for one in _values(text)]
        if len(values) > 2:
            raise UsageError(
                f"--request {key}={text} has {len(values)} values, and an A/B has two lanes", "name two"
            )
        if is_secret(key) and any(isinstance(one, str) for one in values):
            raise UsageError(
                f"--request {key} looks like a secret, and an A/B keeps what it was asked for", "leave it out"
            )
        a[key], b[key] = values[0], values[-1]
    return a, b


def _json(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _values(text: str) -> list[str]:
    """The values between commas; those within brackets or quotes part nothing."""
    found, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            found.append("")
        else:
            found[-1] += letter
    return [one.strip() for one in found]


def _old(store: Store, run: str) -> tuple[dict[str, Any], str]:
    document = store.document(run)
    if "ab" not in document:
        raise UsageError(f"{document['run']} is no A/B", "`lanes history` lists runs, with their command")
    return document["ab"], document["run"]


def _bound(design: Mapping[str, Any], real: bool) -> tuple[Lanes, Plan, list[str]]:
    """The lanes of a design, its plan, and the figures by which it is judged. Raises `UsageError`, also when a
    recipe is no longer what it was."""
    import json

    from lanes import describe
    from lanes.bench.codec import as_json, from_json
    from lanes.bench.plan import Plan
    from lanes.comparing import costs

    how = design["how"]
    lanes: Lanes = {}
    for side in ("a", "b"):
        one = design[side]
        settings = [(key, value) for key, value in one["settings"]]
        bounds, places = options.bind(
            [], [one["recipe"]], how.get("model"), settings, None, how.get("cluster"), real=real
        )
        lanes["a" if side == "a" else "b"] = (bounds[0], places[0])
        now = json.loads(json.dumps(describe.recipe(bounds[0].lane)))
        if one.setdefault("made_of", now) != now:
            raise UsageError(
                f"recipe {one['recipe']} is not what it was when the A/B began",
                "put it back, or begin a new A/B: launches of two makings do not count as one lane",
            )
        _sends(bounds[0], places[0], one.get("request") or {})
    plan = from_json(Plan, design["plan"])
    judged = costs.judged(map(as_json, plan.cells), design["figures"])
    if not judged:
        from lanes.comparing.metrics import METRICS

        raise UsageError(
            f"--figure {', '.join(design['figures'])}: no cell of this plan is judged by it",
            f"figures are {', '.join(name for name, metric in METRICS.items() if metric.judged)}",
        )
    return lanes, plan, judged


def _sends(bound: Bound, place: Place, request: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a field that would never reach the server."""
    from lanes import lifecycle
    from lanes.errors import LanesError

    if not request:
        return
    try:
        endpoint = lifecycle.symbolic(bound, place)[1].endpoint
    except LanesError:
        return  # Why it cannot be launched is told when it is.
    dialect = endpoint.dialect if endpoint is not None else None
    for key in request:
        if dialect is not None and (key in dialect.forbidden or key in dialect.fixed_length):
            raise UsageError(
                f"--request {key}: engine {bound.engine.name!r} sets that field itself, or must not be sent it",
                "leave it out",
            )


def _complete(design: dict[str, Any], store: Store, lanes: Lanes, figures: Sequence[str]) -> None:
    """Settle how many blocks there will be, and in which order."""
    import secrets

    from lanes import ab
    from lanes.comparing import costs, planning

    name = lanes["a"][0].lane.name
    seen = costs.noise(list(store.of_lane(name)), name, figures)
    noise = seen if seen is not None else planning.ASSUMED_NOISE * 2**0.5
    count = len(figures)
    if design["blocks"] is None:
        design["blocks"] = planning.blocks_needed(noise, design["margin"], count)
    design["order"] = ab.order(design["blocks"], secrets.token_hex(8))
    what = f"{count} figure{'s' if count > 1 else ''}"
    _say(
        f"{design['blocks']} blocks, for a difference of {100 * design['margin']:g}% in {what}; launches differ by "
        f"{noise / 2**0.5:.1%} ({'as they were seen to' if seen is not None else 'assumed: none have shown it'})"
    )
    least = planning.least_blocks(count)
    if design["blocks"] < least:
        _say(f"fewer than {least} blocks can show nothing of {what}, whatever they read")


def _tell_price(
    design: Mapping[str, Any], store: Store, lanes: Lanes, plan: Plan, boot: float | None
) -> None:
    from lanes.comparing.planning import Price

    past = list(store.of_lane(lanes["a"][0].lane.name))
    blocks, nested = design["blocks"], design["nested"]
    price = _price(blocks, nested, past, lanes, plan, boot)
    if isinstance(price, Price):
        _say(price.sentence())
    elif nested:
        _say(f"nested: {blocks} launches, --apart: {2 * blocks}; {price}")
    else:
        _say(f"{blocks} blocks are {2 * blocks} launches; {price}")


def _price(
    blocks: int,
    nested: bool,
    past: Sequence[Mapping[str, Any]],
    lanes: Lanes,
    plan: Plan,
    boot: float | None,
) -> Price | str:
    """What it costs, or why that is not known."""
    from lanes.comparing import costs
    from lanes.comparing.planning import Price

    name = lanes["a"][0].lane.name
    boot_s = boot if boot is not None else costs.boot_s(past, name)
    measure_s = costs.measure_s(past, name, len(plan.cells) * (plan.passes + plan.warmups))
    if boot_s is None:
        return "how long one takes to boot is not known (--boot 33min tells it), and the first will show"
    if measure_s is None and boot is None:
        return "how long one takes is not known, and the first will show"
    return Price(blocks=blocks, boot_s=boot_s, measure_s=measure_s or 0.0, nested=nested)


def _asks() -> bool:
    import sys

    return sys.stdin.isatty() and sys.stderr.isatty()


def _carry_out(
    store: Store, design: dict[str, Any], run: str | None, lanes: Lanes, plan: Plan, as_json: bool
) -> tuple[int, Comparison]:
    import time

    from lanes import ab, interrupts, records
    from lanes.cli.progress import Screen
    from lanes.comparing.planning import duration
    from lanes.instruments import choose
    from lanes.journal import Journal

    chosen = choose(design["instruments"], dict(map(tuple, design["instrument_settings"])))
    how = design["how"]
    interrupts.install()
    for record, standing in records.mend_all():
        _say(f"cleaned up after {record.id}: {standing.sentence}")
    with Screen() as screen:
        journal = (
            Journal(store, screen, resume=run) if run else Journal(store, screen, command="ab", ab=design)
        )
        launches = len(ab.left(store.document(journal.run))) * (1 if design.get("nested") else 2)
        _say(
            f"run {journal.run}: {launches} launches to do; `lanes ab --resume {journal.run}` goes on when cut"
        )
        began, done = time.monotonic(), 0

        def ended(what: str, outcome: Outcome) -> None:
            nonlocal done
            done += 1
            rest = (time.monotonic() - began) / done * max(launches - done, 0)
            reason = f": {outcome.reason}" if outcome.reason else ""
            _say(f"{what}: {outcome.status}{reason}" + (f"; about {duration(rest)} left" if rest else ""))

        code = 130
        try:
            given_up = ab.carry_out(
                lambda: store.document(journal.run),
                lanes,
                plan,
                chosen,
                journal,
                ended,
                port=how.get("port"),
                despite=tuple(how.get("despite") or ()),
                take_over=how.get("take_over"),
                allowed=how.get("allowed") or {},
                retries=how.get("retries", 1),
            )
            code = 1 if given_up else 0
        finally:
            journal.end(code)
    if given_up:
        _say(f"given up: {given_up}")
    return code, _show(store, store.document(journal.run), design, lanes, as_json)


def _show(
    store: Store, document: Mapping[str, Any], design: Mapping[str, Any], lanes: Lanes, as_json: bool
) -> Comparison:
    from lanes.cli import compared
    from lanes.comparing import costs
    from lanes.comparing.compare import compare
    from lanes.comparing.values import as_json as plain

    # What launches differ by is no floor of what is measured within each, nor the other way round.
    past = [
        one
        for one in ([] if design["mirrored"] else store.of_lane(lanes["a"][0].lane.name))
        if bool((one.get("ab") or {}).get("nested")) == bool(design.get("nested"))
    ]
    found = compare([document], margin=design["margin"], floors=costs.floors(past), figures=design["figures"])
    if as_json:
        output.print_json({"run": document["run"], **plain(found)})
    else:
        compared.show(found)
    return found


def _say(text: str) -> None:
    click.echo(f"lanes: {text}", err=True)
