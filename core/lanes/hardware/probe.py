"""What does a node have? Every value with where it was seen.

`local_node` reads the files of this machine; `remote_node` has one shell script run by a callable, over
SSH for instance. Both gather texts by name (`Gathered`), and
`node_facts.node_from` makes a Node of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lanes.hardware import amd_kfd, nvidia_smi, nvml
from lanes.hardware.node_facts import Gathered, node_from
from lanes.types import Disk, Node

Run = Callable[[Sequence[str]], str]
"""Run an argv and give its stdout; raises OSError or subprocess.SubprocessError where that fails."""

REAP_S = 1.0
GPU_TIMEOUT_S = 15.0
"""How long a driver may take to answer; a healthy one needs about a second without persistence mode."""
_TOO_LATE = f"it did not answer within {GPU_TIMEOUT_S:.0f} s"

SIGNS_OF_NVIDIA = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""What is there when a driver is loaded: server and desktop, container, Jetson, Windows' Linux."""


def local_node(name: str = "local", *, paths: Sequence[str] = ("/", "~", "/tmp")) -> Node:
    """This machine. `paths` are the folders whose free space matters. Never hangs, never raises.

    Starts a process only where there are signs of an NVIDIA driver.
    """
    texts = {
        "uname -m": platform.machine(),
        "uname -sr": f"{platform.system()} {platform.release()}",
        "nproc": str(_usable_cpus()),
    }
    failures: dict[str, str] = {}
    for path in ("/proc/meminfo", "/etc/os-release"):
        try:
            texts[path] = Path(path).read_text(errors="replace")
        except OSError as error:
            failures[path] = error.strerror or str(error)
    docker = shutil.which("docker")
    if docker:
        texts["docker"] = docker
    texts |= _kfd_texts(Path(amd_kfd.TOPOLOGY))
    if any(os.path.exists(sign) for sign in SIGNS_OF_NVIDIA):
        _ask_nvidia(texts, failures)
    # In a process of its own too: asking for the space on a dead network drive hangs.
    told, why = _bounded(["df", "-Pk", "--", *map(os.path.expanduser, paths)], partial=True)
    if not told:
        failures["df"] = why or "it prints nothing"
    return node_from(name, Gathered(texts=texts, failures=failures, disks=tuple(_df_disks(told))))


def remote_node(name: str, run: Run, *, paths: Sequence[str] = ("/", "/tmp")) -> Node:
    """A node where `run` starts processes: one call, however many facts.

    Raises what `run` raises: a node that cannot be reached is not a node without GPUs.
    """
    return node_from(name, parse_script(run(["sh", "-c", SCRIPT, "lanes-probe", *paths])))


# Each section starts with a line "@@ name"; what a node lacks leaves its section empty.
SCRIPT = f"""
section() {{ printf '\\n@@ %s\\n' "$1"; }}
limit() {{ if command -v timeout >/dev/null 2>&1; then timeout -k 1 {GPU_TIMEOUT_S:.0f} "$@"; else "$@"; fi; }}
section 'uname -m'; uname -m
section 'uname -sr'; uname -sr
section nproc; nproc 2>/dev/null || getconf _NPROCESSORS_ONLN
section /proc/meminfo; cat /proc/meminfo 2>/dev/null
section /etc/os-release; cat /etc/os-release 2>/dev/null
section docker; command -v docker
section df; limit df -Pk -- "$@" 2>/dev/null
for node in {amd_kfd.TOPOLOGY}/*; do
  [ -r "$node/properties" ] || continue
  section "$node/properties"; cat "$node/properties" 2>/dev/null
  for bank in "$node"/mem_banks/*/properties; do [ -r "$bank" ] && {{ section "$bank"; cat "$bank"; }}; done
done
if command -v nvidia-smi >/dev/null 2>&1; then
  section nvidia-smi
  limit {" ".join(nvidia_smi.ARGV)} 2>&1 || printf '\\nfailed: exit %s\\n' $?
  section 'nvidia-smi --version'; limit {" ".join(nvidia_smi.VERSION_ARGV)} 2>/dev/null
else
  for sign in {" ".join(SIGNS_OF_NVIDIA)}; do
    [ -e "$sign" ] && {{ section nvidia-smi; echo 'failed: exit 127'; break; }}
  done
fi
exit 0
"""


def parse_script(text: str) -> Gathered:
    """The answers of SCRIPT."""
    texts: dict[str, str] = {}
    for part in f"\n{text}".split("\n@@ ")[1:]:
        name, _, body = part.partition("\n")
        if body.strip():
            texts[name] = body.strip("\n")
    failures = {}
    if "\nfailed: exit " in "\n" + texts.get("nvidia-smi", ""):
        output, _, code = ("\n" + texts["nvidia-smi"]).rpartition("\nfailed: exit ")
        timed_out = code.strip() in ("124", "137")
        failures["nvidia-smi"] = (
            _TOO_LATE if timed_out else f"exit {code.strip()}: {' '.join(output.split())[:300]}"
        )
    return Gathered(texts=texts, failures=failures, disks=tuple(_df_disks(texts.pop("df", ""))))


def _ask_nvidia(texts: dict[str, str], failures: dict[str, str]) -> None:
    """NVML in a child process; nvidia-smi where that brings no GPU."""
    # By its path and with -P, so that nothing in the current folder can stand in for what it imports.
    answer, why = _bounded([sys.executable, "-P", nvml.__file__])
    if not why:
        try:
            told = json.loads(answer)
            why = told.get("error")
        except (ValueError, AttributeError):
            told, why = {}, f"it printed no JSON: {answer[:200]!r}"
        if told.get("gpus"):
            texts["nvml"] = answer
            return
    failures["nvml"] = why or "it lists no GPU"
    if why == _TOO_LATE:
        return  # nvidia-smi asks the same driver
    if not shutil.which("nvidia-smi"):
        return
    answer, why = _bounded(list(nvidia_smi.ARGV))
    if why:
        failures["nvidia-smi"] = why
        return
    texts["nvidia-smi"] = answer
    texts["nvidia-smi --version"] = _bounded(list(nvidia_smi.VERSION_ARGV))[0]


def _bounded(argv: list[str], *, partial: bool = False) -> tuple[str, str]:
    """Stdout of a process, and why there is none. A process stuck in the kernel is left behind.

    `partial` output counts although the process failed.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return "", error.strerror or str(error)
    try:
        output, errors = process.communicate(timeout=GPU_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # With what it started itself; it leads its own group.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REAP_S)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
        return "", _TOO_LATE
    if process.returncode and not partial:
        return "", f"exit {process.returncode}: {' '.join((errors or output).split())[:300]}"
    return output, ""


def _usable_cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _kfd_texts(topology: Path) -> dict[str, str]:
    texts = {}
    for path in sorted([*topology.glob("*/properties"), *topology.glob("*/mem_banks/*/properties")]):
        # The kernel refuses some nodes to ordinary users.
        with contextlib.suppress(OSError):
            texts[str(path)] = path.read_text(errors="replace")
    return texts


def _df_disks(text: str) -> Iterator[Disk]:
    """Disks from `df -Pk`; one per mount point."""
    seen = set()
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[1].isdigit() and words[3].isdigit() and words[5] not in seen:
            seen.add(words[5])
            yield Disk(path=words[5], total_bytes=int(words[1]) * 1024, free_bytes=int(words[3]) * 1024)
