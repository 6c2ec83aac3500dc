"""The keeper of a lane's claims: gives signs of life on the nodes for as long as the lane lives.

It lives while its owner does, and after that (the lane was left serving, or `lanes` was killed) while a
process of the lane does. It lets go of nothing: a claim whose keeper is gone is what tells the next
command that something is to be cleaned up.

Started as `python -P -m lanes.claim_keeper FOLDER OWNER_FD`; OWNER_FD is as in `executors/keeper.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from lanes import claims
from lanes.executors import keeper, process

POLL_S = 1.0


def keep(folder: Path, owner: int | None) -> None:
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    # Its connections end with it, and what they left on disk is to go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    beaten = time.monotonic()
    while owner is not None or _lives(folder):
        ready, _, _ = select.select([owner] if owner is not None else [], [], [], POLL_S)
        if owner is not None and ready:
            os.close(owner)
            owner = None
        if time.monotonic() - beaten > claims.BEAT_S:
            beaten = time.monotonic()
            # Apart, so that a node that does not answer does not keep us from seeing the lane's end.
            threading.Thread(target=claims.beat, args=(folder,), daemon=True).start()


def _lives(folder: Path) -> bool:
    """Whether a rank's keeper lives; only when none does is every process looked at."""
    for file in folder.glob("rank*/pid.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            pids = json.loads(file.read_text(encoding="utf-8"))
            found = keeper.stat(pids["keeper"])
            if found is not None and found[0] not in "ZX" and found[-1] == pids["keeper_born"]:
                return True
    return bool(process.survivors(folder))


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
