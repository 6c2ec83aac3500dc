"""Stands in for TensorFold with the patches for DeepSeek V4.1: takes its command line, logs what it logs,
and ends as it does.

The first request is answered; the second fails a round, and the rank ends with code 70. Rank 1 answers
nobody.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from lanes.testing.scripted import Script, ScriptedServer


def log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def answer(number: int, _: Mapping[str, Any]) -> Script:
    if number == 0:
        return Script(tokens=4)
    log("IndexError: page 9 of 8")
    os._exit(70)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model")
    for flag in ("--host", "--name", "--master"):
        parser.add_argument(flag)
    for flag in ("--port", "--tp", "--rank", "--master-port", "--context"):
        parser.add_argument(flag, type=int)
    given = parser.parse_args(sys.argv[2:])
    log(f"[tensorfold] loading {given.name}: DeepSeek V4.1 (deepseek_v41) on CUDA, rank {given.rank} of 2")
    if given.rank == 1:
        log("[tensorfold] rank 1 ready in 0.1s, following rank 0")
        time.sleep(3600)
    with ScriptedServer(answer, port=given.port, models=(given.name,), owned_by="tensorfold", load_s=0.2):
        log(f"[tensorfold] serving: 4 slot(s) x {given.context}")
        time.sleep(3600)


if __name__ == "__main__":
    main()
