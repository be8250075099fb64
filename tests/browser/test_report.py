"""A report as its reader sees it: on a phone, in the dark, from its contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Page

from samepath.report.page import Section, write_page
from samepath.report.style import new_figure, save_figure

DIGEST = "d4bc0797" * 8
COLUMNS = ["run", "workers", "training loss", "validation loss", "time", "digest"]
ROWS = [[f"a-run-{k}", str(k), "0.003185", "0.003437", "18 s", DIGEST] for k in range(3)]


@pytest.fixture
def report(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    figure = new_figure(9.6, 4.0, "a title")
    figure.add_subplot().plot([1, 2])
    save_figure(figure, tmp_path / "a.svg")
    write_page(
        tmp_path / "report.html",
        "A report",
        [
            Section(heading="Verdict", words="Two workers."),
            Section(heading="Runs", table=[COLUMNS, *ROWS]),
            Section(heading="Facts", table=[["", ""], ["digest", DIGEST], ["curvature", "flat"]]),
            Section(heading="Loss", picture=tmp_path / "a.svg"),
        ],
    )
    page = browser.new_page(viewport={"width": 1440, "height": 500}, color_scheme="light")
    page.goto(f"file://{tmp_path}/report.html")
    yield page
    page.close()


def width(page: Page) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth")
    return found


def test_a_report_fits_every_screen_light_and_dark(report: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = report.evaluate(ground)
    report.emulate_media(color_scheme="dark")
    assert light != report.evaluate(ground) == "rgb(14, 18, 23)"
    assert "invert" in report.locator("img.chart").evaluate("i => getComputedStyle(i).filter")
    cell = report.locator(".rows td.number").first
    assert cell.evaluate("c => getComputedStyle(c).textAlign") == "right"
    for size in (900, 400):
        report.set_viewport_size({"width": size, "height": 800})
        assert width(report) == size
    assert not report.locator(".rows th").first.is_visible()
    inside = report.locator(".wide").first.evaluate("w => w.scrollWidth <= w.clientWidth")
    assert inside, "a table of many columns is a list of blocks"
    named = cell.evaluate("c => getComputedStyle(c, '::before').content")
    assert named == '"workers"'
    lines = report.locator("td:text-is('curvature')").evaluate(
        "c => { const r = document.createRange(); r.selectNodeContents(c); "
        "return r.getClientRects().length; }"
    )
    assert lines == 1, "a word is not broken"


def test_the_contents_lead_to_a_section(report: Page) -> None:
    assert report.locator("nav a").all_inner_texts() == ["Verdict", "Runs", "Facts", "Loss"]
    report.click("nav a:text-is('Loss')")
    assert report.locator("section:has(h2:text-is('Loss')) img").evaluate(
        "i => i.naturalWidth > 0 && i.getBoundingClientRect().top < innerHeight"
    )
