"""A recipe is right, or one sentence says what is wrong, where, and what would be right."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import recipes
from lanes.errors import RecipeError, UsageError
from lanes.plugins import Plugins

HEAD = 'name = "a"\nengine = "echo"\n'
GOOD = HEAD + '[model]\nname = "m"\n'

MISTAKES = {
    # what was written -> what is said after the file's name
    "misspelt at the top": ('nam = "a"\n' + GOOD, ", line 1: nam: there is no such key; did you mean 'name'?"),
    "misspelt instead of the needed key": (
        'nam = "a"\nengine = "echo"\n[model]\nname = "m"\n',
        ", line 1: nam: there is no such key; did you mean 'name'?",
    ),
    "misspelt in [model]": (GOOD + 'pth = "x"\n', ", line 5: model.pth: there is no such key; did you mean 'path'?"),
    "nothing like it": (GOOD + 'zzz = "x"\n', ", line 5: model.zzz: there is no such key; known here: name, path, package,"),
    "misspelt in an inline table": (
        HEAD + 'model = { name = "m", pth = "x" }\n',
        ", line 3: model.pth: there is no such key; did you mean 'path'?",
    ),
    "misspelt with dots": (
        HEAD + 'model.name = "m"\nmodel.pth = "x"\n',
        ", line 4: model.pth: there is no such key; did you mean 'path'?",
    ),
    "misspelt in the second of two tables": (
        GOOD + '[[artifacts]]\npath = "x"\n\n[[artifacts]]\npth = "y"\n',
        ", line 9: artifacts[1].pth: there is no such key; did you mean 'path'?",
    ),
    "a wrong type in the second of two tables": (
        GOOD + '[[artifacts]]\npath = "x"\n[[artifacts]]\npath = 3\n',
        ", line 8: artifacts[1].path: should be a string, not 3",
    ),
    "a mount without a target": (
        GOOD + '[[mounts]]\nsource = "/x"\n',
        ", line 5: mounts[0].target: the key is missing; it should be a string",
    ),
    "a mount that is misspelt": (
        GOOD + '[[mounts]]\nsource = "/x"\ntraget = "/y"\n',
        ", line 7: mounts[0].traget: there is no such key; did you mean 'target'?",
    ),
    "a word for a boolean": (
        GOOD + '[[mounts]]\nsource = "/x"\ntarget = "/y"\nread_only = "no"\n',
        ", line 8: mounts[0].read_only: should be true or false, not 'no'",
    ),
    "a number for a boolean": (
        GOOD + '[[staging]]\nname = "x"\nsource = "/x"\ntarget = "/y"\nsparse = 1\n',
        ", line 9: staging[0].sparse: should be true or false, not 1",
    ),
    "a size with a unit": (
        GOOD + '[[staging]]\nname = "x"\nsource = "/x"\ntarget = "/y"\nsize_bytes = "1G"\n',
        ", line 9: staging[0].size_bytes: should be a whole number, not '1G'",
    ),
    "a script without its reason": (
        GOOD + '[[scripts]]\nname = "x"\npath = "/x"\n',
        ", line 5: scripts[0].reason: the key is missing; it should be a string",
    ),
    "a table for a list of tables": (
        GOOD + '[artifacts]\npath = "x"\n',
        ", line 5: artifacts: should be a list of tables, not {'path': 'x'}",
    ),
    "a string for a list": (
        GOOD + '[[artifacts]]\npath = "x"\ndecides = "*ops*"\n',
        ", line 7: artifacts[0].decides: should be a list of strings, not '*ops*'",
    ),
    "a number in a list of strings": (
        GOOD + '[[artifacts]]\npath = "x"\ndecides = [\n  "*ops*",\n  1,\n]\n',
        ", line 7: artifacts[0].decides[1]: should be a string, not 1",
    ),
    "a list of tables for a table": (HEAD + '[[model]]\nname = "m"\n', ", line 3: model: should be a table"),
    "a string for a table": (HEAD + 'model = "m"\n', ", line 3: model: should be a table"),
    "a list for a string": (GOOD + 'path = ["x"]\n', ", line 5: model.path: should be a string, not ['x']"),
    "a date for a string": ("description = 2020-01-01\n" + GOOD, ", line 1: description: should be a string, not 2020-01-01"),
    "a string for a number": ('nodes = "8"\n' + GOOD, ", line 1: nodes: should be a whole number, not '8'"),
    "a boolean for a number": ("nodes = true\n" + GOOD, ", line 1: nodes: should be a whole number, not true"),
    "a fraction for a whole number": ("nodes = 1.5\n" + GOOD, ", line 1: nodes: should be a whole number, not 1.5"),
    "a boolean for a fraction": ("patience_s = true\n" + GOOD, ", line 1: patience_s: should be a number, not true"),
    "one of a few words": (GOOD + 'location = "moon"\n', ', line 5: model.location: should be "node" or "network"'),
    "a number in [env]": (GOOD + "[env]\nOMP = 4\n", ", line 6: env.OMP: should be a string, not 4"),
    "a variable of no name": (GOOD + '[env]\n"A=B" = "x"\n', ", line 6: env.A=B: the name of an environment variable"),
    "no node": ("nodes = 0\n" + GOOD, ", line 1: nodes: should be 1 or more, not 0"),
    "no patience": ("patience_s = -1\n" + GOOD, ", line 1: patience_s: should be more than 0, not -1"),
    "patience that is no number": ("patience_s = nan\n" + GOOD, ", line 1: patience_s: should be more than 0, not nan"),
    "an empty name": ('name = ""\nengine = "echo"\n[model]\nname = "m"\n', ", line 1: name: should not be empty"),
    "an empty path": (GOOD + 'path = ""\n', ", line 5: model.path: should not be empty"),
    "a NUL": (GOOD + 'path = "a\\u0000"\n', ", line 5: model.path: should be text without the character NUL"),
    "two sources of a model": (
        GOOD + 'path = "/x"\nrepo = "y/z"\n',
        ", line 6: model.repo: model.path and model.repo exclude each other; keep one",
    ),
    "a key that lanes writes": ('origin = "x"\n' + GOOD, ", line 1: origin: there is no such key"),
    "a build of no name": (GOOD + '[build]\ncontext = "x"\n', ": image: the key is missing; it is the name of what"),
    "a build without its folder": (
        'image = "x:1"\n' + GOOD + '[build]\npatches = []\n',
        ", line 6: build.context: the key is missing; it should be a string",
    ),
    "no model": (HEAD, ": model: the key is missing; it should be a table"),
    "no name of the model": (HEAD + "\n[model]\n", ", line 4: model.name: the key is missing; it should be a string"),
    "nothing": ("", ": name: the key is missing; it should be a string"),
    "a value that ends nowhere": ("a = [\n", " is not TOML: "),
    "a value that is none": ("a = \n", " is not TOML: Invalid value (at line 1"),
    "a number too long to read": ("a = " + "9" * 5000, " is not TOML: "),
    "lists too deep to read": ("a = " + "[" * 5000, " is not TOML: "),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_file_line_key_and_what_would_be_right(mistake):
    text, told = MISTAKES[mistake]
    with pytest.raises(RecipeError) as caught:
        recipes.parse(text, "r.toml")
    sentence = str(caught.value)
    assert sentence.startswith("r.toml" + told)
    assert "\n" not in sentence and len(sentence) < 300


def test_lines_are_counted_as_editors_do():
    text = (GOOD + "[env]\n# a comment\n\nX = 1\n").replace("\n", "\r\n")
    with pytest.raises(RecipeError, match=r"line 8: env\.X"):
        recipes.parse(text, "r.toml")


def test_a_long_value_is_not_repeated_whole():
    with pytest.raises(RecipeError) as caught:
        recipes.parse(GOOD + f'size_bytes = "{"x" * 9999}"\n', "r.toml")
    assert len(str(caught.value)) < 200


KEYS = st.sampled_from(
    [
        "name",
        "engine",
        "model",
        "options",
        "env",
        "nodes",
        "patience_s",
        "mounts",
        "staging",
        "scripts",
        "artifacts",
        "path",
        "repo",
        "decides",
        "source",
        "target",
        "origin",
        "size_bytes",
        "zzz",
        "a-b",
    ]
)
SCALARS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(lambda f: repr(f).replace("e", "E")),
    st.booleans().map(lambda b: str(b).lower()),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=8).map(
        lambda t: '"' + t.replace("\\", "\\\\").replace('"', '\\"') + '"'
    ),
    st.sampled_from(('"\\u0000"', "2020-01-01", "12:30:00", "2020-01-01T00:00:00Z", '"~nobody/x"', "''")),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda table: "{ " + ", ".join(f"{k} = {v}" for k, v in table.items()) + " }"
        ),
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.tuples(KEYS, VALUES).map(" = ".join),
    KEYS.map("[{}]".format),
    KEYS.map("[[{}]]".format),
    st.text(max_size=10),
)


@given(st.lists(LINES, max_size=8), st.booleans())
def test_whatever_a_file_holds_it_is_a_recipe_or_a_recipe_error(lines, after_a_good_one):
    text = GOOD * after_a_good_one + "\n".join(lines)
    try:
        recipe = recipes.parse(text, "r.toml")
    except RecipeError as error:
        assert str(error).startswith("r.toml")
    else:
        assert recipe.origin == "r.toml"
        assert tomllib.loads(text)["name"] == recipe.name


# -- Files ----------------------------------------------------------------------------------------


@pytest.fixture
def plugins():
    found = Plugins()
    if "echo" not in [p.name for p in found.engines]:
        pytest.skip("lanes-echo is not installed: pip install -e examples/lanes-echo")
    return found


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LANES_HOME", str(tmp_path / "home"))
    (tmp_path / "home/recipes").mkdir(parents=True)
    return tmp_path / "home/recipes"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda file: None, "there is no recipe file"),
        (lambda file: file.write_bytes(b"name = '\xff'"), "is not UTF-8 text: invalid start byte at byte 8"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(make, told, tmp_path, plugins):
    file = tmp_path / "r.toml"
    make(file)
    with pytest.raises(RecipeError, match=told) as caught:
        recipes.find(str(file), plugins)
    assert str(file) in str(caught.value)


def test_a_file_that_windows_saved_is_read(tmp_path, plugins):
    file = tmp_path / "r.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert recipes.find(str(file), plugins).name == "a"


def test_a_relative_model_lies_beside_its_recipe(tmp_path, plugins, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "r.toml").write_text(GOOD + 'path = "models/x.gguf"\n')
    for name in (str(tmp_path / "r.toml"), "~/r.toml"):
        assert recipes.find(name, plugins).model.path == str(tmp_path / "models/x.gguf")
    monkeypatch.chdir(tmp_path)
    assert recipes.find("r.toml", plugins).model.path == str(tmp_path / "models/x.gguf")


def test_the_home_of_nobody_is_a_folder_like_any_other(tmp_path):
    recipe = recipes.parse(GOOD + 'path = "~no-such-user/x"\n', str(tmp_path / "r.toml"))
    assert recipe.model.path == str(tmp_path / "~no-such-user/x")


# -- Names ----------------------------------------------------------------------------------------


def test_an_unknown_name_brings_the_nearest(plugins, home):
    (home / "quick.toml").write_text(GOOD)
    with pytest.raises(RecipeError, match=r"there is no recipe 'quik'\. did you mean 'quick'\?"):
        recipes.find("quik", plugins)


def test_the_users_own_recipe_comes_before_a_shipped_one_of_its_name(plugins, home):
    (home / "echo.toml").write_text(GOOD + 'quantization = "mine"\n')
    assert recipes.find("echo", plugins).model.quantization == "mine"
    assert recipes.default(plugins.engine("echo"), plugins, 1).model.quantization == "mine"
    origins = [row.origin for row in recipes.listed(plugins) if row.name == "echo"]
    assert origins == [str(home / "echo.toml"), "lanes_echo.recipes/echo.toml"]


def test_the_default_of_an_engine_is_never_the_recipe_of_another(plugins, home):
    (home / "echo.toml").write_text(GOOD.replace('"echo"', '"other"'))
    assert recipes.default(plugins.engine("echo"), plugins, 1).engine == "echo"


def test_a_recipe_for_another_engine_is_refused(echo, home):
    (home / "r.toml").write_text(GOOD.replace('"echo"', '"ecko"'))
    ran = echo("run", "--recipe", str(home / "r.toml"), "--dry-run")
    assert ran.code == 2
    assert "there is no engine 'ecko'. did you mean 'echo'?" in ran.said
    ran = echo("run", "--engine", "echo", "--recipe", str(home / "r.toml"), "--dry-run")
    assert ran.code == 2
    assert "recipe 'a' is for engine 'ecko', not for echo" in ran.said


def test_a_broken_recipe_is_listed_with_its_problem_and_the_others_work(echo, home):
    (home / "bad.toml").write_text(GOOD + "[[artifacts]]\npath = 3\n")
    (home / "odd.toml").write_text('description = "[/red] of [options] :smile:"\n' + GOOD)
    rows = {row["name"]: row for row in echo("recipes", "--json").json}
    assert rows["bad"]["problem"].endswith("bad.toml, line 6: artifacts[0].path: should be a string, not 3")
    assert rows["echo"]["problem"] is None
    table = echo("recipes")
    assert table.code == 0
    assert "artifacts[0].path: should be a string, not 3" in table.said
    assert "[/red] of [options] :smile:" in table.said
    assert echo("run", "--recipe", "bad", "--dry-run").code == 2
    assert echo("run", "--recipe", "echo", "--dry-run").code == 0


def test_an_engine_whose_recipes_cannot_be_read_is_told_and_the_others_are_listed(echo, site, sleepy):
    source = sleepy.replace('summary="sleeps"', 'summary="sleeps", recipes="no_such_package"')
    site("bad-plugin", "bad_plugin", source, {"bad": "lanes.engines"})
    rows = {(r["engine"], r["name"]): r["problem"] for r in echo("recipes", "--json").json}
    assert "No module named 'no_such_package'" in rows["bad", "no_such_package"]
    assert rows["echo", "echo"] is None


def test_showing_a_recipe_fills_in_the_defaults(echo):
    shown = echo("recipes", "echo").json
    assert shown["options"]["parallel"] == 4
    assert shown["origin"] == "lanes_echo.recipes/echo.toml"


# -- Options and --set ----------------------------------------------------------------------------

OPTIONS = {
    "unknown": ("paralel = 2", "options.paralel: there is no such key; did you mean 'parallel'?"),
    "of the wrong type": ('parallel = "2"', "options.parallel: should be a whole number, not '2'"),
    "a boolean": ("tokens_per_second = true", "options.tokens_per_second: should be a number, not true"),
    "against its validator": ("parallel = 0", "options.parallel: should be more than 0, not 0"),
}


@pytest.mark.parametrize("fault", OPTIONS)
def test_an_option_that_is(fault, tmp_path, plugins):
    line, told = OPTIONS[fault]
    file = tmp_path / "r.toml"
    file.write_text(f"{GOOD}\n[options]\n{line}\n")
    recipe = recipes.find(str(file), plugins)
    with pytest.raises(RecipeError) as caught:
        recipes.lane(recipe, plugins.engine("echo"))
    assert str(caught.value) == f"{file}, line 7: {told}"


SETTINGS = {
    "paralel": ("2", "--set paralel: there is no such key; did you mean 'parallel'?"),
    "options.paralel": ("2", "--set paralel: there is no such key; did you mean 'parallel'?"),
    "parallel": ('"2"', "--set parallel: should be a whole number, not '2'"),
    "tokens_per_second": ("0", "--set tokens_per_second: should be more than 0, not 0.0"),
    "patience_s": ("long", "--set patience_s: should be a number, not 'long'"),
    "nodes": ("0", "--set nodes: should be 1 or more, not 0"),
    "model.nam": ("x", "--set model.nam: there is no such key; did you mean 'name'?"),
    "model.name.x": ("3", "--set model.name.x: name is not a table"),
    "env": ("3", "--set env: should be a table"),
    "env.": ("3", "--set env.: a name is missing beside a dot"),
    "load_seconds": ("9" * 5000, "--set load_seconds: should be a number, not '999"),
}


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.parametrize("of_model", [False, True], ids=["of a recipe", "of --model"])
def test_a_wrong_setting_names_set_and_not_the_file(key, of_model, plugins, home):
    value, told = SETTINGS[key]
    with pytest.raises(UsageError) as caught:
        if of_model:
            recipe = recipes.of_model("echo", "/m.gguf", {key: value})
        else:
            recipe = recipes.find("echo", plugins, {key: value})
        recipes.lane(recipe, plugins.engine("echo"))
    assert str(caught.value).startswith(told)


def test_a_mistake_in_the_file_is_the_files_though_something_else_was_set(tmp_path, plugins):
    file = tmp_path / "r.toml"
    file.write_text(GOOD + "[options]\nparallel = 0\n")
    recipe = recipes.find(str(file), plugins, {"load_seconds": "1"})
    with pytest.raises(RecipeError, match=r"r\.toml, line 6: options\.parallel"):
        recipes.lane(recipe, plugins.engine("echo"))


def test_settings_reach_options_environment_and_the_recipe_itself(plugins, home):
    recipe = recipes.find(
        "echo",
        plugins,
        {
            "parallel": "2",
            "options.load_seconds": "3",
            "env.OMP_NUM_THREADS": "4",
            "env.QUOTED": '"5"',
            "env.WORDS": "a = b, c",
            "patience_s": "3600",
            "model.name": "served as this",
            "description": "",
        },
    )
    lane = recipes.lane(recipe, plugins.engine("echo"))
    assert (lane.options.parallel, lane.options.load_seconds) == (2, 3.0)
    assert recipe.env == {"OMP_NUM_THREADS": "4", "QUOTED": "5", "WORDS": "a = b, c"}
    assert (recipe.patience_s, recipe.model.name, recipe.description) == (3600.0, "served as this", "")
