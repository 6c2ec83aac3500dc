"""`lanes logs`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click


@click.command("logs")
@click.argument("lane", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows, until the lane ends.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Show only the last N lines.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which rank's log.")
def command(lane: str | None, follow: bool, lines: int | None, rank: int) -> None:
    """Show what a lane's engine printed (LANE: id, start of an id, or name; else the latest).

    Ctrl-C while following leaves the lane alone.
    """
    from lanes import records
    from lanes.errors import UsageError
    from lanes.executors import process

    record = records.choose(lane, ended_too=True)
    own = process.rank_folder(record.folder, rank)
    log = own / "log"
    if not log.exists():
        raise UsageError(f"{record.id} has no log of rank {rank}: it was never started")
    if lines is not None:
        for line in process.tail(record.folder, rank, lines):
            click.echo(line)
        offset = log.stat().st_size
    else:
        offset = _copy(log, 0)
    while follow:
        ended = process.how_ended(own) is not None
        offset = _copy(log, offset)
        if ended:
            return
        time.sleep(0.2)


def _copy(log: Path, offset: int) -> int:
    """Print what a log holds from an offset on; return the new end."""
    out = sys.stdout.buffer
    with open(log, "rb") as file:
        file.seek(offset)
        while block := file.read(1 << 16):
            out.write(block)
        out.flush()
        return file.tell()
