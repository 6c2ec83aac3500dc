"""`lanes history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lanes._version import __version__
from lanes.cli import exchange, output

if TYPE_CHECKING:
    from lanes.results.store import Store


@click.group("history", invoke_without_command=True)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many runs."
)
@output.as_json
@click.pass_context
def command(ctx: click.Context, limit: int, as_json: bool) -> None:
    """List past runs, the newest first. `lanes history show RUN` shows one; `export` and `import` exchange them."""
    if ctx.invoked_subcommand is not None:
        return
    from lanes import paths
    from lanes.results.store import Store

    with Store(paths.history()) as store:
        documents = list(store.recent(limit))
    if as_json:
        output.print_json(documents)
        return
    if not documents:
        click.echo("No run yet. `lanes run --engine llamacpp` makes one.")
        return
    table = output.table(
        "run", "when", "command", "lane", "status", "cell", "prefill tok/s>", "decode tok/s>"
    )
    for document in documents:
        when = output.clock(document["started_at"]) if document["started_at"] else ""
        head = (document["run"], when, document.get("command", ""))
        for lane in document["lanes"] or [None]:
            if lane is None:
                table.add_row(*head, "", document["status"], "", "", "")
                continue
            cells = [cell for instrument in lane["instruments"] for cell in instrument["cells"]]
            status = f"{lane['status']}: {lane['reason']}" if lane["reason"] else lane["status"]
            table.add_row(*head, lane["name"], status, *_headline(cells))
            head = ("", "", "")
    output.console().print(table)


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
