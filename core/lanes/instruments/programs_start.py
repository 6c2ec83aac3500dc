"""Start a program of others in its own interpreter: `python programs_start.py COMMAND ARGUMENTS`.

It knows nothing of lanes, for it runs where lanes is not installed. It asks the system to interrupt the program
when lanes dies; hands an API key over without a trace in the list of processes; and has llama-benchy send a request
anew when the server had closed the idle connection, as HTTP clients do for requests that can be repeated:
llama.cpp announces that it keeps connections, and closes them after each stream.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    key = os.environ.pop("LANES_PROGRAM_KEY", None)
    if os.path.basename(script) == "llama-benchy":
        if key:
            sys.argv += ["--api-key", key]
        client = importlib.import_module("aiohttp.client")
        methods = getattr(client, "IDEMPOTENT_METHODS", None)
        if isinstance(methods, frozenset):
            client.__dict__["IDEMPOTENT_METHODS"] = methods | {"POST"}
    # The script's folder comes first in the path, as it does when a script is started.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


main()
