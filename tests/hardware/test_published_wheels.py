"""What published wheels hold: the same as NVIDIA's own tool finds, and as the table of facts says.

These fetch packages from the registry: one wheel at a time, deleted once it was looked at.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from lanes.hardware.scan import scan
from lanes.hardware.targets import parse_target
from lanes.hardware.verdict import verdict

pytestmark = pytest.mark.download

MANYLINUX = ("2014", "_2_17", "_2_24", "_2_27", "_2_28", "_2_31", "_2_34", "_2_35")


def fetch(folder: Path, requirement: str, machine: str = "x86_64") -> Path:
    """The wheel of a package, for whatever machine; a test that cannot have it fails."""
    platforms = [word for tag in MANYLINUX for word in ("--platform", f"manylinux{tag}_{machine}")]
    folder.mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version",
         "3.12", "--dest", str(folder), *platforms, requirement],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    wheels = list(folder.glob("*.whl"))
    assert len(wheels) == 1, f"{requirement} for {machine} could not be downloaded: {ran.stderr}"
    return wheels[0]


@pytest.fixture
def wheel(tmp_path):
    """Fetch a wheel for one test."""
    fetched = []

    def get(requirement, machine="x86_64"):
        fetched.append(fetch(tmp_path / f"wheel{len(fetched)}", requirement, machine))
        return fetched[-1]

    yield get
    for path in fetched:
        path.unlink()


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    """NVIDIA's tools as triton's wheel carries them; fetched once, however many processes run the tests.

    This triton has those of CUDA 12.8. Those of CUDA 13.1 give up on libraries of CUDA 12.1 ("Invalid ELF").
    """
    base = tmp_path_factory.getbasetemp()
    tools = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cuda-tools"
    tools.mkdir(exist_ok=True)
    with (tools / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (tools / "ptxas-blackwell").exists():
            path = fetch(tools / "wheel", "triton==3.3.1")
            with zipfile.ZipFile(path) as archive:
                for name in ("cuobjdump", "ptxas-blackwell"):
                    (tools / name).write_bytes(archive.read(f"triton/backends/nvidia/bin/{name}"))
                    (tools / name).chmod(0o755)
            path.unlink()

    def run(name, *words):
        ran = subprocess.run([tools / name, *words], capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


def test_bitsandbytes_holds_what_cuobjdump_lists_and_ptx_that_it_passes_over(wheel, cuda, tmp_path):
    path = wheel("bitsandbytes==0.50.2")
    compared = 0
    for library in scan([path]).libraries:
        if "cuda" not in library.name:
            continue
        found = {
            (kind, linked): Counter({c.name.split()[0]: n for c, n in library.codes if c.kind.value == kind and c.relocatable is not linked})
            for kind in ("sass", "ptx")
            for linked in (True, False)
        }  # fmt: skip
        with zipfile.ZipFile(path) as archive:
            unpacked = archive.extract(library.name, tmp_path)
        listed = Counter(re.findall(r"\.(sm_\d+[af]?)\.cubin", cuda("cuobjdump", "--list-elf", unpacked)))
        assert found["sass", True] == listed, library.name
        every = Counter(
            re.findall(r"\.(sm_\d+[af]?)\.cubin", cuda("cuobjdump", "-all", "--list-elf", unpacked))
        )
        assert found["sass", True] + found["sass", False] == every, library.name
        assert ".ptx" not in cuda("cuobjdump", "--list-ptx", unpacked)
        newest = max(listed, key=lambda name: int(name[3:]))
        assert found["ptx", False] == {newest.replace("sm", "compute"): 6}, library.name
        os.remove(unpacked)
        compared += 1
    assert compared == 7


AMD = {
    "gfx908",
    "gfx90a",
    "gfx942",
    "gfx1030",
    "gfx1100",
    "gfx1101",
    "gfx1102",
    "gfx1103",
    "gfx1150",
    "gfx1151",
    "gfx1200",
    "gfx1201",
}


def test_bitsandbytes_holds_amd_code(wheel):
    pytest.importorskip("zstandard")
    libraries = {
        one.name: {code.name for code, _ in one.codes}
        for one in scan([wheel("bitsandbytes==0.50.2")]).libraries
    }
    amd = {name: codes for name, codes in libraries.items() if "rocm" in name}
    assert len(amd) == 6
    assert all(codes >= AMD for codes in amd.values())


@pytest.mark.parametrize(
    "target", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120", "sm_120a"]
)
def test_a_fresh_cubin_is_for_what_it_was_compiled_for(cuda, tmp_path, target):
    (tmp_path / "k.ptx").write_text(
        f".version 8.7\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
    )
    cuda("ptxas-blackwell", "-arch", target, str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.cubin"))
    (library,) = scan([tmp_path / "k.cubin"]).libraries
    assert [code.name for code, _ in library.codes] == [target]


# -- Engines ----------------------------------------------------------------------------------------

SGL_X86 = "sm_80 sm_89 sm_90 sm_90a sm_100f sm_120a"
SGL_ARM = "sm_90 sm_100f sm_110a sm_120a sm_121a"
VLLM_BOTH = {
    "_deepselect_C": "sm_100f",
    "_flashkda_C": "sm_90a sm_100f sm_120f",
    "_flashmla_C": "sm_90a sm_100f",
    "_flashmla_extension_C": "sm_90a sm_100f",
    "_qutlass_C": "sm_100f",
    "_vllm_fa2_C": "sm_80 compute_80",
    "_vllm_fa3_C": "sm_90a",
}
HOLDS = {
    ("sglang-kernel==0.4.10", "x86_64"): {
        "sm90/common_ops": SGL_X86,
        "sm100/common_ops": SGL_X86,
        "flash_ops": "sm_80 sm_86 sm_90a",
        "flashmla_ops": "sm_90a sm_100f sm_103a",
        "infllm_ops": "sm_80 sm_90 sm_120a",
        "spatial_ops": SGL_X86,
    },
    ("sglang-kernel==0.4.10", "aarch64"): {
        "sm90/common_ops": SGL_ARM,
        "sm100/common_ops": SGL_ARM,
        "flashmla_ops": "sm_90a sm_100f sm_103a",
        "infllm_ops": "sm_90 sm_120a",
        "spatial_ops": SGL_ARM,
    },
    ("vllm==0.33.0", "x86_64"): {
        **VLLM_BOTH,
        "_C_stable_libtorch": "sm_75 sm_80 sm_86 sm_89 sm_90 sm_90a sm_100 sm_100f sm_120 sm_120f compute_80 compute_89 compute_90",
        "_moe_C_stable_libtorch": "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 sm_120f compute_80",
    },
    ("vllm==0.33.0", "aarch64"): {
        **VLLM_BOTH,
        "_C_stable_libtorch": "sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_100f sm_110 sm_110f sm_120 sm_120f "
        "compute_80 compute_89 compute_90",
        "_moe_C_stable_libtorch": "sm_80 sm_87 sm_89 sm_90 sm_100 sm_110 sm_120 sm_120f compute_80",
    },
}  # fmt: skip

YES, NO, UNKNOWN = "runnable", "unrunnable", "unknown"
BY_FAMILY = "the suffix f covers the family 12.0 and 12.1: sm_120f on sm_121 (GB10)"
VERDICTS = {
    ("sglang-kernel==0.4.10", "x86_64"): [
        ("rtx5090", "*common_ops*", YES, "sm_120a is made for sm_120 (RTX 5090)"),
        ("gb10", "*common_ops*", NO, "sm_120a runs on 12.0 alone"),
        ("h200", "*flash_ops*", YES, "sm_90a is made for sm_90"),
        ("rtx5090", "*flash_ops*", NO, "none of its code (sm_80, sm_86, sm_90a) runs"),
        ("b300", "*flashmla*", YES, "sm_103a is made for sm_103"),
    ],
    ("sglang-kernel==0.4.10", "aarch64"): [
        ("gb10", "*common_ops*", YES, "sm_121a is made for sm_121 (GB10)"),
        ("gb10", "*spatial_ops*", YES, "sm_121a is made for sm_121 (GB10)"),
        ("gb10", "*flashmla*", NO, "none of its code"),
        ("gb10", None, UNKNOWN, "the libraries disagree"),
        ("thor", "*common_ops*", YES, "sm_110a is made for sm_110"),
        ("orin", "*common_ops*", NO, "none of its code"),
    ],
    ("vllm==0.33.0", "x86_64"): [
        ("rtx5090", "*_C_stable_libtorch*", YES, "sm_120f is made for sm_120"),
        ("h200", "*fa3*", YES, "sm_90a is made for sm_90"),
        ("t4", "*fa2*", NO, "none of its code"),
        ("rtx5090", "*fa2*", YES, "PTX is compiled forward at load: compute_80"),
    ],
    ("vllm==0.33.0", "aarch64"): [
        ("gb10", "_C_stable_libtorch*", YES, BY_FAMILY),
        ("gb10", "_moe_C_stable_libtorch*", YES, BY_FAMILY),
        ("gb10", "_flashkda_C*", YES, BY_FAMILY),
        ("gb10", "_vllm_fa2_C*", YES, "PTX is compiled forward at load: compute_80"),
        ("gb10", "_vllm_fa3_C*", NO, "sm_90a runs on 9.0 alone"),
        ("gb10", "_flashmla_*", NO, "none of its code (sm_90a, sm_100f)"),
        ("gb10", "_qutlass_C*", NO, "none of its code (sm_100f)"),
        ("gb10", "_deepselect_C*", NO, "none of its code (sm_100f)"),
        ("orin", "_C_stable_libtorch*", YES, "sm_87 is made for sm_87"),
        ("orin", "_vllm_fa2_C*", UNKNOWN, "Tegra"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("requirement, machine", HOLDS, ids=lambda value: value)
def test_an_engines_wheel_holds_what_the_table_of_facts_says(wheel, requirement, machine):
    found = scan([wheel(requirement, machine)])
    assert found.problems == ()
    libraries = {
        one.name: " ".join(code.name for code, _ in one.codes) for one in found.libraries if one.codes
    }
    expected = HOLDS[requirement, machine]
    assert len(libraries) == len(expected)
    for name, codes in expected.items():
        assert [held for path, held in libraries.items() if f"/{name}." in path] == [codes], name
    assert {one.machine for one in found.libraries} == {machine}
    for arch, decides, expected_verdict, words in VERDICTS[requirement, machine]:
        finding = verdict(found, parse_target(arch), [decides] if decides else None).findings[0]
        assert (finding.verdict.value, words in finding.reason) == (expected_verdict, True), (
            arch,
            decides,
            finding,
        )
    if (requirement, machine) == ("vllm==0.33.0", "aarch64"):
        # Its pieces differ: what has 120f runs by the rule, what has plain 120 only is likely and unproven.
        finding = verdict(found, parse_target("gb10"), ["_C_stable_libtorch*"]).findings[0]
        assert "where a piece holds nothing better" in finding.reason and "unproven" in finding.reason
