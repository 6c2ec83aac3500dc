"""`lanes stop`."""

from __future__ import annotations

import time

import click

from lanes.cli import output

_BEFORE = ("starting", "claiming", "staging", "launching", "retrying", "relaunching")
"""The phases in which a lane may have no process yet."""


@click.command("stop")
@click.argument("lanes", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Stop every lane of this machine.")
@output.as_json
def command(lanes: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Stop LANES (by id, start of an id, or name), and clean up after those that were killed.

    Without a name: the only lane that runs, and everything that a killed `lanes` left. Says that a
    lane is stopped only when no process of it is left. Stopping twice is fine.
    """
    from lanes import claims, interrupts, records
    from lanes.errors import LaneError, UsageError
    from lanes.executors import process

    mended = [record for record, _ in records.mend_all()]
    running = [r for r in records.every() if r.ending is None]
    if everything:
        chosen = running
    elif lanes:
        chosen = [records.choose(name, ended_too=True) for name in lanes]
    elif len(running) > 1:
        raise UsageError(f"several lanes run: {', '.join(r.id for r in running)}", "name one, or say --all")
    else:
        chosen = running
    for record in chosen:
        if record.ending is None and (cluster := records.protected(record)):
            raise UsageError(
                f"{record.id} runs on cluster {cluster!r}, which is protected",
                "take `protected` out of its file first",
            )
    stopped, stuck, waiting = [], {}, []
    for record in {r.id: r for r in chosen}.values():
        if record.ending is not None:
            continue
        owned = record.owner.alive() and not record.detached
        if owned and record.phase in _BEFORE and not process.survivors(record.folder):
            # It would go on and launch: only its owner can end it.
            waiting.append(record)
            continue
        with interrupts.held_off() as hurry:
            left = process.stop(record.folder, record.stop, hurry)
            if not left and not owned:
                left = claims.release(record.folder)
        if left:
            stuck[record.id] = left
        elif not owned:
            ending = records.Ending(status="stopped", reason="stopped by `lanes stop`", at=time.time())
            records.update(record, ending=ending)
            stopped.append(record.id)
        else:
            # Its owner lives: it sees the end itself, and writes the ending.
            stopped.append(record.id)
    if as_json:
        output.print_json({"stopped": stopped, "cleaned_up": [r.id for r in mended], "stuck": stuck})
    else:
        for record in mended:
            click.echo(f"cleaned up after {record.id}")
        for name in stopped:
            click.echo(f"stopped {name}")
        if not stopped and not mended and not stuck and not waiting:
            click.echo("nothing to stop")
    if waiting:
        one = waiting[0]
        raise LaneError(
            f"{one.id} has no process yet: lanes (pid {one.owner.pid}) is still {one.phase}",
            f"press Ctrl-C there, or `kill {one.owner.pid}`",
        )
    if stuck:
        pids = "; ".join(f"{name}: {', '.join(map(str, left))}" for name, left in stuck.items())
        raise LaneError(f"these processes could not be ended: {pids}", "look at them with ps, and try again")
