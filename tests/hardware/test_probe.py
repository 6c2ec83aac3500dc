"""What a machine has is found out, each value with its source; what it does not tell is unknown, never a crash or a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import attrs
import pytest
from lanes.hardware import amd_kfd, node_facts, nvidia_smi, probe

MEMINFO = "MemTotal:       127601452 kB\nMemFree:         1000000 kB\nMemAvailable:   121034567 kB\nHugePages_Total:       0\n"
H200 = "NVIDIA H200, 9.0, 143771 MiB, 580.159.04, GPU-5d4b0e4c-0b5e-6a5c-4a5e-0c7b1e3d2f10"
GB10 = "NVIDIA GB10, 12.1, [N/A], 580.95.05, GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"


def gpus(text, **texts):
    node = node_facts.node_from(
        "n", node_facts.Gathered(texts={"nvidia-smi": text, "/proc/meminfo": MEMINFO, **texts})
    )
    return node.gpus


def source(node, name):
    return next(fact.source for fact in node.facts if fact.name == name)


# -- nvidia-smi -------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["", "name, compute_cap, memory.total [MiB], driver_version, uuid\n"])
def test_an_h200_as_it_was_seen(header):
    (gpu,) = gpus(header + H200 + "\n")
    assert attrs.asdict(gpu) == {
        "name": "NVIDIA H200", "target": "9.0", "memory_bytes": 143771 << 20, "driver": "580.159.04",
        "uuid": "GPU-5d4b0e4c-0b5e-6a5c-4a5e-0c7b1e3d2f10", "unified": False,
    }  # fmt: skip


def test_gb10_has_the_memory_of_its_host():
    (gpu,) = gpus(GB10)
    assert (gpu.target, gpu.unified, gpu.memory_bytes) == ("12.1", True, 127601452 * 1024)
    node = node_facts.node_from(
        "n", node_facts.Gathered(texts={"nvidia-smi": GB10, "/proc/meminfo": MEMINFO})
    )
    assert "/proc/meminfo" in source(node, "gpu")
    assert node.memory_available_bytes == 121034567 * 1024


NOT_TOLD = (
    "[N/A]",
    "N/A",
    "[Not Supported]",
    "[Unknown Error]",
    "[GPU is lost]",
    "[Insufficient Permissions]",
    "",
)


@pytest.mark.parametrize("word", NOT_TOLD)
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("line", [H200, GB10], ids=["H200", "GB10"])
def test_whatever_a_driver_does_not_tell_is_unknown_and_nothing_else_is_lost(line, place, word):
    cells = line.split(", ")
    cells[place] = word
    (gpu,) = gpus(", ".join(cells))
    (whole,) = gpus(line)
    field = ("name", "target", "memory_bytes", "driver", "uuid")[place]
    lost = {
        "name": "unknown GPU",
        "target": whole.target,
        "memory_bytes": None if line is H200 else whole.memory_bytes,
    }
    assert getattr(gpu, field) == lost.get(field)
    if field != "name":
        assert attrs.evolve(gpu, **{field: getattr(whole, field)}) == whole
    assert gpu.unified is (line is GB10), "its name or its capability tells, whichever there is"


@pytest.mark.parametrize("text", [
    "", "No devices were found", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
    "[N/A], [N/A], [N/A], [N/A], [N/A]", "a,b", ",,,,,,,,", "name, compute_cap, memory.total [MiB], driver_version, uuid",
    "\x00\x01\x02", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
])  # fmt: skip
def test_what_is_no_list_of_gpus_holds_none(text):
    assert nvidia_smi.parse_gpus(text) == ()


def test_a_warning_beside_the_list_hides_no_gpu():
    text = f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n{H200}\n\n{H200}\n"
    assert len(gpus(text)) == 2


def test_a_capability_that_is_not_told_comes_from_the_name_and_says_so():
    text = H200.replace("9.0", "[N/A]")
    node = node_facts.node_from("n", node_facts.Gathered(texts={"nvidia-smi": text}))
    assert node.gpus[0].target == "9.0"
    assert "by its name" in source(node, "gpu")


@pytest.mark.parametrize("text, version", [
    ("NVIDIA-SMI version  : 580.95.05\nNVML version        : 580.95\nDRIVER version      : 580.95.05\nCUDA Version        : 13.0\n", "13.0"),
    ("| NVIDIA-SMI 570.86.10   Driver Version: 570.86.10   CUDA Version: 12.8     |", "12.8"),
    ("CUDA UMD Version     : 13.1", "13.1"), ("CUDA Version        : N/A", None), ("", None),
])  # fmt: skip
def test_the_cuda_of_the_driver(text, version):
    assert nvidia_smi.parse_cuda_version(text) == version


# -- This machine -----------------------------------------------------------------------------------

NVML = """
import os, time
class NVMLError(Exception): pass
FAULT = os.environ.get("FAULT", "")
def _call(name, value):
    def call(*args):
        if FAULT == "hang": time.sleep(99)
        if FAULT in (name, "all"): raise NVMLError("Not Supported")
        return value() if callable(value) else value
    return call
class Memory: total = 150754820096
nvmlInit = _call("init", None)
nvmlSystemGetCudaDriverVersion_v2 = _call("cuda", 13000)
nvmlSystemGetDriverVersion = _call("driver", b"580.159.04")
nvmlDeviceGetCount = _call("count", 2)
nvmlDeviceGetHandleByIndex = _call("handle", object)
nvmlDeviceGetName = _call("name", os.environ.get("GPU_NAME", "NVIDIA H200"))
nvmlDeviceGetCudaComputeCapability = _call("capability", lambda: (12, 1) if "GB10" in os.environ.get("GPU_NAME", "") else (9, 0))
nvmlDeviceGetMemoryInfo = _call("memory", Memory)
nvmlDeviceGetUUID = _call("uuid", "GPU-1")
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a driver: a folder whose programs come first, and NVML as Python sees it."""
    folder = tmp_path / "machine"
    folder.mkdir()
    sign = folder / "nvidiactl"
    sign.touch()
    monkeypatch.setattr(probe, "SIGNS_OF_NVIDIA", (str(sign),))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("FAULT", raising=False)

    class Machine:
        def program(self, name, script):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

        def nvml(self, fault="", name="NVIDIA H200"):
            (folder / "pynvml.py").write_text(NVML)
            monkeypatch.setenv("FAULT", fault)
            monkeypatch.setenv("GPU_NAME", name)

    made = Machine()
    made.program("nvidia-smi", "exit 9")
    return made


def test_gpus_as_nvml_tells(machine):
    machine.nvml()
    node = probe.local_node()
    assert [(g.name, g.target, g.memory_bytes, g.driver) for g in node.gpus] == [
        ("NVIDIA H200", "9.0", 150754820096, "580.159.04")
    ] * 2
    assert (node.cuda, source(node, "gpu"), source(node, "cuda")) == ("13.0", "NVML", "NVML")


def test_gb10_as_nvml_tells(machine):
    machine.nvml("memory", "NVIDIA GB10")
    node = probe.local_node()
    assert [(g.target, g.unified, g.memory_bytes) for g in node.gpus] == [
        ("12.1", True, node.memory_bytes)
    ] * 2
    assert any(fact.value == "Not Supported" and "memory" in fact.name for fact in node.facts)


@pytest.mark.parametrize("fault", ["cuda", "driver", "name", "capability", "memory", "uuid", "handle"])
def test_what_nvml_refuses_is_unknown_and_told(machine, fault):
    machine.nvml(fault)
    node = probe.local_node()
    assert len(node.gpus) == 2
    if fault not in ("cuda", "driver"):
        assert any("Not Supported" in fact.value for fact in node.facts)


@pytest.mark.parametrize("fault", ["init", "count", "all"])
def test_where_nvml_fails_nvidia_smi_is_asked(machine, fault):
    machine.nvml(fault)
    machine.program(
        "nvidia-smi", f"case $1 in --version) echo 'CUDA Version : 13.0';; *) echo '{H200}';; esac"
    )
    node = probe.local_node()
    assert [gpu.target for gpu in node.gpus] == ["9.0"]
    assert (node.cuda, source(node, "gpu")) == ("13.0", "nvidia-smi")


@pytest.mark.parametrize(
    "smi",
    ["exit 9", "echo no; exit 1", "echo 'No devices were found'", "head -c 100000 /dev/zero", "kill -9 $$"],
)
def test_a_driver_that_does_not_answer_leaves_the_gpus_unknown_not_absent(machine, smi):
    machine.nvml("init")
    machine.program("nvidia-smi", smi)
    node = probe.local_node()
    assert node.gpus is None
    assert any(fact.name.startswith("no answer") for fact in node.facts)


@pytest.mark.parametrize("stuck", ["nvml", "nvidia-smi", "nvidia-smi and what it started", "df"])
def test_a_part_that_hangs_is_waited_for_only_so_long(machine, monkeypatch, stuck):
    monkeypatch.setattr(probe, "GPU_TIMEOUT_S", 0.5)
    machine.nvml("hang" if stuck == "nvml" else "init" if "smi" in stuck else "")
    if "smi" in stuck:
        machine.program("nvidia-smi", "sleep 98 & wait" if "started" in stuck else "exec sleep 98")
    if stuck == "df":
        machine.program("df", "exec sleep 98")
    began = time.monotonic()
    node = probe.local_node()
    assert time.monotonic() - began < 60
    assert any("did not answer" in fact.value for fact in node.facts)
    assert node.memory_bytes, "the rest is told all the same"
    assert (node.gpus is None) is (stuck != "df")


def test_a_machine_without_a_driver_has_no_gpus_and_none_is_asked(machine, monkeypatch):
    monkeypatch.setattr(probe, "SIGNS_OF_NVIDIA", ())
    machine.nvml("hang")
    began = time.monotonic()
    node = probe.local_node()
    assert node.gpus == () or node.gpus[0].target.startswith("gfx")
    assert time.monotonic() - began < 12


def test_what_lies_in_the_current_folder_is_not_run(machine, tmp_path, monkeypatch):
    machine.nvml()
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("pynvml", "json", "lanes", "elf"):
        (trap / f"{name}.py").write_text("open('sprung', 'w')")
    monkeypatch.chdir(trap)
    assert len(probe.local_node().gpus) == 2
    assert not (trap / "sprung").exists()


def test_every_fact_has_a_source(machine):
    machine.nvml()
    node = probe.local_node()
    assert {"arch", "os", "cpus", "memory", "available memory", "gpu", "driver", "cuda", "docker"} <= {
        f.name for f in node.facts
    }
    assert all(fact.source and fact.value for fact in node.facts)
    assert node.disks and all(0 <= disk.free_bytes <= disk.total_bytes for disk in node.disks)


def test_asking_nvml_prints_json_even_without_a_driver():
    ran = subprocess.run(
        [sys.executable, "-m", "lanes.hardware.nvml"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(ran.stdout).keys() & {"error", "gpus"}


# -- Another machine --------------------------------------------------------------------------------


def here(argv):
    """Run the script as ssh would."""
    return subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
    ).stdout


def test_the_script_finds_out_about_this_machine_what_is_found_without_it():
    local, remote = probe.local_node("n", paths=["/", "/tmp"]), probe.remote_node("n", here)
    for field in ("arch", "os", "cpus", "memory_bytes", "docker"):
        assert getattr(remote, field) == getattr(local, field), field
    assert [disk.path for disk in remote.disks] == [disk.path for disk in local.disks]


def test_the_script_brings_what_nvidia_smi_says(machine):
    machine.program(
        "nvidia-smi", f"case $1 in --version) echo 'CUDA Version : 13.0';; *) echo '{GB10}';; esac"
    )
    node = probe.remote_node("n", here)
    assert [(g.target, g.unified, g.memory_bytes) for g in node.gpus] == [("12.1", True, node.memory_bytes)]
    assert node.cuda == "13.0"


def test_the_script_says_why_there_is_no_answer(machine):
    machine.program("nvidia-smi", "echo 'Driver/library version mismatch'; exit 18")
    node = probe.remote_node("n", here)
    assert node.gpus is None
    assert any("exit 18" in fact.value and "mismatch" in fact.value for fact in node.facts)


def test_the_script_does_not_wait_for_a_driver_that_hangs(machine, monkeypatch):
    machine.program("nvidia-smi", "exec sleep 97")
    monkeypatch.setattr(
        probe, "SCRIPT", probe.SCRIPT.replace(f"timeout -k 1 {probe.GPU_TIMEOUT_S:.0f}", "timeout -k 1 1")
    )
    node = probe.remote_node("n", here)
    assert node.gpus is None
    assert any("did not answer" in fact.value for fact in node.facts)


def test_folders_with_odd_names_reach_the_script_whole(tmp_path):
    odd = tmp_path / "a b'$(touch sprung)\"; x"
    odd.mkdir()
    assert probe.remote_node("n", here, paths=[str(odd), "-rf", "/nowhere"]).disks


@pytest.mark.parametrize(
    "text",
    ["", "\n", "garbage", "@@ ", "@@ nproc\nmany\n@@ /proc/meminfo\nMemTotal: x kB\n@@ df\na b c d e f\n"],
)
def test_a_machine_that_answers_nonsense_is_unknown(text):
    node = probe.remote_node("n", lambda argv: text)
    assert (node.cpus, node.memory_bytes, node.disks) == (None, None, ())


def test_a_machine_that_cannot_be_reached_is_no_machine_without_gpus():
    def unreachable(argv):
        raise OSError("no route to host")

    with pytest.raises(OSError, match="no route"):
        probe.remote_node("n", unreachable)


# -- AMD --------------------------------------------------------------------------------------------

PROPERTIES = "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {}\nvendor_id 4098\n"
BANK = "heap_type {}\nsize_in_bytes {}\nflags 0\n"


@pytest.mark.parametrize(
    "version, target",
    [
        ("90402", "gfx942"),
        ("90500", "gfx950"),
        ("110501", "gfx1151"),
        ("90010", "gfx90a"),
        ("120001", "gfx1201"),
    ],
)
def test_an_amd_gpu_as_the_kernel_shows_it(version, target):
    gpu = amd_kfd.parse_node(PROPERTIES.format(version), (BANK.format(1, 206141652992), BANK.format(0, 7)))
    assert (gpu.target, gpu.memory_bytes) == (target, 206141652992)


@pytest.mark.parametrize("text", ["", PROPERTIES.format(0), PROPERTIES.format("x"), "gfx_target_version\n"])
def test_a_node_of_the_kernel_that_is_no_gpu_is_none(text):
    assert amd_kfd.parse_node(text) is None
