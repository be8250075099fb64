"""Pages that hold everything and run nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from samepath.report.page import Section, markdown, write_page


def test_text_is_escaped_and_pictures_are_inside(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG")
    evil = "<script>alert('&')</script>"
    section = Section(heading=evil, words=evil, table=[["a", evil], [evil, "b"]], picture=picture)
    write_page(tmp_path / "page.html", evil, [section])
    text = (tmp_path / "page.html").read_text()
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") == 7  # title, h1, h2, p, two cells, alt
    assert "data:image/png;base64,iVBORw==" in text
    assert list(tmp_path.glob("*.part")) == []


def test_long_tables_are_folded_and_notes_are_escaped(tmp_path: Path) -> None:
    table = [["a"], ["1"], ["2"]]
    section = Section(heading="x", table=table, note="<b>", folded=True)
    write_page(tmp_path / "page.html", "title", [section])
    text = (tmp_path / "page.html").read_text()
    assert "<details><summary>2 lines</summary>" in text
    assert '<p class="note">&lt;b&gt;</p>' in text


def test_tables_become_markdown() -> None:
    assert markdown([["a", "b|c"], ["1", "2"]]) == ("| a | b\\|c |\n| --- | --- |\n| 1 | 2 |\n")


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [("words", "matplotlib"), ("page", "torch"), ("study_figures", "samepath.report.nodules")],
)
def test_pure_things_are_light(module: str, not_loaded: str) -> None:
    """Words draw nothing, a page trains nothing, a figure traces no rays."""
    code = f"import sys, samepath.report.{module}; sys.exit({not_loaded!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
