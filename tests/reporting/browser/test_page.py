"""The HTML report as a reader has it: on a phone, a tablet and a desk, by day and by night, by keyboard, on paper."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

PAGES = ("campaign", "run", "hostile")
WIDTHS = (390, 820, 1440)
SCHEMES = ("light", "dark")

every_page = pytest.mark.parametrize("name", PAGES)
every_width = pytest.mark.parametrize("width", WIDTHS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@every_page
@every_width
@every_scheme
def test_it_shows_whole_and_asks_for_nothing_beside_itself(name, width, scheme, pages, look, screenshots):
    file = pages(name)
    with look(file, width, scheme) as seen:
        seen.page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png", full_page=True)
        assert seen.overflow() == []
        assert seen.complaints == []
        assert [one for one in seen.requests if not one.startswith("data:")] == [file.as_uri()]


@every_page
@pytest.mark.parametrize("width", (WIDTHS[0], WIDTHS[-1]))
@every_scheme
def test_axe_finds_no_fault(name, width, scheme, pages, look):
    with look(pages(name), width, scheme) as seen:
        assert seen.faults() == []


@every_page
def test_both_schemes_are_there(name, pages, look):
    grounds = []
    for scheme in SCHEMES:
        with look(pages(name), 820, scheme) as seen:
            grounds.append(seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert len(set(grounds)) == 2


STANDS = "document.activeElement === document.body ? '' : document.activeElement.outerHTML.slice(0, 80)"
MARK = """() => {
    const one = document.activeElement, look = getComputedStyle(one);
    one.setAttribute("data-reached", "");
    const framed = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) > 0;
    return framed || look.boxShadow !== "none" ? "" : one.outerHTML.slice(0, 200);
}"""
UNREACHED = """() => [...document.querySelectorAll("main *")].filter((one) => {
    const look = getComputedStyle(one);
    const scrolls = /auto|scroll/.test(look.overflowX) && one.scrollWidth > one.clientWidth
        || /auto|scroll/.test(look.overflowY) && one.scrollHeight > one.clientHeight;
    return one.checkVisibility() && scrolls && !one.hasAttribute("data-reached");
}).map((one) => one.outerHTML.slice(0, 200))"""


@every_page
def test_tab_reaches_each_part_that_scrolls_and_shows_where_it_is(name, pages, look):
    with look(pages(name), 390) as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
        unseen = []
        for _ in range(1000):
            seen.page.keyboard.press("Tab")
            if not seen.page.evaluate(STANDS) or seen.page.evaluate(
                "document.activeElement.hasAttribute('data-reached')"
            ):
                break
            unseen.append(seen.page.evaluate(MARK))
        assert [one for one in unseen if one] == []
        assert len(unseen) > 1
        assert seen.page.evaluate(UNREACHED) == []


@every_page
def test_the_first_tab_skips_to_the_content(name, pages, look):
    with look(pages(name), 390) as seen:
        page = seen.page
        page.keyboard.press("Tab")
        link = page.locator(":focus")
        assert link.get_attribute("href").startswith("#")
        box = link.bounding_box()
        assert box["width"] > 1 and box["x"] >= 0 and box["y"] >= 0, "the link is seen while it has the focus"
        target = page.locator(link.get_attribute("href"))
        page.keyboard.press("Enter")
        assert target.count() == 1
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') !== null")


@every_page
def test_it_prints(name, pages, look, screenshots):
    with look(pages(name), 794, "dark") as seen:
        printed = screenshots / f"{name}.pdf"
        seen.page.pdf(path=printed, format="A4")
        assert printed.read_bytes().startswith(b"%PDF-")
        # What scrolls on a screen is whole on paper, and paper is white whatever the screen is.
        seen.page.emulate_media(media="print")
        assert seen.overflow() == []
        ground = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert ground in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")


def test_hostile_texts_are_shown_as_text(pages, look):
    with look(pages("hostile")) as seen:
        page = seen.page
        assert page.title() != "owned"
        shown = page.locator("body").inner_text()
        assert "<script>document.title = 'owned'" in shown
        assert "<h1>not a heading</h1>" in shown
        assert "&lt;b&gt; &amp;amp;" in shown
        assert page.locator("script, iframe, object, embed, form, base, link[href]").count() == 0
        assert page.locator("meta[http-equiv=refresh]").count() == 0
        assert page.locator("h1").count() == 1
        links = page.evaluate("[...document.querySelectorAll('[href], [src]')].map((one) => one.getAttribute('href') || one.src)")  # fmt: skip
        assert [one for one in links if not one.startswith(("#", "data:"))] == []
        handlers = page.evaluate("[...document.querySelectorAll('*')].flatMap((one) => [...one.attributes]).map((one) => one.name).filter((one) => one.startsWith('on'))")  # fmt: skip
        assert handlers == []


def test_it_stays_small(pages):
    assert pages("run").stat().st_size < 2_000_000
