"""People name a GPU as they know it; a name that is not known is answered with the nearest ones."""

from __future__ import annotations

import pytest
from lanes.errors import UsageError
from lanes.hardware.gpus import GPUS
from lanes.hardware.hypothetical import hypothetical_node
from lanes.hardware.targets import gpu_named, parse_target

SPELLINGS = {
    "12.1": ("sm_121", "sm121", "SM 12.1", "12.1", "121", "sm_121a", "121f", "compute_121", "gb10", "GB10", "NVIDIA GB10",
             "dgx-spark", "DGX Spark", "dgx_spark", "spark"),
    "12.0": ("sm_120", "rtx-5090", "RTX 5090", "NVIDIA GeForce RTX 5090", "rtx5090", "120",
             "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
    "11.0": ("thor", "jetson-thor", "NVIDIA Thor", "sm_110", "sm_101", "10.1", "NVIDIA Jetson AGX Thor"),
    "10.3": ("b300", "gb300", "sm_103", "NVIDIA B300 SXM6"),
    "10.0": ("b200", "gb200", "NVIDIA B200", "sm_100", "sm100a"),
    "9.0": ("hopper", "h100", "H200", "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "sm_90", "90a"),
    "8.9": ("ada", "l4", "L40S", "rtx 4090", "NVIDIA GeForce RTX 4090", "NVIDIA L40S", "89"),
    "8.7": ("orin", "jetson-orin", "Jetson AGX Orin", "sm_87"),
    "8.6": ("a10", "a40", "rtx3090", "NVIDIA A10", "8.6"),
    "8.0": ("a100", "NVIDIA A100-SXM4-80GB", "a100-40gb", "A30", "sm_80"),
    "7.5": ("t4", "Tesla T4", "turing"),
    "7.0": ("v100", "Tesla V100-SXM2-32GB", "volta"),
    "gfx942": ("gfx942", "mi300x", "MI325X", "AMD Instinct MI300X", "gfx942:sramecc+:xnack-"),
    "gfx950": ("gfx950", "mi355x", "mi350x"),
    "gfx1151": ("gfx1151", "strix-halo", "Strix Halo"),
}  # fmt: skip


@pytest.mark.parametrize("capability, name", [(c, n) for c, names in SPELLINGS.items() for n in names])
def test_every_spelling_means_its_capability(capability, name):
    assert parse_target(name).capability == capability


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_gpu_of_the_table_goes_by_its_names(gpu):
    for name in (gpu.name, gpu.name.lower().replace(" ", "-"), gpu.name.replace(" ", ""), *gpu.aliases):
        assert parse_target(name).model is gpu


@pytest.mark.parametrize(
    "name, near",
    [
        ("gb11", "gb10"), ("dgx-sparc", "dgx-spark"), ("h20", "h200"), ("h2000", "h200"), ("sm_1210", "sm_121"),
        ("mi300", "mi300x"), ("rtx 5900", "rtx-5090"), ("sm_900", "sm_90"), ("jetson", "jetson-orin"), ("gfx94", "gfx942"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_answered_with_the_nearest(name, near):
    with pytest.raises(UsageError) as caught:
        parse_target(name)
    assert near in caught.value.next_step


@pytest.mark.parametrize(
    "name", ["", " ", "xyzzy", "sm_", "0", "-1", "1.2", "99.9", "gfx", "sm_121x", "☃", "x" * 10_000]
)
def test_nonsense_is_answered_with_names_that_would_do(name):
    with pytest.raises(UsageError) as caught:
        parse_target(name)
    assert caught.value.next_step
    assert len(str(caught.value)) < 400


def test_a_generation_of_several_architectures_is_answered_with_them():
    with pytest.raises(UsageError) as caught:
        parse_target("blackwell")
    for arch in ("sm_100", "sm_110", "sm_120", "sm_121"):
        assert arch in caught.value.next_step


@pytest.mark.parametrize("name, gigabytes", [("a100-80gb", 80), ("a100-40gb", 40), ("NVIDIA A100-SXM4-80GB", 80),
                                             ("NVIDIA GH200 480GB", None), ("a100", None)])  # fmt: skip
def test_a_name_may_say_how_much_memory_the_gpu_has(name, gigabytes):
    assert parse_target(name).memory_bytes == (gigabytes * 10**9 if gigabytes else None)


def test_a_driver_may_know_a_gpu_that_the_table_does_not():
    assert gpu_named("NVIDIA GeForce GT 9999") is None


# -- Hardware that is only planned ------------------------------------------------------------------


def test_a_planned_dgx_spark_is_what_its_name_implies():
    node = hypothetical_node("dgx-spark")
    (gpu,) = node.gpus
    assert (node.hypothetical, node.arch, gpu.target, gpu.unified) == (True, "aarch64", "12.1", True)
    assert 121 < node.memory_bytes / 2**30 < 122
    assert gpu.memory_bytes == node.memory_bytes
    assert all(fact.source for fact in node.facts)


def test_what_a_name_leaves_open_stays_unknown():
    node = hypothetical_node("sm_90")
    assert (node.gpus[0].memory_bytes, node.arch, node.memory_bytes) == (None, None, None)


def test_a_card_is_taken_to_sit_in_an_intel_host_and_says_so():
    node = hypothetical_node("h200", gpus=8)
    assert (node.arch, len(node.gpus)) == ("x86_64", 8)
    assert "taken for granted" in next(fact.source for fact in node.facts if fact.name == "arch")
