"""`samepath turing` as a reader uses it, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from explorer_pages import OpenPage, answering
from playwright.sync_api import expect

from samepath.web.turing.app import open_turing

SIDE = 8


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Four cubes; a voxel is 100 + 10 z (real) or 10 z (generated)."""
    planes = 10 * np.arange(SIDE, dtype=np.uint8)[None, :, None, None]
    cubes = np.broadcast_to(planes, (2, SIDE, SIDE, SIDE))
    np.savez(tmp_path / "real.npz", volume=cubes + np.uint8(100))
    np.savez(tmp_path / "new.npz", volume=cubes)
    files = tmp_path / "real.npz", tmp_path / "new.npz"
    with (
        open_turing(*files, tmp_path / "votes.json", count=2, seed=0) as (_, page),
        answering(page),
    ):
        yield page.address


GREY = """(place) => { const c = document.querySelectorAll('.plane canvas')[place];
  return c.getContext('2d').getImageData(0, 0, 1, 1).data[0]; }"""


def test_a_test_from_the_first_vote_to_the_result(
    address: str, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(address)
    expect(page.locator("#number")).to_have_text("Cube 1 of 4")
    middle = page.evaluate(GREY, 0)
    page.keyboard.press("ArrowDown")
    assert page.evaluate(GREY, 0) - middle in (9, 10, 11)
    page.locator(".plane canvas").first.hover()
    page.mouse.wheel(0, -60)
    page.wait_for_function(f"() => ({GREY})(0) < {middle}")
    # window and level
    page.locator("#width").fill("100")
    page.locator("#level").fill("250")
    assert page.evaluate(GREY, 0) == 0
    page.get_by_role("button", name="Reset").click()
    assert page.evaluate(GREY, 0) > 0
    # votes by keyboard and by button; the order tells nothing
    said = []
    for number in range(1, 5):
        expect(page.locator("#number")).to_have_text(f"Cube {number} of 4")
        is_real = page.evaluate(GREY, 0) > 100
        said.append("real" if is_real else "generated")
        if number < 3:
            page.keyboard.press("r" if is_real else "g")
        else:
            page.get_by_role("button", name="Real" if is_real else "Generated").click()
        if number == 2:
            expect(page.locator("#status")).to_have_text("2 of 4 votes")
            kept = json.loads((tmp_path / "votes.json").read_text(encoding="utf-8"))
            assert list(kept["votes"].values()) == said
            page.reload()  # goes on where it was
            page.wait_for_selector("body.ready")
    expect(page.locator("#sure-words")).to_contain_text("All 4 cubes have a vote")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(".answer[aria-pressed=true]")).to_have_count(1)
    page.get_by_role("button", name="End the test").click()
    page.get_by_role("button", name="End it and show the result").click()
    expect(page.locator("#verdict")).to_contain_text(
        "Right in 4 of 4 cases, 100% (95%: 40% to 100%)"
    )
    expect(page.locator("#each li")).to_have_count(4)
    kept = json.loads((tmp_path / "votes.json").read_text(encoding="utf-8"))
    assert kept["truth"] == said
    page.reload()
    expect(page.locator("#verdict")).to_contain_text("Right in 4 of 4")


@pytest.mark.parametrize("width", [1440, 900, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_window(width: int, scheme: str, address: str, open_page: OpenPage) -> None:
    page = open_page(address, width=width, height=900, color_scheme=scheme)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0
    for name in ("Real", "Generated"):
        expect(page.get_by_role("button", name=name)).to_be_in_viewport()
