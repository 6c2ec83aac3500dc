"""A real browser: Debian's Chromium, driven by playwright; and the pages that it shall show."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs
import pytest

ROOT = Path(__file__).parents[3]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--disable-quic",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
PATIENCE_MS = 120_000


@attrs.frozen
class Opened:
    """A page as a reader has it before them, and what happened behind it."""

    page: Any
    complaints: list[str]
    """What the console said at the levels warning and error, and errors of the page."""
    requests: list[str]
    """What was asked for, the file itself included."""

    def overflow(self) -> list[str]:
        """What sticks out of the page at the right, and makes it scroll sideways: the innermost elements of it."""
        found: list[str] = self.page.evaluate(OVERFLOW)
        return found

    def faults(self) -> list[str]:
        """What axe finds wrong, of any impact."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response
        return [
            f"{one['impact']} {one['id']}: {node['target']} {node['failureSummary']}"
            for one in found["violations"]
            for node in one["nodes"]
        ]


OVERFLOW = """() => {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const scrolls = (one) => one && one !== root && (
        getComputedStyle(one).overflowX !== "visible" || scrolls(one.parentElement));
    return [...document.body.querySelectorAll("*")]
        .filter((one) => one.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(one.parentElement))
        .map((one) => one.outerHTML.slice(0, 200)).concat([`${root.scrollWidth} > ${root.clientWidth}`]);
}"""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The browser, with a profile of its own."""
    if not CHROMIUM:
        pytest.skip("there is no Chromium: apt-get install chromium, then tox -e browser")
    for module in ("playwright", "axe_playwright_python"):
        pytest.importorskip(module, reason=f"{module} is not here: tox -e browser has it")
    from playwright.sync_api import sync_playwright

    home = tmp_path_factory.mktemp("browser")
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*QUIET, *root],
            timeout=PATIENCE_MS,
            env={**os.environ, "HOME": str(home)},
        )
        yield browser
        browser.close()


Look = Callable[..., AbstractContextManager[Opened]]


@pytest.fixture
def look(chromium: Any) -> Look:
    """Open a file as somebody with a screen of this width and this colour scheme does."""

    @contextlib.contextmanager
    def opened(file: Path, width: int = 1440, scheme: str = "light") -> Iterator[Opened]:
        context = chromium.new_context(
            viewport={"width": width, "height": 900 if width > 500 else 844},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        try:
            # A machine that is busy with other tests is slow, not broken.
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            found = Opened(page, [], [])
            page.on(
                "console",
                lambda said: (
                    found.complaints.append(f"{said.type}: {said.text}")
                    if said.type in ("warning", "error")
                    else None
                ),
            )
            page.on("pageerror", lambda error: found.complaints.append(f"page: {error}"))
            page.on("request", lambda asked: found.requests.append(asked.url))
            page.goto(file.as_uri())
            yield found
        finally:
            context.close()

    return opened


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots lie afterwards, for people to look at: LANES_TEST_SCREENSHOTS, where it is set."""
    kept = os.environ.get("LANES_TEST_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lanes(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lanes", *words], env={**os.environ, "LANES_HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A real run, over real sockets: one lane that was measured, one that crashed. The home that keeps it, and
    its document."""
    from importlib.metadata import entry_points

    if "echo" not in entry_points(group="lanes.engines").names:
        pytest.skip("the example engine is not here: pip install -e examples/lanes-echo, or tox -e browser")
    folder = tmp_path_factory.mktemp("run")
    broken = folder / "broken.toml"
    broken.write_text(
        'name = "broken"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_while_loading = true\n'
    )
    ran = _lanes(
        folder, "run", "--recipe", "echo", "--recipe", str(broken), "--set", "parallel=4", "--retries", "0",
        "--instrument", "probe,surface,contention",
        "--pp", "64,128", "--tg", "16", "--depth", "0,128", "--concurrency", "1,2,4", "--passes", "2", "--warmups", "0", "--json",
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    return folder, json.loads(ran.stdout)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """The reports, by name, each made when it is first asked for, by the command that a person gives."""
    folder = tmp_path_factory.mktemp("pages")

    def make(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            ran = _lanes(folder, "report", *of(name), "--output", str(file))
            assert ran.returncode == 0, ran.stderr
        return file

    def of(name: str) -> list[str]:
        if name == "campaign":
            return [str(one) for one in sorted((ROOT / "examples/campaign-2026-10").glob("*.json"))]
        _, document = request.getfixturevalue("measured")
        kept = folder / f"{name}.json"
        kept.write_text(json.dumps(hostile(document) if name == "hostile" else document))
        return [str(kept)]

    return make


ATTACKS = (
    "<script>document.title = 'owned'; console.error('owned')</script>",
    '"><img src="http://127.0.0.1:9/x.png" onerror="console.error(1)">',
    "</style></title></pre></svg><h1>not a heading</h1><a href='javascript:console.error(1)'>go</a>",
    "' style='background:url(http://127.0.0.1:9/y)' onmouseover='console.error(1)",
    "<!-- ]]> --> <meta http-equiv='refresh' content='0;url=http://127.0.0.1:9/'>",
    "&lt;b&gt; &amp;amp; \u202egnirts a\u202c \u0000\u0007\ud83d\ude00 | `code` **bold** [link](http://127.0.0.1:9/)",
    "unbroken" * 60,
    "<b>many</b> words " * 222,
)
"""What a result may hold by malice or by accident; the last is of 4,000 letters."""
OURS = {
    "schema",
    "run",
    "status",
    "kind",
    "verdict",
    "evidence",
    "phase",
    "shape",
    "load",
    "side",
    "started_at",
}
"""Texts of a result that are of a few words of ours."""


def hostile(document: Any) -> Any:
    """The same result with an attack in every text that is anybody's own."""
    count = 0

    def twist(value: Any, key: str = "") -> Any:
        nonlocal count
        if isinstance(value, dict):
            return {name: twist(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [twist(one, key) for one in value]
        if not isinstance(value, str) or key in OURS or re.fullmatch("[a-z_]*_s|", value):
            return value
        count += 1
        return ATTACKS[count % len(ATTACKS)]

    twisted = twist(document)
    for lane, one in zip(document["lanes"], twisted["lanes"], strict=True):
        # What tells cells and figures apart stays: a report of nothing would show no attack.
        for instrument, changed in zip(lane["instruments"], one["instruments"], strict=True):
            changed["name"] = instrument["name"]
    return twisted
