"""Which of SGLang's special cases a lane's model is, as far as its names tell."""

from __future__ import annotations

import re

from lanes.types import Recipe

_V4 = re.compile(r"deepseek[-_ .]?v4|dsv4", re.IGNORECASE)
_V41 = re.compile(r"deepseek[-_ .]?v4[._]?1|dsv41", re.IGNORECASE)


def is_deepseek_v4(recipe: Recipe) -> bool:
    """DeepSeek V4 and its successors."""
    return _named(recipe, _V4)


def is_deepseek_v41(recipe: Recipe) -> bool:
    """DeepSeek V4.1, the one with Engram."""
    return _named(recipe, _V41)


def _named(recipe: Recipe, pattern: re.Pattern[str]) -> bool:
    model = recipe.model
    return any(name is not None and pattern.search(name) for name in (model.name, model.repo, model.path))
