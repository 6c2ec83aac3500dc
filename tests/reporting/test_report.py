"""`lanes report`: what was measured, as a page for people."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from lanes.comparing import grouping
from lanes.comparing.compare import chosen, compare
from lanes.errors import UsageError
from lanes.reporting import html, markdown, svg, writing
from lanes.reporting.build import build
from lanes.reporting.hidden import without_secrets
from lanes.reporting.model import Report
from lanes.results import files

CAMPAIGN = Path(__file__).parents[2] / "examples" / "campaign-2026-10"


def needs_matplotlib():
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'lanes-core[report]'")


def report_of(documents, *only) -> Report:
    groups = chosen(grouping.launches(documents), only)
    return without_secrets(build(documents, compare(documents, only=only), groups), str)


class Outline(HTMLParser):
    """The page's elements, its texts, and what in it would be fetched or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.dangers: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._stack: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._stack.append(tag)
        held = dict(attrs)
        self.attributes.append((tag, held))
        if held.get("id"):
            self.ids.append(held["id"])
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        if tag in (
            "script",
            "img",
            "iframe",
            "object",
            "embed",
            "link",
            "base",
            "form",
            "image",
            "foreignobject",
        ):
            self.dangers.append(tag)
        for name, value in attrs:
            if (
                name.startswith("on")
                or name == "src"
                or (name.endswith("href") and not value.startswith("#"))
            ):
                self.dangers.append(f"{tag} {name}={value}")
            if name == "style" and "url(" in value.replace("url(#", ""):
                self.dangers.append(f"{tag} {value}")

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def seed() -> list[dict]:
    return files.read(CAMPAIGN)


def test_the_campaigns_table_comes_out_with_its_figures(seed):
    page = markdown.page(report_of(seed, "four-lanes"))
    rows = {}
    for line in page.splitlines():
        if line.startswith("| "):
            rows.setdefault(line.split("|")[1].strip(), line)
    for lane, figures in (
        ("dsv41-flash-1017-4x-sglang", ("87", "75", "1.4", "3,019", "45.6", "67.8")),
        ("dsv41-flash-1017-2x-tensorfold", ("89", "23", "6.7", "380", "50.4")),
        ("beam-1.0-nvfp4-4x", ("90", "34", "4.7", "2,501", "26.2", "62.3")),
    ):
        told = [cell.strip() for cell in rows[lane].split("|")]
        assert set(figures) <= set(told), rows[lane]
    assert "crashed" in rows["dsv41-flash-1017-4x-flare"]


def test_what_does_not_fit_in_it_is_told(seed):
    needs_matplotlib()
    page = " ".join(Outline(html.page(report_of(seed, "four-lanes"))).text.split())
    assert "is quoted as 3,019, and its own run read 2,358" in page
    assert "is not of one instrument" in page
    assert "9,180,000" in page and "9,300,000" in page
    assert "26,600,000 for" in page
    assert "No difference between the lanes was shown" in page


def test_both_forms_say_the_same(seed):
    needs_matplotlib()
    report = report_of(seed, "four-lanes", "ep2-1m-depth")
    page = " ".join(Outline(html.page(report)).text.split())
    for section in report.sections:
        assert section.title in page
        assert f"## {section.title}" in markdown.page(report)


@pytest.fixture
def measured(echo, tmp_path):
    """A run of a lane that was measured and of one that crashed, over real sockets."""
    needs_matplotlib()
    broken = tmp_path / "broken.toml"
    broken.write_text(
        'name = "broken"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_while_loading = true\n'
    )
    ran = echo(
        "run", "--recipe", "echo", "--recipe", str(broken), "--retries", "0", "--instrument", "probe,surface",
        "--pp", "64", "--tg", "16", "--concurrency", "1,2", "--passes", "3", "--warmups", "0", "--json",
    )  # fmt: skip
    return echo, ran.json


def test_a_run_becomes_a_page_of_its_own(measured, tmp_path):
    lanes, document = measured
    file = tmp_path / "page.html"
    made = lanes("report", document["run"], "--output", str(file))
    assert made.code == 0 and made.out.strip() == str(file)
    text = file.read_text()
    page = Outline(text)
    assert page.dangers == []
    assert "default-src 'none'" in next(
        a["content"] for t, a in page.attributes if t == "meta" and a.get("http-equiv")
    )
    assert len(page.ids) == len(set(page.ids))
    assert page.headings[0] == 1 and all(
        b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False)
    )
    assert {"main", "nav", "header", "caption", "figure", "details"} <= set(page.tags)
    drawn = [held for tag, held in page.attributes if tag == "svg" and held.get("role") == "img"]
    assert len(drawn) >= 4 and all(held["aria-label"] for held in drawn)
    said = " ".join(page.text.split())
    for part in (
        "streams at once",
        "TTFT of each request",
        "until the first token",
        "Boot phases",
        "loading",
    ):
        assert part in said, part
    assert "determinism at temperature 0" in said
    assert "the pretended memory does not suffice" in said, "the log of what crashed"
    assert len(text) < 2_000_000

    again = lanes("report", document["run"], "--output", str(file))
    assert again.code == 2 and "--force" in again.err
    assert file.read_text() == text
    assert lanes("report", document["run"], "--output", str(file), "--force").code == 0
    assert [one.name for one in tmp_path.glob(".page*")] == []

    plain = lanes("report", document["run"])
    assert plain.code == 0 and plain.out.startswith("# echo against broken\n")
    assert "| **crashed** |" in plain.out

    assert lanes("report", "--since", "1h", "--json").json["schema"] == "lanes.report/1"


HOSTILE = "<script>alert(1)</script><img src=http://a.example/x onerror=alert(2)> | `x` [y](http://b.example) ]]>--> $\\frac"


def hostile(value, depth=0):
    """The document with every text that no rule of the program reads made into markup."""
    if isinstance(value, dict):
        kept = ("schema", "status", "verdict", "kind", "evidence", "load", "shape", "phase", "side", "run")
        return {key: one if key in kept else hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{HOSTILE} {value}" if isinstance(value, str) else value


def test_markup_in_results_stays_text(seed):
    needs_matplotlib()
    some = [one for one in copy.deepcopy(seed) if one["run"] in ("four-lanes", "ep2-1m-depth", "flare-4x")]
    report = report_of(hostile(some))
    page = Outline(html.page(report))
    assert page.dangers == []
    assert "<script>alert(1)</script>" in page.text
    text = re.sub(r"^(```+)\n.*?^\1$", "", markdown.page(report), flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)<(script|img)", text)
    assert not re.search(r"(?<!\\)\[y", text)
    widths = {}
    for line in text.splitlines():
        if line.startswith("| "):
            widths.setdefault("now", line.count("|") - line.count("\\|"))
            assert line.count("|") - line.count("\\|") == widths["now"], line
        else:
            widths = {}


def test_secrets_of_logs_do_not_reach_the_page(lanes, tmp_path):
    (document,) = files.read(CAMPAIGN / "flare-4x.json")
    lane = document["lanes"][0]
    lane["log"] = ["HF_TOKEN=hf_PlAnTeDoNeXyZ0123456789abcdef", "reading \u202etxt"]
    lane["reason"] = "GET https://hub/model?token=hf_PlAnTeDoNeXyZ0123456789abcdef failed"
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(document))
    told = lanes("report", str(kept)).out
    assert "hub/model" in told and "PlAnTeD" not in told and "\u202e" not in told


def test_without_matplotlib_one_sentence_says_what_to_install(lanes, tmp_path):
    (tmp_path / "without" / "matplotlib").mkdir(parents=True)
    (tmp_path / "without" / "matplotlib" / "__init__.py").write_text("raise ImportError('none')\n")
    lanes.path.append(tmp_path / "without")
    made = lanes("report", str(CAMPAIGN), "four-lanes", "--output", str(tmp_path / "page.html"))
    assert (
        made.code == 2 and "pip install 'lanes-core[report]'" in made.err and len(made.err.splitlines()) == 1
    )
    assert not (tmp_path / "page.html").exists()
    assert lanes("report", str(CAMPAIGN), "four-lanes", "--format", "md").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to report"),
        (("--lane", "x"), "--lane belongs to --bug"),
        (("--bug", "x", "--since", "7d"), "a report of its own"),
        (("no-such-run",), "there is no run 'no-such-run'"),
        ((str(CAMPAIGN), "no-such-lane"), "there is no lane and no run 'no-such-lane'"),
    ],
)
def test_what_cannot_be_reported_is_said_in_a_sentence(lanes, words, said):
    ran = lanes("report", *words)
    assert ran.code == 2 and said in ran.err and len(ran.err.strip().splitlines()) == 1


def test_a_page_is_whole_or_not_there(tmp_path):
    writing.write("one", tmp_path / "page.md")
    with pytest.raises(UsageError, match="exists already"):
        writing.write("two", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == "one"
    writing.write("two", tmp_path / "page.md", force=True)
    assert [one.name for one in tmp_path.iterdir()] == ["page.md"]


def test_every_lane_has_a_look_of_its_own():
    looks = [svg.swatch(number) for number in range(3 * svg.COLOURS)]
    assert len(set(looks)) == len(looks)
