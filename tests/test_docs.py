"""The documents say what the program does: what can be checked of them is."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from lanes import hookspecs
from lanes.cli import COMMANDS

ROOT = Path(__file__).parent.parent
QUICK = ("--pp", "96", "--tg", "24", "--passes", "2", "--warmups", "1")
PAGES = sorted(
    p
    for p in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("plugins/*/*.md"),
        *ROOT.glob("examples/*/*.md"),
    )
)


@pytest.mark.parametrize("hook", sorted(n for n in vars(hookspecs) if n.startswith("lanes_")))
def test_every_hook_is_in_the_tutorial_with_its_arguments(hook):
    arguments = ", ".join(inspect.signature(getattr(hookspecs, hook)).parameters)
    assert f"`{hook}({arguments})`" in (ROOT / "docs/writing-an-engine.md").read_text()


def commands_page() -> str:
    """docs/commands.md as it should be: the help of every command."""
    parts = [
        "# Commands\n\nWhat `lanes COMMAND --help` prints; a test keeps this page true "
        "(`LANES_TEST_WRITE=1 pytest tests/test_docs.py` writes it anew).\n"
    ]
    for words in ((), *((name,) for name in COMMANDS)):
        ran = subprocess.run(
            [sys.executable, "-m", "lanes", *words, "--help"],
            capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"},
        )  # fmt: skip
        parts.append(f"## {' '.join(('lanes', *words))}\n\n```text\n{ran.stdout.strip()}\n```\n")
    return "\n".join(parts)


def test_the_page_of_commands_shows_their_help():
    page = ROOT / "docs/commands.md"
    if os.environ.get("LANES_TEST_WRITE"):
        page.write_text(commands_page())
    assert page.read_text() == commands_page()


def test_results_are_as_the_schema_says(echo, tmp_path):
    schema = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/result.schema.json").read_text()))
    broken = tmp_path / "broken.toml"
    broken.write_text(
        'name = "b"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_while_loading = true\n'
    )
    run = echo("run", "--recipe", "echo", "--recipe", str(broken), *QUICK, "--concurrency", "1,2", "--json")
    echo("serve", "--engine", "echo")
    bench = echo("bench", *QUICK, "--json")
    echo("stop")
    for document in (run.json, bench.json, *echo("history", "--json").json):
        schema.validate(document)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_and_toml_on_the_pages_parse(page):
    import tomllib

    for language, text in re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL):
        if language == "python":
            ast.parse(text)
        elif language == "toml":
            tomllib.loads(text)


def test_the_readme_names_commands_that_exist():
    named = set(
        re.findall(
            r"\blanes ([a-z]+)\b(?= )",
            " ".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)),
        )
    )
    assert named <= COMMANDS.keys()
    assert "run" in named
