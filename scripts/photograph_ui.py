"""Take docs/advise.md's picture of `samepath ui`.

    python scripts/photograph_ui.py FOLDER

In: a folder with runs and findings. Out: docs/images/ui_overview.png. Needs chromium.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from photograph_explorer import FLAGS, photograph


def main(folder: Path) -> None:
    samepath = str(Path(sys.executable).with_name("samepath"))
    command = [samepath, "ui", ".", "--no-browser", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 620})
            page.goto(address)
            page.wait_for_timeout(2000)
            photograph(page, "ui_overview.png")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
