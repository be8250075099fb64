"""Take docs/curation.md's pictures of the explorer.

    python scripts/photograph_explorer.py CURATED

In: a curation folder. Out: docs/images/explorer_light.png, with the most doubtful example looked
at, explorer_review.png, the review queue, and explorer_gallery.png, of what is dropped, in the
dark. Needs chromium.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from samepath.data.keep_list import read_keep_list

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def opened(browser: Browser, address: str, colours: str) -> Page:
    size = {"width": 1440, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=colours)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body.ready")
    return page


def photograph(page: Page, name: str) -> None:
    """Save what is seen in 256 colours, a third of the size."""
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256).save(
        IMAGES / name, optimize=True
    )


def most_doubtful(folder: Path) -> int:
    """The row whose label is doubted most."""
    doubt = read_keep_list(folder / "keep.csv").doubt
    assert doubt is not None, "examples without labels are not doubted"
    return int(np.nanargmax(doubt))


def main(folder: Path) -> None:
    samepath = str(Path(sys.executable).with_name("samepath"))
    command = [samepath, "explore", str(folder), "--no-browser", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            page = opened(browser, address, "light")
            row = most_doubtful(folder)
            page.evaluate("(row) => samepath.model.pin(row)", row)
            page.wait_for_timeout(2000)
            photograph(page, "explorer_light.png")
            page = opened(browser, address, "light")
            page.keyboard.press("v")
            page.wait_for_timeout(3000)
            photograph(page, "explorer_review.png")
            page = opened(browser, address, "dark")
            page.click("#tab-gallery")
            page.wait_for_timeout(3000)
            photograph(page, "explorer_gallery.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
