"""The flags of SGLang 0.5.23, as its parser knew them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanes.flags import Fault, Flag, Parser, Problem, Settings

__all__ = ["VERSION", "Fault", "Flag", "Problem", "Settings", "known", "read"]

VERSION = "0.5.23"
"""The version whose parser the snapshot was taken from."""

_PARSER = Parser(program="SGLang", version=VERSION, data="lanes_sglang.data")


def known() -> Mapping[str, Flag]:
    """All option strings of the snapshot."""
    return _PARSER.known


def read(arguments: Sequence[str]) -> Settings:
    """Read a command line (without the program) as SGLang's parser would."""
    return _PARSER.read(arguments)
