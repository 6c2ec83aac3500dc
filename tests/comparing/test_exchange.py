"""Figures out of the history, and others' reports into it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest
from lanes.comparing import foreign
from lanes.results import files, flat

ROOT = Path(__file__).parent.parent.parent
CAMPAIGN = ROOT / "examples/campaign-2026-10"


def metric(*values):
    return {"mean": sum(values) / len(values), "std": 0.0, "values": list(values)}


BENCHY = {
    "version": "0.4.0", "timestamp": "2026-12-01 16:08:04Z", "latency_mode": "api", "latency_ms": 1.5, "model": "m",
    "prefix_caching_enabled": False, "max_concurrency": 2,
    "benchmarks": [
        {"concurrency": 1, "context_size": 0, "prompt_size": 256, "response_size": 16, "is_context_prefill_phase": False,
         "pp_throughput": metric(150.0, 149.0), "pp_req_throughput": metric(150.0, 149.0),
         "tg_throughput": metric(10.0, 12.0), "tg_req_throughput": metric(10.0, 12.0),
         "ttfr": metric(1700.0), "est_ppt": metric(1690.0), "e2e_ttft": metric(1710.0, 1730.0)},
        {"concurrency": 2, "context_size": 4096, "prompt_size": 256, "response_size": 16,
         "is_context_prefill_phase": True,
         "pp_throughput": metric(300.0), "pp_req_throughput": metric(150.0),
         "tg_throughput": metric(20.0), "tg_req_throughput": metric(9.0), "ttfr": None, "e2e_ttft": None},
        {"concurrency": 1, "context_size": 0, "prompt_size": 512, "response_size": 16, "is_context_prefill_phase": False,
         "pp_throughput": None, "pp_req_throughput": None, "tg_throughput": None, "tg_req_throughput": None,
         "ttfr": None, "e2e_ttft": None},
    ],
}  # fmt: skip
TOOLEVAL = {
    "schema_version": "1", "tool_eval_bench_version": "2.8.0", "final_score": 87, "responsiveness": 75, "status": "completed",
    "config": {"model": "m", "seed": 42, "scenario_count": 97},
    "scores": {"final_score": 87, "total_points": 168, "max_points": 194, "median_turn_ms": 1400.0},
}  # fmt: skip
VLLM = {
    "date": "20261201-160804", "backend": "vllm", "endpoint_type": "vllm", "model_id": "m", "num_prompts": 10,
    "request_rate": "inf", "max_concurrency": 4, "completed": 10, "failed": 0, "total_input_tokens": 20480,
    "total_output_tokens": 1280, "request_throughput": 0.5, "output_throughput": 64.0, "median_ttft_ms": 700.0,
    "p99_ttft_ms": 900.0, "median_tpot_ms": 20.0,
}  # fmt: skip
AIPERF = {
    "aiperf_version": "0.13.0", "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "request_latency": {"unit": "ms", "p50": 3000.0}, "request_count": {"unit": "requests", "avg": 128.0},
    "time_to_first_token": {"unit": "ms", "avg": 220.0, "p50": 214.0, "p99": 580.0},
    "inter_token_latency": {"unit": "ms", "p50": 11.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 943.0},
    "output_token_throughput_per_user": {"unit": "tokens/sec/user", "p50": 90.0},
    "input_sequence_length": {"avg": 128.0}, "output_sequence_length": {"avg": 32.0},
    "input_config": {"models": {"items": [{"name": "m"}]},
                     "phases": [{"kind": "profiling", "type": "concurrency", "concurrency": 64}]},
    "error_summary": [], "start_time": "2026-12-01T16:08:04",
}  # fmt: skip
OLDER_AIPERF = {
    **AIPERF,
    "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"request_rate": 2.5}},
    "error_summary": [{"error_details": {"code": 500}, "count": 3}],
}
REPORTS = {"llama-benchy": BENCHY, "tool-eval-bench": TOOLEVAL, "vllm bench serve": VLLM, "aiperf": AIPERF}


def read(tmp_path, report, **more):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    (document,) = foreign.read(file, **more)
    return document


def cells(document):
    return document["lanes"][0]["instruments"][0]["cells"]


def medians(cell):
    return {name: figure["median"] for name, figure in cell["metrics"].items()}


@pytest.mark.parametrize("program", REPORTS)
def test_a_report_becomes_a_result_that_says_whose_it_is(program, tmp_path):
    document = read(tmp_path, REPORTS[program])
    jsonschema.Draft202012Validator(json.loads((ROOT / "docs/result.schema.json").read_text())).validate(
        document
    )
    assert document["provenance"]["by"] == program
    (lane,) = document["lanes"]
    assert (lane["name"], lane["status"]) == ("m", "measured")
    assert read(tmp_path, REPORTS[program], lane="mine")["lanes"][0]["name"] == "mine"


def test_llama_benchy(tmp_path):
    plain, context, nothing = cells(read(tmp_path, BENCHY))
    assert medians(plain) == {"ttft_s": 1.72, "prefill_tps": 149.5, "decode_tps": 11.0}
    assert plain["metrics"]["decode_tps"]["n"] == 2
    # Totals of several streams keep a name of their own.
    assert medians(context) == {
        "prefill_tps": 150.0, "stream_decode_tps": 9.0, "batch_prefill_tps": 300.0, "batch_decode_tps": 20.0,
    }  # fmt: skip
    assert (context["shape"], context["pp"], context["depth"]) == ("ctx", 0, 4096)
    assert (nothing["status"], nothing["metrics"]) == ("invalid", {})


def test_tool_eval_bench(tmp_path):
    (row,) = read(tmp_path, TOOLEVAL)["lanes"][0]["instruments"][0]["rows"]
    assert row["figures"] == {
        "score": 87, "points": 168, "max_points": 194, "responsiveness": 75, "median_turn_s": 1.4,
    }  # fmt: skip


def test_vllm_and_aiperf(tmp_path):
    (cell,) = cells(read(tmp_path, VLLM))
    assert (cell["load"], cell["concurrency"], cell["pp"], cell["tg"]) == ("closed", 4, 2048, 128)
    assert medians(cell)["ttft_p99_s"] == 0.9
    (cell,) = cells(read(tmp_path, {**VLLM, "request_rate": 2.5, "failed": 1}))
    assert (cell["load"], cell["rate"], cell["concurrency"]) == ("open", 2.5, 0)
    assert (cell["status"], cell["reason"]) == ("invalid", "1 requests failed")
    (cell,) = cells(read(tmp_path, AIPERF))
    assert (cell["load"], cell["concurrency"], cell["status"]) == ("closed", 64, "ok")
    assert medians(cell)["ttft_s"] == pytest.approx(0.214)
    (cell,) = cells(read(tmp_path, OLDER_AIPERF))
    assert (cell["load"], cell["rate"], cell["status"]) == ("open", 2.5, "invalid")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "is no report that is known. known are those of lanes, llama-benchy"),
        ("[]", "is no report that is known"),
        ("not json", "cannot be read as JSON"),
        (
            json.dumps({**VLLM, "completed": None}),
            "looks like a report of vllm bench serve, and lacks what one has",
        ),
        (json.dumps({**BENCHY, "benchmarks": [{}]}), "looks like a report of llama-benchy"),
    ],
)
def test_other_files_are_refused_in_one_sentence(content, said, lanes, tmp_path):
    (tmp_path / "x.json").write_text(content)
    ran = lanes("history", "import", str(tmp_path / "x.json"))
    assert ran.code == 2
    assert said in ran.said
    assert lanes("history", "--json").json == []


def test_what_was_taken_in_is_compared_and_exported(lanes, tmp_path):
    for number, program in enumerate(REPORTS):
        (tmp_path / f"{number}.json").write_text(json.dumps(REPORTS[program]))
    ran = lanes(
        "history", "import", *(str(tmp_path / f"{n}.json") for n in range(4)), str(CAMPAIGN / "ep2-1m.json")
    )
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 5
    documents = lanes("history", "--json").json
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/result.schema.json").read_text()))
    for document in documents:
        validator.validate(document)
        assert document["command"] == "import"
    assert {d["provenance"]["by"] for d in documents} == {*REPORTS, "the campaign's author"}
    (kept,) = [d for d in documents if d["provenance"]["by"] == "the campaign's author"]
    (ours,) = files.read(CAMPAIGN / "ep2-1m.json")
    assert kept["lanes"][0]["instruments"][0]["cells"] == ours["lanes"][0]["instruments"][0]["cells"]
    assert kept["lanes"][0]["lane_metrics"] == {"kv_pool_tokens": 9_180_000}

    compared = lanes("compare", "m", "--json").json
    assert compared["sides"][0]["reported"] in REPORTS
    table = list(csv.DictReader(io.StringIO(lanes("history", "export", "m").out)))
    assert {row["instrument"] for row in table} == {"benchy", "tooleval", "vllm bench serve", "aiperf"}
    (row,) = [row for row in table if row["instrument"] == "vllm bench serve" and row["figure"] == "load_tps"]
    assert (row["median"], row["n"], row["pp"]) == ("64.0", "1", "2048")


def test_export_in_all_its_forms(lanes, tmp_path):
    folder = str(CAMPAIGN)
    ran = lanes("history", "export", folder, "four-lanes", "--format", "json")
    assert {row["lane"] for row in ran.json} >= {"beam-1.0-nvfp4-4x", "dsv41-flash-1017-4x-flare"}
    assert set(ran.json[0]) == set(flat.COLUMNS)
    lines = lanes("history", "export", folder, "four-lanes", "--format", "md").out.splitlines()
    assert len(lines) == len(ran.json) + 2
    assert len({line.count(" | ") for line in lines if "\\|" not in line}) == 1
    assert lanes("history", "export", folder, "-o", str(tmp_path / "all.csv")).code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    # A lane without a figure has its row, with the reason.
    (deepinfer,) = [row for row in rows if row["lane"] == "dsv41-flash-1017-deepinfer"]
    assert deepinfer["status"] == "unrunnable" and deepinfer["reason"]
    assert lanes("history", "export").code == 2
    assert "Parquet is no text" in lanes("history", "export", folder, "--format", "parquet").err


def test_parquet(lanes, tmp_path):
    file = tmp_path / "all.parquet"
    ran = lanes("history", "export", str(CAMPAIGN), "-o", str(file))
    try:
        import pyarrow.parquet
    except ImportError:
        assert ran.code == 2
        assert "pip install 'lanes-core[parquet]'" in ran.err
        return
    table = pyarrow.parquet.read_table(file)
    assert table.column_names == list(flat.COLUMNS)
    assert table.num_rows == len(list(flat.rows(files.read(CAMPAIGN))))
