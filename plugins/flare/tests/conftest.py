"""Lanes and nodes made up for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lanes import recipes
from lanes.plugins import Plugins
from lanes.types import Gpu, Lane, Model, Node, Recipe
from lanes_flare.options import FlareOptions

GB = 10**9
SPARK = Node(
    name="spark",
    arch="aarch64",
    os="linux",
    memory_bytes=128 * GB,
    gpus=(Gpu(name="NVIDIA GB10", target="12.1", memory_bytes=128 * GB, unified=True),),
    hypothetical=True,
)


@pytest.fixture
def lane_of() -> Callable[..., Lane]:
    """A lane over a model, with these options."""

    def make(
        *,
        model: Model | None = None,
        nodes: int = 1,
        env: Mapping[str, str] | None = None,
        image: str | None = None,
        recipe: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Lane:
        made = Recipe(
            name="toy",
            engine="flare",
            model=model or Model(name="toy", repo="org/toy"),
            nodes=nodes,
            env=env or {},
            image=image,
            origin="toy.toml",
            **(recipe or {}),
        )
        return Lane(name="toy", engine="flare", recipe=made, options=FlareOptions(**options), cluster="far")

    return make


@pytest.fixture
def seed_lane() -> Callable[..., Lane]:
    """The shipped lane of the report, with overrides as `--set` would set them."""

    def make(**overrides: str) -> Lane:
        plugins = Plugins()
        recipe = recipes.find("dsv41-flash-1017-4x-flare", plugins, overrides)
        return recipes.lane(recipe, plugins.engine("flare"))

    return make


@pytest.fixture
def sparks() -> list[Node]:
    """Four DGX Sparks."""
    return [SPARK] * 4
