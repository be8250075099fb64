"""Pages that hold everything and run nothing."""

from __future__ import annotations

from pathlib import Path

from samepath.report.page import Section, write_page


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
