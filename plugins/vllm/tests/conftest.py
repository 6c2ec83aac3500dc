"""Lanes and nodes made up for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lanes.types import Gpu, Lane, Model, Node, Recipe
from lanes_vllm.options import VllmOptions

GB = 10**9


@pytest.fixture
def spark() -> Node:
    """A DGX Spark."""
    return Node(
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
        cluster: str = "far",
        recipe: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Lane:
        made = Recipe(
            name="toy",
            engine="vllm",
            model=model or Model(name="toy", repo="org/toy"),
            nodes=nodes,
            env=env or {},
            image=image,
            origin="toy.toml",
            **(recipe or {}),
        )
        return Lane(name="toy", engine="vllm", recipe=made, options=VllmOptions(**options), cluster=cluster)

    return make
