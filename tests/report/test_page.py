"""Pages that hold everything and run nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samepath.report.page import Section, markdown, typed, write_finding_page, write_page
from samepath.report.style import new_figure, save_figure


def test_text_is_escaped_and_pictures_are_inside(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG")
    evil = "<script>alert('&')</script>"
    section = Section(heading=evil, words=evil, table=[["a", evil], [evil, "b"]], picture=picture)
    write_page(tmp_path / "page.html", evil, [section])
    text = (tmp_path / "page.html").read_text()
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") == 8  # title, h1, h2, p, two cells, a column's name, alt
    assert "data:image/png;base64,iVBORw==" in text
    assert list(tmp_path.glob("*.part")) == []


def test_a_long_page_has_a_table_of_contents(tmp_path: Path) -> None:
    sections = [Section(heading=name) for name in ("Verdict", "<b>", "c", "d")]
    write_page(tmp_path / "long.html", "title", sections)
    text = (tmp_path / "long.html").read_text()
    links = re.findall(r'<a href="#(s\d)">([^<]*)</a>', text)
    assert links == [("s1", "Verdict"), ("s2", "&lt;b&gt;"), ("s3", "c"), ("s4", "d")]
    assert re.findall(r'<section id="(s\d)"', text) == ["s1", "s2", "s3", "s4"]
    assert '<section id="s1" class="said">' in text
    write_page(tmp_path / "short.html", "title", sections[:3])
    assert "<nav>" not in (tmp_path / "short.html").read_text()


def test_numbers_are_aligned_and_only_what_has_no_blank_is_broken(tmp_path: Path) -> None:
    digest = "d4bc0797" * 8
    table = [["run", "loss", "", "digest"], ["a", "0.5", "best", digest], ["b", "12.25 s", "", "x"]]
    write_page(tmp_path / "page.html", "title", [Section(heading="x", table=table)])
    text = (tmp_path / "page.html").read_text()
    assert '<table class="rows">' in text
    assert '<td class="number" data-name="loss">0.5</td>' in text
    assert '<th class="number">loss</th>' in text
    assert f'<td class="long" data-name="digest">{digest}</td>' in text
    assert '<td data-name="run">a</td>' in text
    assert "<td>best</td>" in text


def test_an_option_does_not_break_after_its_dashes(tmp_path: Path) -> None:
    words = "too short (--minutes); a--b and -- are none: --workers-per-node."
    write_page(tmp_path / "page.html", "t", [Section(heading="Advice", words=words, note=words)])
    text = (tmp_path / "page.html").read_text()
    assert re.findall("<code>(.*?)</code>", text) == 2 * ["--minutes", "--workers-per-node"]
    assert re.search(r"code \{[^}]*white-space: nowrap", text)


def test_a_drawing_is_a_chart_and_the_same_file_every_time(tmp_path: Path) -> None:
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        figure = new_figure(8.0, 4.0, "a title")
        figure.add_subplot().plot([1, 2])
        save_figure(figure, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    write_page(tmp_path / "page.html", "title", [Section(heading="x", picture=files[0])])
    text = (tmp_path / "page.html").read_text()
    assert '<img class="chart" alt="x" src="data:image/svg+xml;base64,' in text


def test_long_tables_are_folded_and_notes_are_escaped(tmp_path: Path) -> None:
    table = [["a"], ["1"], ["2"]]
    section = Section(heading="x", table=table, note="<b>", folded=True)
    write_page(tmp_path / "page.html", "title", [section])
    text = (tmp_path / "page.html").read_text()
    assert "<details><summary>2 lines</summary>" in text
    assert '<p class="note">&lt;b&gt;</p>' in text


def test_a_command_is_shown_as_it_was_typed() -> None:
    assert typed(["/opt/bin/samepath", "train", "a/b.py"]) == "samepath train a/b.py"
    assert typed([]) == ""


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


@pytest.mark.parametrize("held", [False, True])
def test_an_interrupted_finding_leaves_the_folder_as_it_was(tmp_path: Path, held: bool) -> None:
    folder = tmp_path / "found"
    if held:
        folder.mkdir()
        (folder / "eigenvectors-1.safetensors").touch()

    def sections() -> Iterator[Section]:
        assert folder.is_dir()
        yield Section(heading="A picture is being drawn")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_finding_page(
            folder, "curvature", "x", sections(), {}, recipe="x", command=("samepath",)
        )
    assert folder.exists() == held
    assert not list(folder.glob("*.html")) + list(folder.glob("*.json"))


def test_a_section_links_to_another_of_its_page(tmp_path: Path) -> None:
    sections = [
        Section(heading="Result", link=("What <b> means", "Words & so on")),
        Section(heading="Words & so on"),
    ]
    write_page(tmp_path / "page.html", "title", sections)
    text = (tmp_path / "page.html").read_text()
    assert '<a href="#s2">What &lt;b&gt; means</a>' in text
    assert '<section id="s2">' in text
    with pytest.raises(KeyError):
        write_page(tmp_path / "page.html", "title", sections[:1])
