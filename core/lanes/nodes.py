"""The node that a lane runs on: this machine."""

from __future__ import annotations

import os
import platform

from lanes.types import Node


def local() -> Node:
    """This machine, as the operating system tells it."""
    import psutil

    return Node(
        name=platform.node() or "localhost",
        arch=platform.machine(),
        os=platform.system().lower(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
    )
