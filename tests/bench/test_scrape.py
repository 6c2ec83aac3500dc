"""The server's own metrics and its GPUs, beside our figures."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from lanes.bench import gpus
from lanes.bench.cells import CellResult
from lanes.bench.gpus import Gpus
from lanes.bench.plan import Plan
from lanes.bench.probe import measure
from lanes.bench.scrape import Scraper, read
from lanes.testing.scripted import Script, ScriptedServer
from lanes.types import Dialect, Endpoint

pytestmark = pytest.mark.usefixtures("patient")

S = 1_000_000_000

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_running_by_reason{reason="x"} 100
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:generation_tokens_total{engine="0"} 1.5e+03
broken{ 5
sglang:spec_accept_length NaN
"""


def test_metrics_are_read_by_their_names_over_all_ranks() -> None:
    names = {
        "running": "vllm:num_requests_running",
        "kv_use": "vllm:kv_cache_usage_perc",
        "generated": "vllm:generation_tokens",
        "acceptance": "sglang:spec_accept_length",
        "queued": "vllm:num_requests_waiting",
    }
    assert read(TEXT, names) == {"running": 7, "kv_use": 0.5, "generated": 1500}
    assert read("<html>no metrics</html>", names) == {}


NAMES = {
    "running": "s:running",
    "queued": "s:queued",
    "kv_use": "s:kv",
    "generated": "s:tokens",
    "accepted": "s:accepted",
    "drafts": "s:drafts",
}


def metrics(server: ScriptedServer) -> str:
    tokens = sum(tokens for answer in server.answers for _, tokens in answer.sent)
    steps = sum(len(answer.sent) for answer in server.answers)
    running = len(server.answers) - sum(len(a.sent) * 4 >= a.body["max_tokens"] for a in server.answers)
    return (
        f"s:running {running}\ns:queued 2\ns:kv 0.125\ns:tokens_total {tokens * server.lies}\n"  # type: ignore[attr-defined]
        f"s:accepted_total {tokens - steps}\ns:drafts_total {steps}\n"
    )


def cell(lies: float = 1.0, names: dict[str, str] = NAMES, **plan: Any) -> CellResult:
    dialect = Dialect(tokenize_path="/tokenize", metrics_path="/metrics", metrics=names)
    script = Script(ttft_s=0.6, gap_s=0.01, tokens_per_delta=4, usage="every")
    with ScriptedServer(script, metrics=metrics) as server:
        server.lies = lies  # type: ignore[attr-defined]
        endpoint = Endpoint(url=server.url, model="scripted", dialect=dialect)
        quick = {"pp": 128, "tg": 32, "concurrency": 2, "passes": 1, "warmups": 0}
        return measure(endpoint, Plan(**(quick | plan)))[0]


@pytest.mark.parametrize("load", [{}, {"load": "closed", "requests": 6}])
def test_the_servers_metrics_stand_beside_our_figures(load: dict[str, Any]) -> None:
    found = cell(**load)
    assert found.status == "ok", found.reason
    theirs = {name: interval.median for name, interval in found.server_metrics.items()}
    # The counters' growth over the pass, without what the learning requests made.
    assert theirs["generated_tokens"] == 32 * (6 if load else 2)
    assert theirs["acceptance"] == pytest.approx(4)
    assert found.metrics["tokens_per_delta"].median == pytest.approx(4)
    assert theirs["queued_max"] == 2 and theirs["kv_use_max"] == 0.125
    assert 1 <= theirs["running_max"] <= 2
    assert not any("the server counts" in note for note in found.notes)


def test_a_server_that_counts_other_tokens_than_it_tells_is_flagged() -> None:
    assert any(
        note.startswith("the server counts 128 tokens made in a pass, its streams tell 64 (-50%)")
        for note in cell(lies=2.0).notes
    )


@pytest.mark.parametrize("names", [{}, {"running": "no:such"}])
def test_without_metrics_nothing_is_said(names: dict[str, str]) -> None:
    found = cell(names=names)
    assert found.status == "ok" and not found.server_metrics


def test_a_server_without_metrics_is_asked_once_and_one_that_is_gone_does_no_harm() -> None:
    with ScriptedServer() as server:
        endpoint = Endpoint(
            url=server.url, model="x", dialect=Dialect(metrics_path="/metrics", metrics={"running": "r"})
        )
        scraper = Scraper(endpoint)
        scraper.begin()
        assert scraper.end() == {} and not scraper.works
    gone = Scraper(endpoint)
    gone.begin()
    assert gone.end() == {}


# -- GPUs ------------------------------------------------------------------------------------------


def row(at_s: float, **gpu: Any) -> dict[str, Any]:
    return {"at_ns": int(at_s * S), "gpus": [{"index": 0, "busy": 90} | gpu]}


def test_the_figures_of_a_gpu_by_hand() -> None:
    samples = [
        row(t, power_w=300.0 + 10 * t, energy_j=1000 + 310.0 * t, clock_mhz=1900 - 100 * (t % 2), temperature_c=60 + t, reasons=0x4 if t > 3 else 0)
        for t in range(6)
    ]  # fmt: skip
    found, notes = gpus.figures(samples, int(0.5 * S), int(4.5 * S))
    assert found == {
        "gpus": 1,
        "gpu_power_w": 325,
        "gpu_energy_j": pytest.approx(310 * 4),
        "gpu_clock_mhz": 1850,
        "gpu_temperature_c": 64,
    }
    assert notes == ("GPU 0 was throttled by its power cap in 25% of the samples",)


def test_a_gpu_without_an_energy_counter_and_one_that_is_idle() -> None:
    samples = [row(t, power_w=100.0) for t in range(4)]
    for one in samples:
        one["gpus"].append({"index": 1, "busy": 0, "power_w": 70.0, "energy_j": 5.0})
    assert gpus.figures(samples, 0, 3 * S)[0] == {"gpus": 1, "gpu_power_w": 100, "gpu_energy_j": 300}
    assert gpus.figures([], 0, S) == ({}, ())


DRIVER = """
import sys, time, types
print("a driver talks", flush=True)
nvml = types.ModuleType("pynvml")
nvml.NVMLError = OSError
nvml.reads = 0
def energy(gpu):  # 200 W
    nvml.reads += 1
    return int(time.time() * 200_000)
nvml.nvmlInit = lambda: None
nvml.nvmlDeviceGetCount = lambda: 1
nvml.nvmlDeviceGetHandleByIndex = lambda index: index
nvml.nvmlDeviceGetPowerUsage = lambda gpu: 100_000
nvml.nvmlDeviceGetTotalEnergyConsumption = energy
nvml.nvmlDeviceGetUtilizationRates = lambda gpu: types.SimpleNamespace(gpu=50)
nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda gpu: 0
nvml.nvmlDeviceGetClockInfo = lambda gpu, kind: 1900
nvml.nvmlDeviceGetTemperature = lambda gpu, kind: nvml.reads
sys.modules["pynvml"] = nvml
from lanes.bench import gpus
gpus.main()
"""
"""A driver whose GPU tells as its temperature how often its energy counter was read."""


def test_gpus_are_sampled_by_another_process_and_their_costly_energy_counters_only_around_a_pass() -> None:
    watched = Gpus(Endpoint(url="http://127.0.0.1:1", model="x"), [sys.executable, "-c", DRIVER])
    watched.start()
    try:
        watched.begin()
        for passes in (1, 2):
            watched.begin()
            began = time.time_ns()
            time.sleep(1.2)
            ended = time.time_ns()
            watched.ask()
            found, _ = watched.between(began, ended)
            assert found["gpu_power_w"] == 100 and found["gpu_clock_mhz"] == 1900
            assert found["gpu_energy_j"] == pytest.approx(200 * (ended - began) / 1e9, rel=0.001)
            assert found["gpu_temperature_c"] == 2 * passes
    finally:
        watched.stop()


def test_where_there_is_no_gpu_nothing_is_said() -> None:
    with_nothing = Gpus(Endpoint(url="http://127.0.0.1:1", model="x"), [sys.executable, "-c", ""])
    with_nothing.start()
    assert with_nothing.between(0, 1) == ({}, ())
    with_nothing.stop()


def test_only_the_gpus_of_this_host_are_asked() -> None:
    for url, here in (
        ("http://localhost:1", True),
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://192.0.2.1:1", False),  # an address that is nobody's
    ):
        assert gpus.is_here(Endpoint(url=url, model="x")) is here


def test_what_nvml_does_not_tell_is_left_open() -> None:
    class Refusal(Exception):
        pass

    def refuses(*_: Any) -> Any:
        raise Refusal

    nvml = SimpleNamespace(
        NVMLError=Refusal,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPowerUsage=lambda gpu: 12500,
        nvmlDeviceGetTotalEnergyConsumption=refuses,
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=40),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 0x20,
        nvmlDeviceGetClockInfo=lambda gpu, kind: 2000,
        nvmlDeviceGetTemperature=refuses,
    )
    (told,) = gpus.sample(nvml, energy=True)
    assert json.loads(json.dumps(told)) == {
        "index": 0, "power_w": 12.5, "energy_j": None, "clock_mhz": 2000, "temperature_c": None,
        "busy": 40, "reasons": 0x20,
    }  # fmt: skip
