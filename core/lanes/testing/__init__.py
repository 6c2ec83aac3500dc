"""The kit by which any engine plugin proves itself.

::

    from lanes.testing import EngineSuite

    class TestEcho(EngineSuite):
        engine = "echo"
        recipe = "echo"

It needs pytest, which nothing else of lanes imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lanes.testing.suite import EngineSuite as EngineSuite

__all__ = ["EngineSuite"]


def __getattr__(name: str) -> Any:
    if name != "EngineSuite":
        raise AttributeError(f"module 'lanes.testing' has no attribute {name!r}")
    import pytest

    # Before the module is imported, so that a failed assertion shows its values.
    pytest.register_assert_rewrite("lanes.testing.suite", "lanes.testing.serving")
    from lanes.testing.suite import EngineSuite

    return EngineSuite
