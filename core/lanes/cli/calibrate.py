"""`lanes calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lanes.cli import options, output

if TYPE_CHECKING:
    from lanes.bench.calibration.envelope import CellError, Envelope


@click.command("calibrate")
@click.option(
    "--concurrency",
    type=options.Integers(),
    default="1,16,64,256",
    show_default=True,
    help="Streams at once.",
)
@output.as_json
def command(concurrency: tuple[int, ...], as_json: bool) -> int:
    """Hold the benchmark's client against a metronome on this machine.

    The metronome streams on an exact schedule, with all the habits of real servers, and keeps what it
    really sent. Shown is the client's error against that, and how many events a second it sustains.
    Both are kept: a cell that goes beyond them is invalid. Takes about half a minute; nothing else
    should run meanwhile. Ends with 1 when a goal is missed.
    """
    from lanes.bench.calibration import envelope
    from lanes.bench.calibration.calibrate import calibrate
    from lanes.errors import UsageError

    if min(concurrency) < 1:
        raise UsageError("--concurrency takes numbers of streams, at least 1")
    found = calibrate(
        sorted(set(concurrency)),
        on_cell=lambda cell: click.echo(f"{cell.concurrency} at once: {_sentence(cell)}", err=True),
        on_step=lambda rate: click.echo(f"{rate:,.0f} events/s: held", err=True),
    )
    envelope.keep(found)
    if as_json:
        output.print_json(envelope.as_json(found))
    else:
        _show(found)
    return 1 if any(cell.missed for cell in found.cells) else 0


def _sentence(cell: CellError) -> str:
    return cell.missed or "as truthful as wanted"


def _show(found: Envelope) -> None:
    columns = ("TTFT off>", "p99>", "decode off>", "events/s>", "CPU an event>", "metronome late, p99>")
    table = output.table("streams>", "n>", *columns, "status")
    for cell in found.cells:
        table.add_row(
            str(cell.concurrency),
            str(cell.streams),
            f"{cell.ttft_s * 1e3:.3f} ms",
            f"{cell.ttft_p99_s * 1e3:.3f} ms",
            f"{cell.decode:.3%}",
            f"{cell.events_per_s:,.0f}",
            f"{cell.cpu_us:.1f} µs",
            f"{cell.late_s * 1e3:.2f} ms",
            f"missed: {cell.missed}" if cell.missed else "ok",
        )
    output.console().print(table)
    most = "at least " if found.limited_by == "metronome" else ""
    click.echo(f"The client sustains {most}{found.events_per_s:,.0f} events/s on this machine.")
    click.echo(
        "Errors are medians of what the client says less what the metronome did: TTFT from the request's"
        " first byte to the first token, decode from the first token to the last."
    )
