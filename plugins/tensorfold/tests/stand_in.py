"""Stands in for TensorFold with the patches for DeepSeek V4.1: takes its command line, logs what it logs,
and ends as it does.

The first request is answered, and as many more as its context has room for, since it frees no pages:
then a round fails, and the rank ends with code 70. Rank 1 answers nobody.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from lanes.testing.scripted import Script, ScriptedServer

PAGE = 512
"""Tokens in a page of the KV cache."""
PAGES = 8
"""Those that a request takes, and never gives back."""


def log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def answer(context: int, number: int, _: Mapping[str, Any]) -> Script:
    if (number + 1) * PAGES * PAGE <= context:
        return Script(gap_s=0.002)
    pages = context // PAGE
    log(f"IndexError: page {pages + 1} of {pages}")
    os._exit(70)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--no-update-check", action="store_true")
    for flag in ("--host", "--name", "--master"):
        parser.add_argument(flag)
    for flag in ("--port", "--tp", "--rank", "--master-port", "--context"):
        parser.add_argument(flag, type=int)
    given = parser.parse_args(sys.argv[2:])
    log(f"[tensorfold] loading {given.name}: DeepSeek V4.1 (deepseek_v41) on CUDA, rank {given.rank} of 2")
    if given.rank == 1:
        log("[tensorfold] rank 1 ready in 0.1s, following rank 0")
        time.sleep(3600)
    with ScriptedServer(
        partial(answer, given.context),
        host=given.host,
        port=given.port,
        models=(given.name,),
        owned_by="tensorfold",
        load_s=0.2,
    ):
        log(f"[tensorfold] serving: 4 slot(s) x {given.context}")
        time.sleep(3600)


if __name__ == "__main__":
    main()
