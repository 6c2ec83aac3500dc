"""Placeholders in a recipe's command."""

from __future__ import annotations

from pathlib import Path

import pytest
from lanes.errors import RecipeError
from lanes.plugins import Plugins
from lanes.recipes import lane, parse
from lanes_flare import template
from lanes_flare.options import FlareOptions


def test_words_are_filled_in() -> None:
    words = ("go", "{host}:{port}", "--json={{'a': 1}}", "plain")
    assert template.names(words) == {"host", "port"}
    assert template.fill(words, {"host": "::1", "port": "80"}) == ("go", "::1:80", "--json={'a': 1}", "plain")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("{prot}", "has no placeholder {prot}; there are {model}, {name}"),
        ("{}", "has no placeholder {}"),
        ("{port[0]}", "has no placeholder {port[0]}"),
        ("{port.__class__}", "has no placeholder"),
        ("{port!r}", "takes {port} as it is"),
        ("{port:>9}", "takes {port} as it is"),
        ("{port:{rank}}", "takes {port} as it is"),
        ("{port", "without its other half in '{port'"),
        ("port}", "without its other half"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(word: str, says: str) -> None:
    with pytest.raises(ValueError) as refused:
        FlareOptions(command=("go", word))
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_recipe_is_refused_with_its_line(tmp_path: Path) -> None:
    text = 'name = "x"\nengine = "flare"\n[model]\nname = "x"\n[options]\ncommand = ["go", "{prot}"]\n'
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=r"x\.toml, line 6: options\.command: has no placeholder \{prot\}"):
        lane(parse(text, str(file)), Plugins().engine("flare"))


def test_every_placeholder_is_documented() -> None:
    text = FlareOptions.__doc__ or ""
    assert all(f"{{{name}}}" in text for name in template.PLACEHOLDERS)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, ["command", "health"]),
        ({"command": ("go",)}, ["port", "health"]),
        ({"command": ("go", "{port}"), "health": "/h"}, []),
        ({"command": ("go",), "port": 80, "health": "/h"}, []),
    ],
)
def test_what_only_the_recipe_can_say(options: dict[str, object], missing: list[str]) -> None:
    assert [name for name, _ in FlareOptions(**options).missing()] == missing  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "says"), [({"port": 0}, "1 to 65535"), ({"health": "ready"}, "begins with a slash")]
)
def test_options_that_make_no_sense_are_refused(option: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FlareOptions(**option)  # type: ignore[arg-type]
