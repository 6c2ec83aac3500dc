"""Lanes and nodes made up for the tests."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lanes import recipes
from lanes.plugins import Plugins
from lanes.types import Gpu, Lane, Model, Node, Recipe
from lanes_sglang import flags
from lanes_sglang.options import SglangOptions

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
            engine="sglang",
            model=model or Model(name="toy", repo="org/toy"),
            nodes=nodes,
            env=env or {},
            image=image,
            origin="toy.toml",
            **(recipe or {}),
        )
        return Lane(name="toy", engine="sglang", recipe=made, options=SglangOptions(**options), cluster="far")

    return make


@pytest.fixture
def seed_lane() -> Callable[..., Lane]:
    """The shipped lane of the report, with overrides as `--set` would set them."""

    def make(**overrides: str) -> Lane:
        plugins = Plugins()
        recipe = recipes.find("dsv41-flash-1017-4x-sglang", plugins, overrides)
        return recipes.lane(recipe, plugins.engine("sglang"))

    return make


@pytest.fixture
def sparks() -> list[Node]:
    """Four DGX Sparks."""
    return [SPARK] * 4


class Strict(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise argparse.ArgumentError(None, message)


@pytest.fixture
def snapshot_parser() -> argparse.ArgumentParser:
    """SGLang's parser as the snapshot has it."""
    parser = Strict(add_help=False)
    types = {"int": int, "float": float}
    for flag in flags.known().values():
        if flag.nargs == 0:
            parser.add_argument(flag.name, dest=flag.dest, action="store_true")
        else:
            parser.add_argument(
                flag.name,
                dest=flag.dest,
                nargs=flag.nargs,
                type=types.get(flag.kind, str),
                choices=flag.choices or None,
            )
    return parser
