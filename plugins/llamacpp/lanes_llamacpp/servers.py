"""Which server will run: the user's `llama-server`, or xllamacpp in a child of ours."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from pathlib import Path

from attrs import frozen

from lanes_llamacpp.options import LlamaOptions


@frozen(kw_only=True)
class Server:
    """How to start it (`argv` without options), what to call it, and its version where that is known
    without starting it."""

    argv: tuple[str, ...]
    title: str
    version: str | None = None
    native: bool


def find(options: LlamaOptions) -> Server | None:
    """The server that these options lead to on this machine, or None when there is none."""
    path = shutil.which(str(Path(options.server or "llama-server").expanduser()))
    if path is not None:
        return Server(argv=(path,), title=f"llama-server at {path}", native=True)
    if options.server is not None or importlib.util.find_spec("xllamacpp") is None:
        return None
    return bundled()


def bundled() -> Server:
    """The server that comes with the plugin."""
    # -P: the folder that a person happens to stand in must not supply modules.
    argv = (sys.executable, "-P", "-m", "lanes_llamacpp.server")
    version = xllamacpp_version()
    return Server(argv=argv, title=f"xllamacpp {version or ''}".strip(), version=version, native=False)


def xllamacpp_version() -> str | None:
    """The version of xllamacpp, found without importing it; None when it is not installed."""
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return None
