"""`settings.toml`: what a user decides once."""

from __future__ import annotations

import pytest

RECIPE = """
name = "prepared"
engine = "echo"
[model]
name = "m"
[[scripts]]
name = "prepare"
path = "prepare.sh"
reason = "makes the test's folder"
"""
QUICK = ("--pp", "96", "--tg", "24", "--passes", "1", "--warmups", "1")


@pytest.fixture
def prepared(echo, tmp_path):
    """`lanes` with a recipe that wants a script run, and none beside it."""
    recipe = tmp_path / "prepared.toml"
    recipe.write_text(RECIPE)
    echo.recipe = str(recipe)
    echo.home.mkdir()
    return echo


def test_a_script_of_the_settings_is_allowed_and_is_the_one_that_runs(prepared, tmp_path):
    (tmp_path / "prepare.sh").write_text(f"echo theirs > {tmp_path}/ran\n")
    (prepared.home / "mine.sh").write_text(f"echo mine > {tmp_path}/ran\n")
    (prepared.home / "settings.toml").write_text('[scripts]\nprepare = "mine.sh"\n')
    shown = prepared("run", "--recipe", prepared.recipe, "--dry-run")
    assert shown.code == 0 and "| echo mine" in shown.out and "theirs" not in shown.out
    ran = prepared("run", "--recipe", prepared.recipe, *QUICK, "--json")
    assert ran.code == 0, ran.said
    assert (tmp_path / "ran").read_text() == "mine\n"


def test_without_settings_it_is_refused_and_told_where_they_are(prepared):
    ran = prepared("check", prepared.recipe)
    assert ran.code == 3
    assert "--allow-script prepare, or name their files under [scripts] in" in ran.said
    assert str(prepared.home / "settings.toml") in ran.said


def test_a_script_that_is_not_where_the_settings_say(prepared):
    (prepared.home / "settings.toml").write_text('[scripts]\nprepare = "gone.sh"\n')
    ran = prepared("run", "--recipe", prepared.recipe, *QUICK, "--json")
    assert ran.code == 1
    assert f"script prepare: {prepared.home}/gone.sh: No such file or directory" in ran.said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[script]\nprepare = "x"\n', "script: there is no such key; did you mean 'scripts'?"),
        ("[scripts]\nprepare = 3\n", "scripts.prepare: should be a string, not 3"),
        ("[scripts\n", "is not TOML"),
    ],
)
def test_mistakes_in_the_settings_are_told(prepared, text, said):
    (prepared.home / "settings.toml").write_text(text)
    ran = prepared("check", prepared.recipe)
    assert ran.code == 2
    assert f"{prepared.home}/settings.toml" in ran.err and said in ran.said
