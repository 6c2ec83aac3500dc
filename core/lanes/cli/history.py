"""`lanes history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lanes._version import __version__
from lanes.cli import exchange, output

if TYPE_CHECKING:
    from lanes.results.store import Store


class Status(click.ParamType[Any]):
    """One of the words for what became of a lane."""

    name = "WORD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from lanes.results.summaries import STATUSES

        if value not in STATUSES:
            self.fail(f"{value!r} is none of {', '.join(STATUSES)}", param, ctx)
        return str(value)


_OPTIONS = (
    click.option(
        "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many runs."
    ),
    click.option("--lane", multiple=True, metavar="TEXT", help="Only lanes with this in their name."),
    click.option("--engine", multiple=True, metavar="TEXT", help="Only this engine."),
    click.option("--model", multiple=True, metavar="TEXT", help="Only this model: its name, file or repo."),
    click.option("--recipe", multiple=True, metavar="TEXT", help="Only this recipe."),
    click.option(
        "--status",
        multiple=True,
        type=Status(),
        help="Only lanes that ended so: measured, unrunnable, unmeasurable, crashed, failed, interrupted, running.",
    ),
    click.option("--node", multiple=True, metavar="TEXT", help="Only on this node, architecture or cluster."),
    click.option("--gpu", multiple=True, metavar="TEXT", help="Only on this GPU."),
    click.option(
        "--since", metavar="D", help="Only runs since then: `2h`, `7d`, or a date such as 2026-10-18."
    ),
    click.option("--until", metavar="D", help="Only runs until then; a date includes its day."),
    output.as_json,
)


def _filters(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("history", invoke_without_command=True)
@_filters
@click.pass_context
def command(ctx: click.Context, /, limit: int, as_json: bool, **asked: Any) -> None:
    """List past runs, the newest first. `lanes history search TEXT` finds what was said in them, `show RUN` shows one;
    `export` and `import` exchange them.

    An option may be repeated: any of its values will do. Different options must all be true of one lane.
    """
    if ctx.invoked_subcommand is None:
        _list((), limit, as_json, **asked)
        return
    from lanes.errors import UsageError

    for name in ctx.params:
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = "--json" if name == "as_json" else f"--{name}"
            sub = ctx.invoked_subcommand
            raise UsageError(
                f"{option} stands before {sub}, where it says nothing",
                f"write `lanes history {sub} ... {option}`",
            )


@command.command("search")
@click.argument("words", nargs=-1, metavar="TEXT...")
@_filters
def search(words: tuple[str, ...], limit: int, as_json: bool, **asked: Any) -> None:
    """Find past runs by any text: names, models, options (`threads=2`), nodes, GPUs, reasons, causes, lines of logs.

    Several words must all stand somewhere in what is known of one lane; "in quotes" they stand together. Case
    does not matter.
    """
    _list(words, limit, as_json, **asked)


def _list(
    words: tuple[str, ...], limit: int, as_json: bool, since: str | None, until: str | None, **asked: Any
) -> None:
    from lanes import paths
    from lanes.cli.compare import moment
    from lanes.results.store import Store
    from lanes.results.summaries import Hit, Wanted

    found: list[Hit]
    with Store(paths.history()) as store:
        if words or since or until or any(asked.values()):
            wanted = Wanted(
                words=words,
                since=moment(since) if since else None,
                until=_end(until) if until else None,
                **asked,
            )
            total, hits = store.search(wanted, limit)
            found = list(hits)
        else:
            total = None
            found = [Hit(document=one, lanes=tuple(range(len(one["lanes"])))) for one in store.recent(limit)]
    if as_json:
        output.print_json([hit.document for hit in found])
        return
    if not found:
        click.echo(
            "No run yet. `lanes run --engine llamacpp` makes one."
            if total is None
            else "No run is like that."
        )
        return
    table = output.table(
        "run", "when", "command", "lane", "status", "cell", "prefill tok/s>", "decode tok/s>"
    )
    for hit in found:
        document = hit.document
        when = output.clock(document["started_at"]) if document["started_at"] else ""
        head = (document["run"], when, document.get("command", ""))
        if not document["lanes"]:
            table.add_row(*head, "", document["status"], "", "", "")
        for number in hit.lanes if document["lanes"] else ():
            lane = document["lanes"][number]
            cells = [cell for instrument in lane["instruments"] for cell in instrument["cells"]]
            status = f"{lane['status']}: {lane['reason']}" if lane["reason"] else lane["status"]
            table.add_row(*head, lane["name"], status, *_headline(cells))
            head = ("", "", "")
    output.console().print(table)
    if total is not None and total > len(found):
        click.echo(f"the latest {len(found)} of {total} runs: -n shows more", err=True)


def _end(text: str) -> float:
    """The moment until which runs are meant: of a date, the end of its day."""
    import datetime

    from lanes.cli.compare import moment

    at = moment(text, "--until")
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        return at
    return datetime.datetime.combine(day + datetime.timedelta(days=1), datetime.time()).timestamp()


def _headline(cells: list[dict[str, Any]]) -> tuple[str, str, str]:
    """The first cell's name, prefill and decode, and how many more there are."""
    from lanes.cli.figures import cell_name, interval

    if not cells:
        return "", "", ""
    metrics = cells[0]["metrics"]
    more = f" (+{len(cells) - 1})" if len(cells) > 1 else ""
    prefill = metrics.get("prefill_tps")
    decode = metrics.get("decode_tps") or metrics.get("stream_decode_tps")
    return (
        cell_name(cells[0]) + more,
        interval(prefill) if prefill else "",
        interval(decode) if decode else "",
    )


command.add_command(exchange.export)
command.add_command(exchange.take_in)


@command.command("show")
@click.argument("run")
@click.option(
    "--recompute",
    is_flag=True,
    help="Compute the figures anew from the raw timelines, by the present definitions, and say what differs.",
)
@output.as_json
def show(run: str, recompute: bool, as_json: bool) -> None:
    """Show one run (its id, or the start of it)."""
    from lanes import paths
    from lanes.cli import figures
    from lanes.results.store import Store

    with Store(paths.history()) as store:
        document = store.document(run)
        differences = _recompute(document, store) if recompute else None
    if as_json:
        output.print_json(document)
        return
    figures.show(document)
    if differences is not None:
        click.echo("\n".join(differences) if differences else "computed anew, every figure is what it was")


def _recompute(document: dict[str, Any], store: Store) -> list[str]:
    """Put the figures as they are by the present definitions into the document; return what differs."""
    from lanes.bench.codec import as_json
    from lanes.bench.recompute import differences, lines, recompute
    from lanes.cli.figures import cell_name
    from lanes.results.document import CELL_KEY

    said: list[str] = []
    found: list[dict[str, Any]] = []
    for index, lane in enumerate(document["lanes"]):
        # The raw timelines of others are their own.
        for instrument in (one for one in lane["instruments"] if one["name"] == "probe"):
            for cell in instrument["cells"]:
                batches = (
                    batch
                    for batch in store.requests(document["run"])
                    if batch["lane"] == index
                    and batch["instrument"] == instrument["name"]
                    and all(batch["cell"].get(name) == cell.get(name) for name in CELL_KEY)
                )
                now = recompute(cell, instrument["plan"], batches)
                changed = list(differences(cell, now))
                name = f"{lane['name']}, {cell_name(cell)}"
                said += lines(name, changed)
                key = {name: cell[name] for name in CELL_KEY if name in cell}
                found += [{"lane": index, "cell": key, **as_json(one)} for one in changed]
                cell["metrics"] = as_json(now.metrics)
    document["recomputed"] = {"lanes_version": __version__, "differences": found}
    return said
