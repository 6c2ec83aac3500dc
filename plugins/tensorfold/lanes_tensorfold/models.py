"""Which of TensorFold's special cases a lane's model is, as far as its names tell."""

from __future__ import annotations

import re

from lanes.types import Recipe

_V41 = re.compile(r"deepseek[-_ .]?v4[._]?1|dsv41", re.IGNORECASE)


def is_deepseek_v41(recipe: Recipe | None) -> bool:
    """DeepSeek V4.1, for which TensorFold 0.6.0 has a CUDA engine only when it is patched."""
    if recipe is None:
        return False
    names = (recipe.model.name, recipe.model.repo, recipe.model.path)
    return any(name is not None and _V41.search(name) for name in names)
