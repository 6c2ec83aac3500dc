"""Results of other programs as `lanes.result/1` documents: llama-benchy, tool-eval-bench, vLLM's `bench serve`,
aiperf.

Each file is known by its own keys. A figure keeps our name where it means the same; totals of several
streams and what is computed otherwise keep a name of their own. What the file does not tell is not made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lanes.bench.statistics import median_interval
from lanes.errors import UsageError
from lanes.results.document import SCHEMA, empty_lane

Value = Mapping[str, Any]


def read(path: Path, lane: str | None = None) -> list[dict[str, Any]]:
    """The documents of a file: of `lanes` itself, or of a program that is known. `lane` names the lane, else
    it is called as the model was. Raises `UsageError` for anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read as JSON: {error}", "name the program's JSON report"
        ) from None
    several = value if isinstance(value, list) else [value]
    if several and all(isinstance(one, dict) and one.get("schema") == SCHEMA for one in several):
        return several
    for program, (marks, instrument, take) in _PROGRAMS.items():
        if isinstance(value, dict) and all(mark in value for mark in marks):
            try:
                return [_document(path, program, instrument, take(value), lane)]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UsageError(
                    f"{path} looks like a report of {program}, and lacks what one has: {type(error).__name__}: {error}",
                    "import a report of a run that ended",
                ) from None
    raise UsageError(
        f"{path} is no report that is known", f"known are those of lanes, {', '.join(_PROGRAMS)}"
    )


def _document(path: Path, program: str, instrument: str, found: Value, lane: str | None) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": "",
        "command": "import",
        "status": "done",
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "provenance": {
            "by": program,
            "source": str(path),
            **({"date": found["date"]} if found.get("date") else {}),
        },
        "lanes": [
            empty_lane()
            | {
                "name": lane or found["model"],
                "cluster": "",
                "status": "measured" if found["cells"] or found["rows"] else "failed",
                "reason": None if found["cells"] or found["rows"] else f"{program} has no figures",
                "instruments": [
                    {
                        "name": instrument,
                        "status": "done",
                        "reason": None,
                        "plan": found["plan"],
                        "started_at": None,
                        "seconds": None,
                        "cells": found["cells"],
                        "rows": found["rows"],
                    }
                ],
            }
        ],
    }


def _cell(pp: int, tg: int, metrics: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    held = {name: figure for name, figure in metrics.items() if figure is not None}
    reason = more.pop("failed", None) or (None if held else "it has no figures of this cell")
    cell = {
        "pp": pp,
        "tg": tg,
        "depth": 0,
        "concurrency": 1,
        "shape": "suffix",
        "load": "burst",
        "rate": None,
        "requests": None,
    }
    return {
        **cell,
        "status": "invalid" if reason else "ok",
        "reason": reason,
        "metrics": held,
        "notes": [],
        "passes": [],
        **more,
    }


def _interval(values: Any, unit: float = 1.0) -> dict[str, Any] | None:
    if not values:
        return None
    over = median_interval([float(value) * unit for value in values])
    return {"median": over.median, "lo": over.lo, "hi": over.hi, "n": over.n}


def _single(value: Any, unit: float = 1.0) -> dict[str, Any] | None:
    return None if value is None else _interval([value], unit)


def _benchy(value: Value) -> Value:
    cells = []
    for row in value["benchmarks"]:
        several = row["concurrency"] > 1
        context = bool(row.get("is_context_prefill_phase"))
        names = {
            "ttft_s": ("e2e_ttft", 1e-3),
            "prefill_tps": ("pp_req_throughput", 1.0),
            "stream_decode_tps" if several else "decode_tps": ("tg_req_throughput", 1.0),
        }
        if several:
            names |= {"batch_prefill_tps": ("pp_throughput", 1.0), "batch_decode_tps": ("tg_throughput", 1.0)}
        figures = {
            name: _interval((row.get(theirs) or {}).get("values"), unit)
            for name, (theirs, unit) in names.items()
        }
        cells.append(
            _cell(
                0 if context else row["prompt_size"],
                row["response_size"],
                figures,
                depth=row["context_size"],
                concurrency=row["concurrency"],
                shape="ctx" if context else "suffix",
                notes=[
                    "requests that failed are not told in this file: `lanes run --instrument benchy` joins them"
                ],
            )
        )
    return {
        "model": value["model"],
        "date": value.get("timestamp"),
        "plan": {"version": value["version"]},
        "cells": cells,
        "rows": [],
    }


def _tooleval(value: Value) -> Value:
    scores = value["scores"]
    turn = scores.get("median_turn_ms")
    figures = {
        "score": scores.get("final_score", value["final_score"]),
        "points": scores.get("total_points"),
        "max_points": scores.get("max_points"),
        "responsiveness": value.get("responsiveness"),
        "median_turn_s": None if turn is None else turn / 1e3,
    }
    config = value.get("config") or {}
    row = {
        "name": "score",
        "status": f"{figures['score']}/100",
        "fault": False,
        "reason": None,
        "figures": {name: figure for name, figure in figures.items() if figure is not None},
        "evidence": {},
    }
    plan = {"version": value["tool_eval_bench_version"], "seed": config.get("seed")}
    return {
        "model": str(config.get("model") or value.get("model") or "unknown"),
        "plan": plan,
        "cells": [],
        "rows": [row],
    }


def _vllm(value: Value) -> Value:
    requests = int(value["completed"])
    rate = value.get("request_rate")
    open_load = rate not in (None, "inf") and float(rate) != float("inf")
    figures = {
        "ttft_s": _single(value.get("median_ttft_ms"), 1e-3),
        "ttft_p99_s": _single(value.get("p99_ttft_ms"), 1e-3),
        "itl_mean_s": _single(value.get("median_tpot_ms"), 1e-3),
        "request_rps": _single(value.get("request_throughput")),
        "load_tps": _single(value.get("output_throughput")),
    }
    cell = _cell(
        round(value["total_input_tokens"] / max(requests, 1)),
        round(value["total_output_tokens"] / max(requests, 1)),
        figures,
        load="open" if open_load else "closed",
        rate=float(rate) if open_load and rate is not None else None,
        concurrency=0 if open_load else int(value.get("max_concurrency") or requests),
        requests=requests,
        notes=["lengths are means over its requests"],
        failed=f"{value['failed']} requests failed" if value.get("failed") else None,
    )
    plan = {
        key: value[key] for key in ("backend", "endpoint_type", "dataset_name", "num_prompts") if key in value
    }
    return {"model": value["model_id"], "date": None, "plan": plan, "cells": [cell], "rows": []}


def _aiperf(value: Value) -> Value:
    def figure(name: str, what: str = "p50") -> dict[str, Any] | None:
        metric = value.get(name) or {}
        unit = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}.get(str(metric.get("unit")), 1.0)
        return _single(metric.get(what), unit)

    def mean(name: str) -> int:
        return round((value.get(name) or {}).get("avg") or 0)

    told = value["input_config"]
    failed = sum(one["count"] for one in value.get("error_summary") or ())
    # Of its configuration, which is no contract of aiperf's: `phases` since 0.13, `loadgen` before.
    load = next(
        (p for p in told.get("phases") or () if p.get("kind") == "profiling"), told.get("loadgen") or {}
    )
    rate = load.get("rate") or load.get("request_rate")
    figures = {
        "ttft_s": figure("time_to_first_token"),
        "ttft_p99_s": figure("time_to_first_token", "p99"),
        "itl_mean_s": figure("inter_token_latency"),
        "e2e_s": figure("request_latency"),
        "stream_decode_tps": figure("output_token_throughput_per_user"),
        "request_rps": figure("request_throughput", "avg"),
        "load_tps": figure("output_token_throughput", "avg"),
    }
    cell = _cell(
        mean("input_sequence_length"),
        mean("output_sequence_length"),
        figures,
        load="open" if rate else "closed",
        rate=float(rate) if rate else None,
        concurrency=0 if rate else int(load.get("concurrency") or 1),
        requests=mean("request_count") or None,
        notes=["lengths are means over its requests"],
        failed=f"{failed} requests failed" if failed else None,
    )
    items = (told.get("models") or {}).get("items") or ()
    names = [one["name"] for one in items] or (told.get("endpoint") or {}).get("model_names") or ["unknown"]
    return {
        "model": names[0],
        "date": value.get("start_time"),
        "plan": {"version": value.get("aiperf_version")},
        "cells": [cell],
        "rows": [],
    }


_PROGRAMS: dict[str, tuple[tuple[str, ...], str, Callable[[Value], Value]]] = {
    "llama-benchy": (("benchmarks", "latency_mode"), "benchy", _benchy),
    "tool-eval-bench": (("tool_eval_bench_version", "scores"), "tooleval", _tooleval),
    "vllm bench serve": (("total_input_tokens", "request_throughput", "model_id"), "vllm bench serve", _vllm),
    "aiperf": (("input_config", "request_throughput"), "aiperf", _aiperf),
}
"""By program: the keys that tell its report, the name of the instrument, how it is read."""
