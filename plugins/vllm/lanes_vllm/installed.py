"""The vLLM of this Python environment, looked up without importing it."""

from __future__ import annotations

import importlib.metadata


def version() -> str | None:
    """Its version; None when it is not installed."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
