"""Gates: what an engine needs, held against the nodes of a lane."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import gates
from lanes.hardware.hypothetical import hypothetical_node
from lanes.types import Disk, Evidence, Gpu, Kind, Node, Verdict

GIB = 2**30
RUNNABLE, UNKNOWN, UNRUNNABLE = Verdict.RUNNABLE, Verdict.UNKNOWN, Verdict.UNRUNNABLE

BARE = Node(name="bare")
"""A real node of which nothing is known."""
DREAM = Node(name="dream", hypothetical=True)
"""Hardware that is only asked about, of which nothing is known."""

SGLANG = {
    "x86_64": ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_120a"),
    "aarch64": ("sm_90", "sm_100f", "sm_110a", "sm_120a", "sm_121a"),
}
VLLM = {
    "x86_64": ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f"),
    "aarch64": ("sm_80", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_110", "sm_120", "sm_120f"),
}


@pytest.mark.parametrize(
    ("codes", "arch", "verdict", "told"),
    [
        (SGLANG, "gb10", RUNNABLE, "sm_121a is made for sm_121 (GB10)"),
        (SGLANG, "rtx 5090", RUNNABLE, "sm_120a is made for sm_120 (RTX 5090)"),
        (SGLANG, "a100", RUNNABLE, "sm_80 is made for sm_80"),
        (SGLANG, "orin", UNRUNNABLE, "has no code for sm_87"),
        (SGLANG, "v100", UNRUNNABLE, "has no code for sm_70 (V100): it holds sm_80"),
        (SGLANG, "mi300x", UNRUNNABLE, "has no code for gfx942"),
        (SGLANG, "b300", RUNNABLE, "the suffix f covers the family 10.0 and 10.3"),
        (VLLM, "gb10", RUNNABLE, "the suffix f covers the family 12.0 and 12.1"),
        (("sm_120",), "gb10", UNKNOWN, "likely"),
        (("sm_86",), "orin", UNKNOWN, "Tegra"),
        (("compute_80",), "h100", RUNNABLE, "PTX is compiled forward at load"),
        (("sm_90a",), "b200", UNRUNNABLE, "has no code for sm_100"),
        (("gfx942",), "mi300x", RUNNABLE, "gfx942 is made for gfx942"),
        (("gfx942",), "mi355x", UNRUNNABLE, "has no code for gfx950"),
    ],
)
def test_gpu_code_is_held_against_the_gpu_by_the_makers_rules(codes, arch, verdict, told):
    finding = gates.sm([hypothetical_node(arch)], codes, source="s")
    assert (finding.question, finding.verdict, finding.evidence) == ("sm", verdict, Evidence.DECLARED)
    assert told in finding.reason


def test_a_build_for_an_unknown_host_is_a_yes_only_where_every_build_is():
    h100 = Node(name="n", gpus=(Gpu(name="NVIDIA H100", target="9.0"),))
    a100 = Node(name="n", gpus=(Gpu(name="NVIDIA A100", target="8.0"),))
    assert gates.sm([h100], SGLANG, source="s").verdict is RUNNABLE
    finding = gates.sm([a100], SGLANG, source="s")
    assert finding.verdict is UNKNOWN
    assert "depends on the host's architecture" in finding.reason


@pytest.mark.parametrize(
    ("arch", "verdict"),
    [("b200", RUNNABLE), ("b300", RUNNABLE), ("gb10", UNRUNNABLE), ("thor", UNRUNNABLE), ("h100", UNRUNNABLE), ("mi300x", UNRUNNABLE)],
)  # fmt: skip
def test_an_engine_that_admits_one_major_alone(arch, verdict):
    finding = gates.sm_only([hypothetical_node(arch)], ("10",), source="s", why="it raises")
    assert finding.verdict is verdict
    assert ("it raises" in finding.reason) == (verdict is UNRUNNABLE)


def test_one_capability_is_not_its_major():
    assert gates.sm_only([hypothetical_node("gb10")], ("12.0",), source="s", why="w").verdict is UNRUNNABLE
    both = gates.sm_only([hypothetical_node("gb10")], ("12.0", "12.1", "gfx942"), source="s", why="w")
    assert both.verdict is RUNNABLE
    assert both.reason.startswith("it admits compute capability 12.0 and 12.1 and gfx942,")


@pytest.mark.parametrize(
    ("have", "verdict"), [("13.0", RUNNABLE), ("12.9", UNRUNNABLE), ("13.10", RUNNABLE), ("9.2", UNRUNNABLE)]
)
def test_versions_of_cuda_are_numbers(have, verdict):
    node = Node(name="n", cuda=have, gpus=(Gpu(name="g"),))
    assert gates.cuda([node], "13.0", source="s").verdict is verdict


@pytest.mark.parametrize(
    ("node", "sizes", "verdict", "told"),
    [
        ("h200", {"weights_bytes": 100 * GIB}, RUNNABLE, "100.0 GiB of weights"),
        ("h200", {"weights_bytes": 100 * GIB, "kv_bytes": 50 * GIB}, UNRUNNABLE, "100.0 GiB of weights + 50.0 GiB of KV cache"),
        ("h200", {"weights_bytes": 100 * GIB, "gpus_used": 4}, RUNNABLE, "100.0 GiB of weights"),
        ("h200", {"weights_bytes": 100 * GIB, "kv_bytes": None}, UNKNOWN, "the size of KV cache is not known"),
        ("h200", {"weights_bytes": 200 * GIB, "kv_bytes": None}, UNRUNNABLE, "200.0 GiB of weights"),
        ("h200", {"weights_bytes": None}, UNKNOWN, "the size of weights is not known"),
        ("gb10", {"weights_bytes": 118 * GIB, "overhead_bytes": 3 * GIB}, RUNNABLE, "121.7 GiB"),
        ("gb10", {"weights_bytes": 118 * GIB, "overhead_bytes": 4 * GIB}, UNRUNNABLE, "121.7 GiB"),
        ("sm_90", {"weights_bytes": GIB}, UNKNOWN, "how much memory its GPUs have is not known"),
    ],
)  # fmt: skip
def test_weights_kv_cache_and_overhead_must_fit_a_gpu(node, sizes, verdict, told):
    finding = gates.memory([hypothetical_node(node)], **{"gpus_used": 1, **sizes}, source="s")
    assert (finding.verdict, finding.question) == (verdict, "memory")
    assert told in finding.reason


def test_ranks_on_one_machine_with_unified_memory_share_it():
    node = hypothetical_node("gb10", gpus=2)
    assert gates.memory([node], weights_bytes=65 * GIB, gpus_used=2, source="s").verdict is UNRUNNABLE
    assert gates.memory([node], weights_bytes=60 * GIB, gpus_used=2, source="s").verdict is RUNNABLE


def test_a_rank_on_each_of_several_nodes_has_its_node_to_itself():
    nodes = [hypothetical_node("gb10")] * 4
    assert gates.memory(nodes, weights_bytes=110 * GIB, gpus_used=1, source="s").verdict is RUNNABLE
    assert gates.memory(nodes, weights_bytes=125 * GIB, gpus_used=1, source="s").verdict is UNRUNNABLE


def test_memory_of_gpus_is_not_asked_where_there_are_none():
    assert gates.memory([Node(name="n", gpus=())], weights_bytes=GIB, gpus_used=1, source="s") is None


def test_free_memory_is_not_all_memory():
    busy = Node(name="n", memory_bytes=122 * GIB, memory_available_bytes=60 * GIB)
    idle = Node(name="n", memory_bytes=122 * GIB, memory_available_bytes=118 * GIB)
    small = Node(name="n", memory_bytes=64 * GIB, hypothetical=True)
    assert gates.free_memory([busy], 104 * GIB, source="s").verdict is UNRUNNABLE
    assert gates.free_memory([idle], 104 * GIB, source="s").verdict is RUNNABLE
    assert gates.free_memory([small], 104 * GIB, source="s").verdict is UNRUNNABLE


def test_the_disk_that_counts_is_the_one_that_holds_the_path():
    disks = (
        Disk(path="/", total_bytes=GIB, free_bytes=GIB),
        Disk(path="/data", total_bytes=400 * GIB, free_bytes=300 * GIB),
    )
    node = Node(name="n", disks=disks)
    assert gates.disk([node], 196 * GIB, path="/data/weights", source="s").verdict is RUNNABLE
    assert gates.disk([node], 196 * GIB, path="/database", source="s").verdict is UNRUNNABLE
    assert gates.disk([node], None, path="/data", source="s").verdict is UNKNOWN


def test_an_image_for_another_host_is_a_no():
    gb10 = [hypothetical_node("gb10")]
    assert gates.image_platform(gb10, ("linux/amd64",), image="i", source="s").verdict is UNRUNNABLE
    assert (
        gates.image_platform(gb10, ("linux/amd64", "linux/arm64/v8"), image="i", source="s").verdict
        is RUNNABLE
    )
    assert gates.image_platform(gb10, None, image="i", source="s").verdict is UNKNOWN


def test_numbers_of_nodes_and_gpus():
    gb10 = hypothetical_node("gb10")
    assert gates.node_count([gb10] * 3, (1, 2), source="s").verdict is UNRUNNABLE
    assert gates.node_count([gb10] * 2, (1, 2), source="s").verdict is RUNNABLE
    one = Node(name="n", gpus=(Gpu(name="g"),))
    assert gates.gpu_count([one], 2, source="s").verdict is UNRUNNABLE
    assert gates.gpu_count([hypothetical_node("h200")], 8, source="s") is None, "one may buy as many"


def test_of_several_nodes_the_worst_decides_and_is_named():
    finding = gates.sm([hypothetical_node("gb10"), hypothetical_node("v100")], SGLANG, source="s")
    assert finding.verdict is UNRUNNABLE
    assert finding.reason.startswith("on v100 ")


def test_a_server_is_a_question_of_its_own_kind():
    finding = gates.serving(available=False, reason="none", source="s", recheck_when="it has one")
    assert (finding.kind, finding.verdict, finding.recheck_when) == (Kind.SERVING, UNRUNNABLE, "it has one")


ASK = {
    "sm": lambda nodes: gates.sm(nodes, SGLANG, source="s"),
    "sm_only": lambda nodes: gates.sm_only(nodes, ("10",), source="s", why="w"),
    "host_arch": lambda nodes: gates.host_arch(nodes, ("x86_64",), source="s"),
    "cuda": lambda nodes: gates.cuda(nodes, "13.0", source="s"),
    "memory": lambda nodes: gates.memory(nodes, weights_bytes=GIB, gpus_used=1, source="s"),
    "free_memory": lambda nodes: gates.free_memory(nodes, GIB, source="s"),
    "disk": lambda nodes: gates.disk(nodes, GIB, path="/", source="s"),
    "image_platform": lambda nodes: gates.image_platform(nodes, ("linux/amd64",), image="i", source="s"),
    "gpu_count": lambda nodes: gates.gpu_count(nodes, 1, source="s"),
}


@pytest.mark.parametrize("gate", ASK)
def test_nothing_known_is_never_a_yes(gate):
    finding = ASK[gate]([BARE])
    assert finding.verdict is UNKNOWN
    assert finding.next_step, "a person who has the node is told where to look"
    dream = ASK[gate]([DREAM])
    assert dream is None or dream.verdict is UNKNOWN


@pytest.mark.parametrize("gate", ["cuda", "free_memory", "disk", "gpu_count"])
def test_what_is_no_property_of_the_hardware_is_not_asked_of_hardware_one_only_plans_to_buy(gate):
    assert ASK[gate]([DREAM]) is None


@pytest.mark.parametrize("gate", ["sm", "sm_only"])
def test_no_gpu_is_a_no(gate):
    finding = ASK[gate]([Node(name="n", gpus=())])
    assert finding.verdict is UNRUNNABLE
    assert "lanes caps" in finding.next_step


FACTS = st.builds(
    Node,
    name=st.just("n"),
    arch=st.sampled_from([None, "x86_64", "aarch64", "arm64", "riscv64"]),
    memory_bytes=st.sampled_from([None, GIB // 2, 200 * GIB]),
    memory_available_bytes=st.sampled_from([None, 0, 100 * GIB]),
    cuda=st.sampled_from([None, "12.0", "13.2"]),
    disks=st.sampled_from([(), (Disk(path="/", total_bytes=GIB, free_bytes=5 * GIB),)]),
    gpus=st.one_of(
        st.none(),
        st.lists(
            st.builds(
                Gpu,
                name=st.sampled_from(["NVIDIA GB10", "NVIDIA H200", "some GPU", "AMD Instinct MI300X"]),
                target=st.sampled_from([None, "9.0", "12.1", "gfx942", "99.9"]),
                memory_bytes=st.sampled_from([None, 100 * GIB]),
                unified=st.booleans(),
            ),
            max_size=3,
        ).map(tuple),
    ),
    hypothetical=st.booleans(),
)


@given(st.lists(FACTS, min_size=1, max_size=3), st.sampled_from(sorted(ASK)))
def test_another_node_never_makes_a_lane_better(nodes, gate):
    found = [finding for node in nodes if (finding := ASK[gate]([node])) is not None]
    together = ASK[gate](nodes)
    worst = max((f.verdict.severity for f in found), default=None)
    assert (together.verdict.severity if together else None) == worst
    for finding in itertools.chain(found, [together] if together else []):
        assert finding.reason.strip() and "\n" not in finding.reason
        assert finding.source == "s"
