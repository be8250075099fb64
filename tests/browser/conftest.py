"""One browser for the tests of a module, and pages that must stay free of errors.

Needs Debian's chromium and PyPI's playwright; without them the tests are skipped, and say so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path(shutil.which("chromium") or "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
GONE = "net::ERR_CONNECTION_REFUSED"
"""What a browser reports when the server has ended: a test does that on purpose."""


@pytest.fixture(scope="module")  # while it is open, nothing else can run an event loop
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip("there is no chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address and waits for the map. A page that reports an error fails its test."""
    contexts = []
    errors: list[str] = []

    def open_one(address: str, width: int = 1440, height: int = 900, **how: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(address)
        page.wait_for_selector("body.ready")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert [error for error in errors if GONE not in error] == []
