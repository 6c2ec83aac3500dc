"""Which code runs where: NVIDIA's rules and AMD's, case by case, and what they say of whole libraries."""

from __future__ import annotations

import itertools
import re

import pytest
from lanes.hardware.gpus import GPUS
from lanes.hardware.library import Library, Problem, Scan
from lanes.hardware.rules import Code, CodeKind, runs_on
from lanes.hardware.targets import parse_target
from lanes.hardware.verdict import verdict

YES, NO, UNKNOWN = "runnable", "unrunnable", "unknown"


def code(name):
    if name.startswith("gfx"):
        return Code(kind=CodeKind.AMD, arch=name)
    kind, arch, suffix = re.fullmatch(r"(sm|compute|lto)_(\d+)([af]?)", name).groups()
    return Code(
        kind={"sm": CodeKind.SASS, "compute": CodeKind.PTX, "lto": CodeKind.LTO}[kind],
        arch=arch,
        suffix=suffix,
    )


def library(name, codes, machine="aarch64"):
    return Library(
        file="x.whl", member=name, machine=machine, codes=tuple((code(c), 1) for c in codes.split())
    )


RULES = """
sm_80       a100 yes    exact
sm_80       a10 yes     a higher minor of the same major
sm_80       l4 yes      a higher minor of the same major
sm_86       a100 no     a lower minor
sm_89       a10 no      a lower minor
sm_80       h100 no     another major
sm_90       b200 no     another major
sm_100      b300 yes    a higher minor of the same major
sm_103      b200 no     a lower minor
sm_100      rtx5090 no  another major
sm_120      rtx5090 yes exact
sm_121      gb10 yes    exact
sm_121      rtx5090 no  a lower minor
sm_120      gb10 unknown    likely and unproven
sm_120      sm_121 unknown  likely and unproven
sm_87       orin yes    exact
sm_86       orin unknown    Tegra
sm_80       orin unknown    Tegra
sm_89       orin unknown    Tegra
sm_87       l4 unknown      Tegra
sm_75       orin no     another major
sm_110      thor yes    exact
sm_101      thor unknown    CUDA 12 called Thor so
sm_100      thor no     another major
sm_90a      h200 yes    exact
sm_90a      b200 no     a is for one capability
sm_100a     b200 yes    exact
sm_100a     b300 no     a is for one capability
sm_120a     gb10 no     a is for one capability
sm_121a     gb10 yes    exact
sm_121a     rtx5090 no  a is for one capability
sm_100f     b200 yes    family
sm_100f     b300 yes    family
sm_100f     gb10 no     another family
sm_103f     b200 no     another family
sm_103f     b300 yes    family
sm_110f     thor yes    family
sm_110f     b200 no     another family
sm_120f     rtx5090 yes family
sm_120f     gb10 yes    family
sm_121f     rtx5090 no  another family
compute_80  h200 yes    compiled at load
compute_80  gb10 yes    compiled at load
compute_90  a100 no     PTX goes forward only
compute_120 gb10 yes    compiled at load
compute_90a h200 yes    exact
compute_90a b200 no     a is for one capability
compute_100f b300 yes   family
compute_100f gb10 no    another family
compute_80  orin yes    compiled at load
lto_90      h200 unknown    waits for a linker
gfx942      mi300x yes  exact
gfx942      mi325x yes  exact
gfx942:sramecc+:xnack- mi300x unknown   a feature that must be on
gfx942:xnack- mi300x yes    exact
gfx950      mi300x no   another target
gfx90a      mi300x no   another target
gfx1100     gfx1101 no  another target
gfx9-4-generic mi300x unknown   a generic target
gfx942      h200 no     another maker
sm_90       mi300x no   another maker
"""


@pytest.mark.parametrize("rule", RULES.strip().splitlines())
def test_rules(rule):
    name, arch, expected, _ = rule.split(None, 3)
    answer = runs_on(code(name), parse_target(arch))
    assert answer.verdict.value == {"yes": YES, "no": NO, "unknown": UNKNOWN}[expected], answer
    assert answer.reason


def test_every_pair_of_code_and_gpu_has_an_answer_with_a_reason():
    numbers = (
        "50",
        "70",
        "75",
        "80",
        "86",
        "87",
        "89",
        "90",
        "100",
        "101",
        "103",
        "110",
        "120",
        "121",
        "130",
    )
    names = [
        f"{kind}_{number}{suffix}"
        for kind, number, suffix in itertools.product(("sm", "compute"), numbers, ("", "a", "f"))
    ]
    for name, gpu in itertools.product((*names, "gfx942", "gfx1151"), GPUS):
        answer = runs_on(code(name), parse_target(gpu.name))
        assert answer.reason
        # A cubin of a higher capability never runs, whatever the suffix; `>=` alone would say yes below.
        if name.startswith("sm_") and gpu.vendor == "nvidia" and answer.verdict.value == YES:
            assert code(name).capability.partition(".")[0] == gpu.capability.partition(".")[0]


def test_ptx_runs_on_a_condition_that_is_told():
    assert "driver" in runs_on(code("compute_80"), parse_target("h200")).condition


def test_only_plain_code_of_the_elder_on_gb10_is_likely_and_unproven_and_says_why():
    answer = runs_on(code("sm_120"), parse_target("gb10"))
    assert answer.verdict.value == UNKNOWN
    for word in ("likely", "unproven", "illegal instruction"):
        assert word in answer.reason


# -- Libraries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "codes, arch, expected, words",
    [
        ("sm_90 sm_120", "gb10", UNKNOWN, ("likely", "unproven", "sm_120")),
        ("sm_120 compute_120", "gb10", UNKNOWN, ("unproven",)),
        ("sm_120f", "gb10", YES, ("sm_120f", "family")),
        ("sm_120 sm_120f", "gb10", YES, ("sm_120f", "family", "nothing better", "unproven")),
        ("sm_120 sm_121a", "gb10", YES, ("sm_121a", "nothing better", "unproven")),
        ("sm_90 sm_100f sm_120a sm_121a", "gb10", YES, ("sm_121a",)),
        ("sm_90 sm_120a", "gb10", NO, ("sm_120a", "12.0 alone")),
        ("sm_80 sm_90a", "gb10", NO, ("sm_80", "sm_90a")),
        ("sm_80 compute_80", "gb10", YES, ("compute_80", "PTX")),
        ("sm_86", "orin", UNKNOWN, ("Tegra",)),
        ("sm_80 sm_120a", "rtx5090", YES, ("sm_120a",)),
        ("", "gb10", UNKNOWN, ("no library holds code",)),
        ("compute_80", "h200", YES, ("PTX",)),
        ("compute_120", "h200", UNKNOWN, ("no machine code",)),
        ("compute_90a", "b200", UNKNOWN, ("no machine code",)),
        ("gfx942", "h200", UNKNOWN, ("no library holds code",)),
        ("gfx90a gfx942", "mi300x", YES, ("gfx942",)),
        ("gfx90a", "mi300x", NO, ("gfx90a",)),
    ],
)  # fmt: skip
def test_what_one_library_decides(codes, arch, expected, words):
    judged = verdict(Scan(libraries=(library("x.so", codes),)), parse_target(arch))
    finding = next(finding for finding in judged.findings if finding.question == "sm")
    assert finding.verdict.value == expected, finding
    for word in words:
        assert word in finding.reason
    assert finding.evidence.value == "probed"
    assert finding.source


BACKENDS = Scan(
    libraries=(
        library("pkg/common_ops.abi3.so", "sm_90 sm_121a"),
        library("pkg/flashmla.abi3.so", "sm_90a sm_100f"),
        library("pkg/plain.abi3.so", "sm_120"),
        library("pkg/python.so", ""),
    )
)


@pytest.mark.parametrize(
    "deciding, expected, named",
    [
        (["*common_ops*"], YES, "common_ops"),
        (["common_ops.abi3.so"], YES, "common_ops"),
        (["pkg/common_ops.abi3.so"], YES, "common_ops"),
        (["*flashmla*"], NO, "flashmla"),
        (["*common_ops*", "*plain*"], UNKNOWN, "plain"),
        (["*common_ops*", "*plain*", "*flashmla*"], NO, "flashmla"),
        (["*python*"], UNKNOWN, "python"),
        (["*nothing*"], UNKNOWN, "*nothing*"),
    ],
)
def test_only_the_libraries_that_are_loaded_decide_and_the_worst_of_them_is_named(deciding, expected, named):
    judged = verdict(BACKENDS, parse_target("gb10"), deciding)
    assert judged.findings[0].verdict.value == expected
    assert named in judged.findings[0].reason
    decide = {one.library.name for one in judged.libraries if one.decides}
    assert len(judged.libraries) == 4, "the others inform"
    assert "pkg/python.so" not in decide or deciding == ["*python*"]


def test_where_libraries_disagree_and_nobody_says_which_are_loaded_it_is_unknown():
    finding = verdict(BACKENDS, parse_target("gb10")).findings[0]
    assert finding.verdict.value == UNKNOWN
    assert "disagree" in finding.reason
    assert "--decides" in finding.next_step


def test_code_files_that_a_program_picks_from_never_say_no():
    data = Scan(libraries=(library("k.cubin", "sm_90a", machine=None),))
    assert verdict(data, parse_target("gb10")).findings[0].verdict.value == UNKNOWN


@pytest.mark.parametrize("member, deciding, expected", [
    ("pkg/other.so", ["*common_ops*"], YES),
    ("pkg/common_ops2.so", ["*common_ops*"], UNKNOWN),
    (None, ["*common_ops*"], UNKNOWN),
    ("pkg/other.so", None, UNKNOWN),
])  # fmt: skip
def test_what_could_not_be_read_may_have_decided(member, deciding, expected):
    scan = Scan(
        libraries=(BACKENDS.libraries[0],), problems=(Problem(file="x.whl", member=member, reason="cut off"),)
    )
    assert verdict(scan, parse_target("gb10"), deciding).findings[0].verdict.value == expected


@pytest.mark.parametrize("machine, arch, expected", [
    ("x86_64", "gb10", NO), ("aarch64", "gb10", YES), ("x86_64", "rtx5090", None), ("aarch64", "h200", None), (None, "gb10", None),
])  # fmt: skip
def test_a_build_for_another_host_is_a_finding_of_its_own(machine, arch, expected):
    judged = verdict(Scan(libraries=(library("x.so", "sm_121a sm_120a sm_90", machine),)), parse_target(arch))
    found = [finding.verdict.value for finding in judged.findings if finding.question == "host_arch"]
    assert found == ([expected] if expected else [])
