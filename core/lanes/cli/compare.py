"""`lanes compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import output
from lanes.cli.options import Quantity

if TYPE_CHECKING:
    from lanes.comparing.comparison import Comparison


class Weights(click.ParamType[Any]):
    """`FIGURE=WEIGHT` with commas between them."""

    name = "FIGURE=W[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        from lanes.comparing.metrics import METRICS

        found = {}
        for part in str(value).split(","):
            name, _, number = part.strip().partition("=")
            try:
                found[name] = float(number)
            except ValueError:
                found[name] = 0.0
            if name not in METRICS or found[name] <= 0:
                self.fail(
                    f"{part!r} should be FIGURE=WEIGHT, such as score=2; figures are {', '.join(METRICS)}",
                    param,
                    ctx,
                )
        return found


fail_if_slower = click.option(
    "--fail-if-slower",
    type=Quantity("SHARE", "lanes.bench.units", "share"),
    help="End with exit code 1 when the second of two lanes was shown to be behind the first by more than, say, `5%`.",
)


def behind(comparison: Comparison, share: float | None) -> int:
    """The exit code that `--fail-if-slower` asks for. Raises `UsageError` where there are not two lanes."""
    from lanes.errors import UsageError

    if share is None:
        return 0
    if len(comparison.sides) != 2:
        raise UsageError(
            f"--fail-if-slower holds one lane against another, and here are {len(comparison.sides)}",
            "name two",
        )
    found = [
        verdict.judgement
        for verdict in comparison.verdicts
        if verdict.judgement.word in ("slower", "worse") and verdict.judgement.ratio
    ]
    lost = [one for one in found if one.ratio and max(one.ratio, 1 / one.ratio) - 1 > share]
    for one in lost:
        click.echo(f"lanes: more than {100 * share:g}% behind: {one.sentence}", err=True)
    return int(bool(lost))


@click.command("compare")
@click.argument("what", nargs=-1, metavar="[RUN|LANE|FILE]...")
@click.option(
    "--since",
    metavar="D",
    help="Take all runs since then: `2h`, `7d`, or a date such as 2026-10-18.",
)
@click.option(
    "--by",
    metavar="FACTOR",
    help="Put launches together by a factor's value (ep_size), whatever else differs.",
)
@click.option(
    "--margin",
    type=Quantity("SHARE", "lanes.bench.units", "share"),
    default="5%",
    show_default=True,
    help="The difference that counts: no claim of `no difference` is made of less.",
)
@click.option(
    "--weights",
    type=Weights(),
    help="Order lanes by your own weights, such as score=2,decode_tps=1.",
)
@fail_if_slower
@output.as_json
def command(
    what: tuple[str, ...],
    since: str | None,
    by: str | None,
    margin: float,
    weights: Mapping[str, float] | None,
    fail_if_slower: float | None,
    as_json: bool,
) -> int:
    """Compare lanes: figures with intervals and n side by side, what differs, and what can be said.

    Takes runs (an id, or the start of one), lanes by name (all their runs), result documents and folders
    of them. When files are given, names choose among their lanes and runs. A figure is called faster,
    slower, or not different beyond the margin, only where launches show it; else it is unresolved, which says nothing
    about the lanes.
    """
    from lanes.comparing.values import as_json as plain

    found = compare(what, since, by, margin, weights)
    if as_json:
        output.print_json(plain(found))
    else:
        from lanes.cli import compared

        compared.show(found)
    return behind(found, fail_if_slower)


def compare(
    what: Sequence[str],
    since: str | None = None,
    by: str | None = None,
    margin: float = 0.05,
    weights: Mapping[str, float] | None = None,
) -> Comparison:
    """The comparison that a command line asks for. Raises `UsageError`."""
    from lanes.errors import UsageError

    if not what and since is None:
        raise UsageError(
            "say what to compare: runs, lanes, files, or --since 7d", "`lanes history` lists runs"
        )
    return of(*gather(what, since), by, margin, weights)


def of(
    documents: Sequence[Mapping[str, Any]],
    only: Sequence[str],
    by: str | None,
    margin: float,
    weights: Mapping[str, float] | None,
) -> Comparison:
    """The comparison of what was gathered. Raises `UsageError`."""
    from lanes.comparing.compare import compare as made

    try:
        return made(documents, only=only, by=by, margin=margin, weights=weights)
    except KeyError as error:
        raise _unknown(str(error.args[0]), documents, by) from None


def gather(what: Sequence[str], since: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The documents that are named, and, where they came from files, the lanes and runs that were chosen
    among them. Raises `UsageError`."""
    from lanes import paths
    from lanes.results import files
    from lanes.results.store import Store

    given = [Path(one) for one in what if Path(one).exists()]
    names = [one for one in what if not Path(one).exists()]
    documents = [document for path in given for document in files.read(path)]
    if given and since is None:
        return documents, names
    with Store(paths.history()) as store:
        if since is not None:
            return [*documents, *store.since(moment(since))], names
        by_run: dict[str, dict[str, Any]] = {}
        chosen = []
        for name in names:
            of_lane = list(store.of_lane(name))
            chosen += [name] if of_lane else []
            for document in of_lane or [store.document(name)]:
                by_run[document["run"]] = document
                if not of_lane:
                    chosen.append(document["run"])
        return list(by_run.values()), chosen


def moment(text: str, option: str = "--since") -> float:
    """Unix seconds of `2h`, `7d` ago or a date. Raises `UsageError`."""
    import datetime
    import time

    from lanes.bench.units import seconds
    from lanes.errors import UsageError

    try:
        if text.strip().endswith("d"):
            return time.time() - 24 * seconds(text.strip()[:-1] + "h")
        return time.time() - seconds(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is no time", "write 2h, 7d, or a date such as 2026-10-18"
        ) from None


def _unknown(name: str, documents: Sequence[Mapping[str, Any]], by: str | None) -> Exception:
    from lanes.comparing import grouping
    from lanes.comparing.metrics import METRICS
    from lanes.errors import UsageError

    if name in METRICS:
        return UsageError(
            f"no two lanes have all the figures of --weights: {name} is missing", "leave it out"
        )
    launches = grouping.launches(documents)
    if name == by:
        there = sorted({factor for launch in launches for factor in launch.factors})
        return UsageError(f"no lane tells the factor {name!r}", f"they tell {', '.join(there) or 'none'}")
    there = sorted({launch.lane["name"] for launch in launches} | {launch.run for launch in launches})
    return UsageError(f"there is no lane and no run {name!r} in the files", f"there is {', '.join(there)}")
