"""The flags of vLLM 0.33, as its parser knew them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanes.flags import Fault, Flag, Parser, Problem, Settings

__all__ = ["VERSION", "Fault", "Flag", "Problem", "Settings", "known", "read"]

VERSION = "0.33.0"
"""The version whose parser the snapshot was taken from."""

_PARSER = Parser(
    program="vLLM",
    version=VERSION,
    data="lanes_vllm.data",
    sizes=frozenset({"-1", "auto"}),
    json_keys=True,
    appended=frozenset({"middleware"}),
)


def known() -> Mapping[str, Flag]:
    """All option strings of the snapshot."""
    return _PARSER.known


def read(arguments: Sequence[str]) -> Settings:
    """Read a command line (without the program) as vLLM's parser would."""
    return _PARSER.read(arguments)
