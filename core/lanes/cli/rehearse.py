"""`lanes rehearse`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from lanes.cli import options, output
from lanes.cli.progress import Screen
from lanes.errors import LanesError, UsageError

if TYPE_CHECKING:
    from lanes.lifecycle import Bound
    from lanes.nodes import Place
    from lanes.rehearsal import Scope
    from lanes.settings import Allowed


@click.command("rehearse")
@click.argument("recipe")
@click.option("--cluster", metavar="C", help="On this cluster, by name or file.")
@click.option("--node", metavar="N", help="Bring the image to this node of the cluster (default: the head).")
@click.option(
    "--every-node", is_flag=True, help="Bring the image to all its nodes, and start the lane on them."
)
@options.settings
@options.despite
@options.allow_script
@click.option(
    "--take-over",
    metavar="REASON",
    help="Take over nodes whose owner has given no sign of life; the result says so for ever.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Serve on this port (default: a free one).")
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="Do not bring this item of the recipe's [[staging]]: dummy weights may do without. May be repeated.",
)
@click.option("--keep-going", is_flag=True, help="After a step that failed, try those that do not need it.")
@click.option("--dry-run", is_flag=True, help="Show what each step would do, and do nothing.")
@output.as_json
def command(
    recipe: str,
    cluster: str | None,
    node: str | None,
    every_node: bool,
    settings: tuple[tuple[str, str], ...],
    despite: tuple[str, ...],
    allowed: Mapping[str, str | None],
    take_over: str | None,
    port: int | None,
    without: tuple[str, ...],
    keep_going: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Try in minutes what a launch of RECIPE would take long to find out.

    In this order: the checks, the image on a node, the command line before the engine's own parser, a kernel on the GPU,
    the network between the nodes, and the lane itself with dummy weights and one streamed answer, as far as the engine has
    that. Claims, keepers and clean-up are those of `lanes run`. `lanes check RECIPE` shows afterwards what was seen.
    """
    from lanes import interrupts, paths, records, runs
    from lanes.cli import dryrun
    from lanes.journal import Journal
    from lanes.rehearsal import rehearse, values
    from lanes.results.store import Store

    if node is not None and every_node:
        raise UsageError("--node and --every-node exclude each other", "give one of them")
    (bound,), (place,) = options.bind([], [recipe], None, settings, None, cluster, real=not dry_run)
    count = bound.lane.recipe.nodes if bound.lane.recipe else 1
    scope = values.scope(place.seats, count, node, every_node)
    staged = [one.name for one in bound.lane.recipe.staging] if bound.lane.recipe else []
    if unknown := sorted(set(without) - set(staged)):
        known = f"it has {', '.join(staged)}" if staged else "it has none"
        raise UsageError(f"the recipe stages nothing named {', '.join(unknown)}", known)
    if dry_run:
        planned = list(_planned(bound, place, scope, allowed, without))
        if as_json:
            steps = [{"step": name, "does": what} for name, what in planned]
            output.print_json({"lane": bound.lane.name, "rehearsal": steps})
            return 0
        code = dryrun.show([bound], [place], despite, None, False, allowed)
        for name, what in planned:
            for line in _lines(what):
                click.echo(f"  rehearse {name}: {line}" if not line.startswith("  |") else f"  {line}")
        return code
    interrupts.install()
    for record, how in records.mend_all():
        click.echo(f"lanes: cleaned up after {record.id}: {how.sentence}", err=True)
    with Store(paths.history()) as store:
        with _Told(quiet=as_json) as screen:
            journal = Journal(store, screen, command="rehearse")
            code = 130
            try:
                outcome = rehearse(
                    bound, place, journal, scope, port, despite, take_over, allowed, keep_going, without
                )
                code = 0 if outcome.status == "rehearsed" else runs.exit_code([outcome])
            finally:
                journal.end(code)
        document = store.document(journal.run)
    if as_json:
        output.print_json(document)
    else:
        said = "rehearsed" if code == 0 else f"{outcome.status}: {outcome.reason}"
        click.echo(f"{bound.lane.name}: {said}")
        if code and outcome.next_step:
            click.echo(f"next: {outcome.next_step}")
        click.echo(f"run {journal.run}: `lanes check {recipe}` shows from now on what was seen", err=True)
    return code


class _Told(Screen):
    """Prints each step on stdout as it ends."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        super().__call__(kind, data)
        if kind == "step" and not self._quiet:
            step = data["step"]
            # While the line that lives is there, all that is printed goes where it is.
            if self._status is not None:
                self._status.stop()
            try:
                _show(step)
            except BrokenPipeError:
                # Whoever read has gone; what was begun goes on, and is kept.
                self._quiet = True
            if self._status is not None:
                self._status.start()


def _show(step: dict[str, Any]) -> None:
    click.echo(f"{step['name']:8} {step['status']:13} {step['seconds']:6.1f} s  {step['reason']}")
    if step["status"] == "failed" and step["next_step"]:
        click.echo(f"{'':32}next: {step['next_step']}")


def _planned(
    bound: Bound, place: Place, scope: Scope, allowed: Allowed, without: Collection[str]
) -> Iterator[tuple[str, str | list[str]]]:
    """What each step would do, in words; of a program its own."""
    from lanes import lifecycle
    from lanes.rehearsal import values

    names = [seat.node.name for seat in place.seats]
    at = [names[rank] for rank in scope.ranks if rank < len(names)]
    try:
        items, launch, _ = lifecycle.symbolic(bound, place, allowed)
        plan = values.asked(bound.engine, bound.lane, launch)
    except LanesError as error:
        yield "image", f"cannot be told: {error}"
        return
    spared = values.spared(plan, items, scope, without)
    wanted = [one.name for one in items if one.name not in spared]
    yield "image", f"{', '.join(wanted) or 'nothing'} to {', '.join(at)}"
    if isinstance(plan.flags, str):
        yield "flags", f"not possible: {plan.flags}"
    else:
        for trial in plan.flags:
            if trial.rank in scope.ranks:
                yield "flags", list(trial.argv)
    if isinstance(plan.kernels, str):
        yield "kernels", f"not possible: {plan.kernels}"
    else:
        yield "kernels", list(plan.kernels.argv)
    several = len(names[: scope.of]) > 1
    yield (
        "network",
        f"{', '.join(names[: scope.of])} call on each other" if several else "not possible: one node",
    )
    if isinstance(plan.dummy, str):
        yield "start", f"not possible: {plan.dummy}"
    elif not scope.whole:
        yield "start", "not possible on one node: --every-node"
    else:
        yield "start", f"with {values.changes(bound.lane, plan.dummy)}"


def _lines(what: str | list[str]) -> Iterator[str]:
    """A sentence, or a command line with the programs among its words below it."""
    if isinstance(what, str):
        yield what
        return
    programs = [word for word in what if "\n" in word]
    yield shlex.join("PROGRAM" if "\n" in word else word for word in what)
    for program in programs:
        yield from (f"  | {line}" for line in program.strip().splitlines())
