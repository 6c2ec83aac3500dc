"""What a dry run shows, and of what it stops short."""

from __future__ import annotations

import pytest

RECIPE = 'name = "r"\nengine = "{engine}"\n[model]\nname = "model \u2713"\n'


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe for an engine, in letters that not every terminal has."""

    def write(engine):
        (tmp_path / "r.toml").write_text(RECIPE.format(engine=engine), encoding="utf-8")
        return str(tmp_path / "r.toml")

    return write


@pytest.mark.parametrize("command", [("run", "--dry-run", "--recipe"), ("check",)])
def test_a_terminal_without_the_letters_is_shown_their_numbers(echo, recipe, command):
    echo.env |= {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    ran = echo(*command, recipe("echo"))
    assert ran.code == 0, ran.said
    assert command == ("check",) or "\\u2713" in ran.out


@pytest.mark.parametrize("order", ["(0, 7)", "(1,)", "(0, 0)"])
def test_an_order_that_does_not_name_each_rank_is_the_plugin_s_fault(lanes, sleepy, site, recipe, order):
    source = sleepy.replace('99)")),)', f'99)")),), start_order={order}')
    assert source != sleepy
    site("sleeper", "sleeper", source, {"sleeper": "lanes.engines"})
    for dry in (["--dry-run"], []):
        ran = lanes("serve", "--recipe", recipe("sleeper"), *dry)
        assert f"start_order {order} should name each of the ranks (0,) once" in ran.said
        assert "(from sleeper 1.0) raised ValueError" in ran.said


def test_an_image_is_not_built_for_an_engine_that_uses_none(echo, recipe, tmp_path):
    file = recipe("echo")
    (tmp_path / "r.toml").write_text(
        f'image = "x:1"\n{(tmp_path / "r.toml").read_text()}[build]\ncontext = "x"\n'
    )
    for dry in (["--dry-run"], []):
        ran = echo("run", "--recipe", file, *dry)
        assert "recipe 'r' builds an image, and engine 'echo' uses none" in ran.said
        assert "take [build] out of the recipe" in ran.said


def test_the_order_in_which_ranks_start_is_shown(lanes):
    pytest.importorskip("lanes_sglang")
    ran = lanes("serve", "--recipe", "dsv41-flash-1017-4x-sglang", "--arch", "gb10", "--dry-run")
    assert "started in this order: ranks 3, 2, 1, 0" in ran.out
