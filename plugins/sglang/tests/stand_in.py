"""Stands in for SGLang: takes its command line, logs what it logs, and dies as it does.

The first request is answered, and so are all others unless their chunks exceed the Engram budget: the
second one then does. Ranks but the first wait for their end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from lanes.testing.scripted import Script, ScriptedServer
from lanes_sglang import flags


def log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def answer(ids: int, number: int, _: Mapping[str, Any]) -> Script:
    budget = int(os.environ.get("SPARK_ENGRAM_MAX_IDS", "262144"))
    if number == 0 or ids <= budget:
        return Script(gap_s=0.002)
    log(f"RuntimeError: engram layer 1: a lookup of {ids} ids exceeds SPARK_ENGRAM_MAX_IDS={budget}")
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
    ids = 24 * (settings.number("chunked_prefill_size") or 8192)
    with ScriptedServer(
        partial(answer, ids),
        host=settings.text("host") or "127.0.0.1",
        port=port,
        models=(served,),
        owned_by="sglang",
        load_s=0.3,
    ):
        log("[TP0] Load weight end. elapsed=0.30 s, type=Toy, avail mem=40.11 GB, mem usage=77.20 GB.")
        log("[TP0] max_total_num_tokens=9180000, chunked_prefill_size=8192")
        log("The server is fired up and ready to roll!")
        time.sleep(3600)


if __name__ == "__main__":
    main()
