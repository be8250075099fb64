"""The documentation as a site: built strictly, whole, without a request to anywhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import samepath
from doc_figures import place_figure
from docs_hooks import link_words

ROOT = Path(__file__).parents[2]
GLOSSARY = {"grain": "grain", "strong scaling": "strong-scaling"}


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra docs is missing")
def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path: Path) -> None:
    """Strict: a broken link or anchor, or a page that is not in the navigation, ends it."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    pages = {page.relative_to(tmp_path).as_posix(): page for page in tmp_path.rglob("*.html")}
    assert len(pages) > 40
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//")
    for name, page in pages.items():
        assert not fetched.search(page.read_text(encoding="utf-8")), name
    speed = pages["speed.html"].read_text(encoding="utf-8")
    assert "glossary.html#grain" in speed
    reference = pages["api.html"].read_text(encoding="utf-8")
    for name in ("samepath.Recipe.batch_size", "samepath.train", "samepath.Session.prepare"):
        assert f'id="{name}"' in reference, name


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(
        r"^::: samepath\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE
    )
    assert sorted(named) == sorted({*samepath.__all__} - {"__version__"})


def test_the_first_use_of_a_word_is_linked() -> None:
    text = "# Title\n\nA batch has grains; a grain is small.\nStrong\nscaling helps."
    linked = link_words(text, GLOSSARY, "glossary.md")
    assert linked == (
        "# Title\n\nA batch has [grains](glossary.md#grain){.glossary}; a grain is small.\n"
        "[Strong\nscaling](glossary.md#strong-scaling){.glossary} helps."
    )


@pytest.mark.parametrize(
    "text",
    [
        "# A grain\n",
        "    --grain 8\n",
        "`grain_size`, `grain`, --grain, fine-grained, `grain",
        "```python\ngrain = 1\n```\n",
        "[a grain](x.md) ![grain](y.png)",
        "| grain | 1 |\n",
        "<!-- grain -->",
    ],
)
def test_headings_code_links_and_tables_are_left_alone(text: str) -> None:
    shown = text.removesuffix(", `grain")
    assert link_words(shown, GLOSSARY, "glossary.md") == shown


def test_a_new_figure_takes_the_place_of_the_old(tmp_path: Path) -> None:
    images = tmp_path / "docs" / "images"
    images.mkdir(parents=True)
    (images / "loss.png").touch()
    (images / "loss_of_all.png").touch()
    (tmp_path / "README.md").write_text("![a](docs/images/loss.png) ![b](images/loss_of_all.png)")
    (tmp_path / "new.svg").write_text("<svg/>")
    for _ in range(2):
        place_figure(tmp_path / "new.svg", "loss", tmp_path)
        assert {file.name for file in images.iterdir()} == {"loss.svg", "loss_of_all.png"}
        shown = (tmp_path / "README.md").read_text()
        assert shown == "![a](docs/images/loss.svg) ![b](images/loss_of_all.png)"
