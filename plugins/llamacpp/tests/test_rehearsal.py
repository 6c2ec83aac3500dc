"""What `lanes rehearse` tries of llama.cpp: the flags of our own server; it makes no weights up."""

from __future__ import annotations

import subprocess
from typing import Any

import attrs
import pytest
from lanes.types import Lane, Launch, Process
from lanes_llamacpp import servers
from lanes_llamacpp.engine import lanes_rehearsal

LANE = Lane(name="toy", engine="llamacpp")


def launch(*words: str) -> Launch:
    return Launch(processes=(Process(rank=0, argv=words),))


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--frobnicate",), 2)])
def test_our_own_server_reads_its_flags_and_does_no_more(more: tuple[str, ...], code: int) -> None:
    own = servers.bundled().argv
    plan: Any = lanes_rehearsal(LANE, launch(*own, "-m", "/no/such.gguf", "-c", "4096", *more))
    ran = subprocess.run(plan.flags[0].argv, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    assert code == 0 or "--frobnicate" in ran.stderr


def test_what_llama_cpp_does_not_have_is_said() -> None:
    plan = lanes_rehearsal(LANE, launch("/usr/bin/llama-server", "-m", "x.gguf"))
    assert all(isinstance(one, str) for one in attrs.astuple(plan, recurse=False)[:3])
