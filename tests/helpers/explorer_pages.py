"""The explorer in a browser: a server in a thread, and what tests read off the page and do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from samepath.web.server import LocalPage

OpenPage = Callable[..., "Page"]


@contextmanager
def serving(folder: Path, keep: Path | None = None) -> Iterator[str]:
    """A server of a folder, in a thread; its address."""
    from samepath.web.explorer.app import open_explorer

    with open_explorer(folder, keep) as (_, page), answering(page):
        yield page.address


@contextmanager
def answering(page: LocalPage) -> Iterator[None]:
    """A page, answering in a thread."""
    server = page.server()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [page.listening]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


def until(page: Page, script: str, seconds: float = 60.0) -> None:
    """Wait for something to be true. (The page's policy forbids playwright's own way.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < end, f"never true: {script}"
        page.wait_for_timeout(15)


def place_of(page: Page, row: int) -> tuple[float, float]:
    """Where a point is on the screen."""
    left, top = page.evaluate(
        """(row) => {
          const { model, view } = window.samepath;
          const box = view.map.overlay.getBoundingClientRect();
          const [left, top] = view.map.toScreen(model.x[row], model.y[row]);
          return [left + box.left, top + box.top];
        }""",
        row,
    )
    return left, top


def numbers(page: Page) -> tuple[int, int]:
    """Kept and dropped, as the page says them."""
    kept = page.locator("#num-kept").inner_text()
    dropped = page.locator("#num-dropped").inner_text().split()[0]
    return int(kept.replace(",", "")), int(dropped.replace(",", ""))


def lasso(page: Page, row: int, radius: float = 60.0) -> None:
    """Draw around a point, holding Shift."""
    left, top = place_of(page, row)
    corners = [(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -0.9)]
    page.keyboard.down("Shift")
    page.mouse.move(left - radius, top - radius)
    page.mouse.down()
    for x, y in corners[1:]:
        page.mouse.move(left + x * radius, top + y * radius, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_selector("#selection", state="visible")
