"""tool-eval-bench, as its own program: how well a lane calls tools, and how long a turn takes.

Its score is added up here anew from its scenarios, so that an interrupted run keeps what it has, and goes on where it
was (`--with tooleval.resume=RUN`) on whatever port the lane serves by then.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from lanes.errors import LaneError, LanesError, UsageError
from lanes.instruments.base import Context, Instrument, Measured, Row
from lanes.instruments.programs import Folder, Installed, Program, clean_environment, lines_of
from lanes.instruments.programs import run as run_program
from lanes.results.quality import Score, contradictions, left_out, score

PROGRAM = Program(command="tool-eval-bench", package="tool-eval-bench", tried=("2.8.0", "3.0.0"))
SCORE = "score"
"""The row that holds the result: of the only trial, or of all together."""
_REPORT = "report.json"
_DATABASE = "data/benchmarks.sqlite"
_LIST_S = 60.0
_SHOWN = 12
_KEPT = (
    "scenario_id", "status", "points", "failure_kind", "summary", "turn_count", "turn_latencies_ms", "ttft_ms", "duration_seconds",
    "prompt_tokens", "completion_tokens",
)  # fmt: skip
_SAME = ("version", "scenarios", "seed", "hardmode", "think", "max_turns", "timeout_s", "max_tokens")
"""What a run must have in common with the one that it resumes."""


@attrs.frozen(kw_only=True)
class Options:
    """`scenarios` (TC-01,TC-07; all when empty), `short` for its core fifteen, `hardmode` for its hard ones too,
    `think` off to ask for answers without reasoning; `trials` of the whole; the `seed` that the server is sent
    (default: the plan's); `max_turns`, `timeout_s` and `max_tokens` where the program's own are not wanted; the
    lanes run to `resume`."""

    scenarios: tuple[str, ...] = ()
    short: bool = False
    hardmode: bool = True
    think: bool = True
    trials: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    seed: int | None = None
    max_turns: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    timeout_s: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.gt(0))
    )
    max_tokens: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    resume: str | None = None


def run(context: Context) -> Measured:
    """Run tool-eval-bench as often as there are trials; each scenario is on disk as it ends."""
    options: Options = context.options or Options()
    bench = _Bench(context, options, PROGRAM.installed())
    before = bench.before()
    scores: list[Score] = []
    for number in range(1, options.trials + 1):
        name = SCORE if options.trials == 1 else f"trial {number}"
        done, problem = bench.trial(name, number, before.get(name, {}))
        if dead := context.alive():
            return Measured(status="crashed", reason=dead)
        if problem is not None:
            return Measured(status="failed", reason=problem)
        scores.append(score(done.values()))
    if len(scores) > 1:
        context.row(_together(scores))
    if all(one.score is None for one in scores):
        return Measured(
            status="failed", reason="the server failed every scenario, so there is nothing to grade"
        )
    return Measured()


class _Bench:
    def __init__(self, context: Context, options: Options, installed: Installed) -> None:
        from lanes.bench.http import Target, api_key

        self._context, self._options, self._installed = context, options, installed
        self._key = api_key(context.endpoint.dialect.api_key_env)
        self._redact = Target.of(context.endpoint).redact
        self._ids = self._listed()
        self._began = {
            "program": PROGRAM.command,
            "version": installed.version,
            "scenarios": list(self._ids),
            "hardmode": options.hardmode,
            "think": options.think,
            "trials": options.trials,
            "seed": context.plan.seed if options.seed is None else options.seed,
            "max_turns": options.max_turns,
            "timeout_s": options.timeout_s,
            "max_tokens": options.max_tokens,
            "resumes": options.resume,
            "note": installed.note,
        }
        context.began(self._began)

    def _hard(self) -> list[str]:
        return ["--hardmode"] if self._options.hardmode else []

    def _selection(self) -> list[str]:
        options = self._options
        argv = [*self._hard(), *(["--short"] if options.short else [])]
        return [*argv, "--scenarios", *options.scenarios] if options.scenarios else argv

    def _listed(self) -> tuple[str, ...]:
        """The scenarios that it would run, by its own word, which needs no server."""
        argv = [str(self._installed.path), *self._selection(), "--dry-run", "--json"]
        argv += ["--base-url", "http://127.0.0.1:9/v1", "--model", "none"]
        with Folder(str) as folder:
            said = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                cwd=folder.path,
                env=clean_environment(),
                timeout=_LIST_S,
                check=False,
            )
        try:
            found = json.loads(said.stdout[said.stdout.index("{") :])
            return tuple(str(one["id"] if isinstance(one, dict) else one) for one in found["scenarios"])
        except (ValueError, KeyError, TypeError):
            words = (said.stderr or said.stdout).strip().splitlines()
            raise LaneError(
                f"tool-eval-bench does not list its scenarios: {words[-1] if words else 'it printed nothing'}",
                "look whether --with tooleval.scenarios names scenarios that it has, such as TC-01,TC-07",
            ) from None

    def before(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By trial and scenario what the run that is resumed has found. Raises UsageError when there is no such
        run, or it asked for something else."""
        run = self._options.resume
        if run is None:
            return {}
        from lanes import paths
        from lanes.results.store import Store

        with Store(paths.history()) as store:
            document = store.document(run)
        found = [
            (lane, one)
            for lane in document["lanes"]
            for one in lane["instruments"]
            if one["name"] == INSTRUMENT.name
        ]
        named = [one for lane, one in found if lane["name"] == self._context.subject.name]
        if not named:
            raise UsageError(
                f"--with tooleval.resume={run}: that run has no tooleval of {self._context.subject.name}",
                "`lanes history` lists the runs",
            )
        plan = named[0]["plan"]
        other = [name for name in _SAME if _plain(plan.get(name)) != _plain(self._began[name])]
        if other:
            raise UsageError(
                f"--with tooleval.resume={run}: that run asked for another {' and '.join(other)}",
                "ask for the same, or start anew without tooleval.resume",
            )
        return {
            row["name"]: {
                name: one
                for name, one in row["evidence"]["scenarios"].items()
                if name in self._ids and not left_out(one)
            }
            for row in named[0]["rows"]
            if "scenarios" in row["evidence"]
        }

    def trial(
        self, name: str, number: int, before: Mapping[str, dict[str, Any]]
    ) -> tuple[dict[str, dict[str, Any]], str | None]:
        """Run what is left of one trial; return its scenarios, and why they are not all, or None."""
        done = dict(before)
        left = [one for one in self._ids if one not in done]
        if not left:
            self._row(name, done, None)
            return done, None
        with Folder(self._redact) as folder:
            argv = self._installed.argv(self.arguments(left, number))
            env = clean_environment() | ({"TOOL_EVAL_API_KEY": self._key} if self._key else {})
            lines = lines_of(folder.path / "log")

            def watch() -> None:
                events = [_event(line) for line in self._redact(next(lines)).splitlines()]
                for event in events:
                    if event.get("event") == "scenario_start":
                        self._progress(name, number, len(done), str(event.get("scenario_id")))
                    elif event.get("event") == "scenario_result":
                        done[str(event["scenario_id"])] = _kept(event)
                if any(event.get("event") == "scenario_result" for event in events):
                    done.update(_checkpoints(folder))
                    self._row(name, done, None)
                if dead := self._context.alive():
                    raise LaneError(dead)

            problem: str | None = None
            try:
                ended = run_program(argv, folder, env, watch, math.inf)
                report = _event(folder.read(_REPORT))
                results = (report.get("scores") or {}).get("scenario_results") or ()
                done.update({str(one["scenario_id"]): _kept(one) for one in results})
                wrong = [] if before else contradictions(report)
                if ended.code and any(one not in done for one in self._ids):
                    problem = f"tool-eval-bench ended with exit code {ended.code}: {_reason(ended.lines)}"
            except LanesError as error:
                problem, wrong = error.message, []
            except BaseException:
                done.update(_checkpoints(folder))
                self._row(name, done, f"interrupted: {len(done)} of {len(self._ids)} scenarios had ended")
                raise
            finally:
                for file in (_REPORT, "log"):
                    folder.keep(file, self._context.folder / f"{name.replace(' ', '-')}-{file}")
        missing = [one for one in self._ids if one not in done]
        if problem is None and missing:
            problem = f"tool-eval-bench said nothing of {len(missing)} scenarios, such as {missing[0]}"
        self._row(name, done, problem, wrong)
        return done, problem

    def arguments(self, scenarios: Sequence[str], number: int) -> list[str]:
        """Its command line, which holds no secret."""
        options, endpoint = self._options, self._context.endpoint
        fields = {**endpoint.dialect.extra} | (
            {"max_tokens": options.max_tokens} if options.max_tokens else {}
        )
        argv = ["--base-url", f"{endpoint.url.rstrip('/')}/v1", "--model", endpoint.model]
        argv += ["--seed", str(self._began["seed"])]
        every = len(scenarios) == len(self._ids)
        argv += self._selection() if every else [*self._hard(), "--scenarios", *scenarios]
        argv += [] if options.think else ["--no-think"]
        argv += ["--max-turns", str(options.max_turns)] if options.max_turns else []
        argv += ["--timeout", f"{options.timeout_s:g}"] if options.timeout_s else []
        argv += ["--backend-kwargs", json.dumps(fields)] if fields else []
        argv += ["--no-warmup"] if number > 1 else []
        return [*argv, "--parallel", "1", "--no-live", "--json-file", _REPORT, "--output-dir", "reports"]

    def _progress(self, trial: str, number: int, done: int, scenario: str) -> None:
        trials = self._options.trials
        where = f"{trial} of {trials}, " if trials > 1 else ""
        share = (number - 1 + done / len(self._ids)) / trials
        self._context.progress(f"{where}{scenario}, {done} of {len(self._ids)} scenarios done", share)

    def _row(
        self, name: str, done: Mapping[str, Mapping[str, Any]], problem: str | None, wrong: Sequence[str] = ()
    ) -> None:
        of = len(self._ids)
        come = score(done.values())
        status = f"{'?' if come.score is None else come.score}/100"
        if problem is not None or len(done) < of:
            status += f" of {len(done)} of {of}"
        reasons = [problem] if problem else []
        reasons += wrong
        if come.failed:
            reasons.append(f"failed: {_some(come.failed)}")
        if come.left_out:
            reasons.append(
                f"left out, for the server failed them or cannot do what they need: {_some(come.left_out)}"
            )
        self._context.row(
            Row(
                name=name,
                status=status,
                reason="; ".join(reasons) or None,
                figures=_figures(come),
                evidence={"scenarios": dict(done), "failed": come.failed, "partial": come.partial},
            )
        )


def _figures(come: Score) -> dict[str, float]:
    figures = {
        "score": come.score,
        "points": come.points,
        "max_points": come.max_points,
        "responsiveness": come.responsiveness,
        "median_turn_s": come.median_turn_s,
        "completion_rate": come.completion_rate,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _together(scores: Sequence[Score]) -> Row:
    """All trials as one: medians, and whether they agree."""
    from lanes.bench.statistics import median_interval

    names = ("score", "points", "responsiveness", "median_turn_s", "completion_rate")
    values = {
        name: [getattr(one, name) for one in scores if getattr(one, name) is not None] for name in names
    }
    failed = [set(one.failed) for one in scores]
    changing = sorted(set[str]().union(*failed) - failed[0].intersection(*failed))
    middle = statistics.median(values["score"]) if values["score"] else None
    return Row(
        name=SCORE,
        status=f"{'?' if middle is None else f'{middle:g}'}/100",
        reason=f"failed in some trials only: {', '.join(changing)}" if changing else None,
        figures={name: median_interval(found) for name, found in values.items() if found},
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in _KEPT if result.get(name) is not None}


def _reason(lines: Sequence[str]) -> str:
    """What it says of its end: the event `error`, or the last line."""
    errors = [event for event in map(_event, lines) if event.get("event") == "error"]
    if errors:
        return str(errors[-1].get("message") or errors[-1].get("error"))
    return lines[-1] if lines else "it printed nothing"


def _checkpoints(folder: Folder) -> dict[str, dict[str, Any]]:
    """What it has kept of each scenario so far, with its turns; empty when that cannot be read."""
    path = folder.path / _DATABASE
    found: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(sqlite3.Error, ValueError, OSError):
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)
        with contextlib.closing(database):
            for name, text in database.execute("SELECT scenario_id, result_json FROM run_checkpoints"):
                found[str(name)] = _kept(json.loads(folder.redact(str(text))))
    return found


INSTRUMENT = Instrument(
    name="tooleval",
    summary="tool-eval-bench's score of tool calls, and how long a turn takes",
    run=run,
    cost="about half an hour for all scenarios on a fast lane",
    needs=PROGRAM.lacking,
    options=Options,
)
