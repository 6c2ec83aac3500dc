"""Stands in for SGLang: takes its command line, logs what it logs, and dies as it does.

The first request is answered; the second one exceeds the Engram budget. Rank 1 answers /health as
SGLang's does, from a server that stands for nothing, and waits for its end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from lanes.testing.scripted import Script, ScriptedServer
from lanes_sglang import flags


def log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def answer(number: int, _: Mapping[str, Any]) -> Script:
    if number == 0:
        return Script(tokens=4)
    log("RuntimeError: engram layer 1: a lookup of 190608 ids exceeds SPARK_ENGRAM_MAX_IDS=131072")
    log("Received sigquit from a child process. It usually means the child failed.")
    os._exit(1)


def main() -> None:
    settings = flags.read(sys.argv[2:])
    if sys.argv[1] != "serve" or settings.problems:
        sys.exit(f"sglang: error: unrecognized arguments: {settings.problems}")
    rank, port = settings.number("node_rank") or 0, settings.number("port") or 0
    log(f"[TP{rank}] Load weight begin. avail mem=117.31 GB")
    if rank > 0:
        time.sleep(3600)
    served = settings.text("served_model_name") or ""
    with ScriptedServer(answer, port=port, models=(served,), owned_by="sglang", load_s=0.3):
        log("[TP0] Load weight end. elapsed=0.30 s, type=Toy, avail mem=40.11 GB, mem usage=77.20 GB.")
        log("[TP0] max_total_num_tokens=9180000, chunked_prefill_size=8192")
        log("The server is fired up and ready to roll!")
        time.sleep(3600)


if __name__ == "__main__":
    main()
