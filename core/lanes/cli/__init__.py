"""The command line. Each command is a module of this package, imported when it is called."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from lanes._version import __version__

COMMANDS = {
    "run": "Bring lanes up, measure each alike, take them down, and compare.",
    "rehearse": "Try in minutes what a launch would take long to find out.",
    "serve": "Bring a lane up and leave it serving.",
    "status": "Show which lanes run, and what became of those that were killed.",
    "logs": "Show what a lane's engine printed.",
    "stop": "Stop a lane, and clean up after one that was killed.",
    "bench": "Measure any OpenAI-compatible server, started by anyone.",
    "check": "Explain whether a lane can run, here or elsewhere, and how that is known.",
    "caps": "Show which engine runs on which GPU architecture, and why not.",
    "clusters": "List the clusters, and who holds which node since when; clean up after a dead owner.",
    "doctor": "Ask every node of a cluster what would keep a lane from running there.",
    "engines": "List the engines and extensions that are installed.",
    "instruments": "List the ways to measure a lane, and what each lacks here.",
    "recipes": "List the recipes, or show one.",
    "scan": "Show which GPU code files hold, and whether it runs on a GPU.",
    "calibrate": "Hold the benchmark's client against a server of known timing on this machine.",
    "compare": "Compare lanes: figures side by side, what differs, and what can be said.",
    "ab": "Find out which of two lanes is faster: launch them in turn, and judge.",
    "history": "List past runs, or show one.",
    "report": "Write a report of lanes, or bundle what failed for the engine's maintainers.",
}


class _Commands(click.Group):
    """Knows its commands by name and one line; imports one only to call it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"lanes.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " `lanes --help` lists the commands."
            raise click.UsageError(f"there is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lanes")
def cli() -> None:
    """Serve a model with any engine on your own GPUs, measure every lane with the same
    instruments, and compare them honestly.

    \b
    lanes run --engine llamacpp          measure an engine, from check to clean-up
    lanes bench --url http://host:8000   measure a server that runs already

    Results go to stdout (--json for programs), progress to stderr. Exit codes: 0 done, 1 a lane
    failed, 2 usage or configuration, 3 unrunnable here, 4 claimed by another, 130 interrupted
    (after cleaning up).
    """


def main() -> None:
    """Run the command line; errors that a person can act on end without a traceback."""
    from lanes.errors import LanesError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal's encoding lacks is shown as its number, not as a traceback.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(prog_name="lanes", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except LanesError as error:
        _say(str(error))
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        code = 130
    except BrokenPipeError:
        # Whoever read our output has gone (`lanes history | head`); there is nobody to tell.
        sys.stderr.close()
        code = 0
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()
    sys.exit(code if isinstance(code, int) else 0)


def _say(text: str) -> None:
    click.echo(f"lanes: {text}", err=True)
