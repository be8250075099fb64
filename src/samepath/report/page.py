"""One self-contained page: pictures, tables and words in a single HTML file.

In: a title and sections. Out: a file that opens anywhere, also without a network: pictures are
inside it, in light or dark, as the reader's system has it, with a table of contents. Guaranteed:
all text is escaped; no script is in it.

`write_finding_page` writes what advice, profiles, curvature and simulations have in common.
"""

from __future__ import annotations

import base64
import html
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepath.files import make_folder, write_atomically
from samepath.insight.folder import Kind, write_finding
from samepath.report.words import Tables
from samepath.timing.measured import MeasuredStep, write_measured

_STYLE = """
:root { --ground: #f4f6f8; --panel: #fff; --ink: #1a2230; --quiet: #586374; --line: #dfe4ea;
  --accent: #0b63b5; --veil: rgb(11 99 181 / 10%); color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #0e1217; --panel: #151a21; --ink: #e7ebf1; --quiet: #9fabba; --line: #29313b;
    --accent: #62adf5; --veil: rgb(98 173 245 / 14%); }
  img.chart { filter: invert(1) hue-rotate(180deg) brightness(1.1); mix-blend-mode: screen; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 0 auto;
  padding: 1.5rem 1.25rem 4rem; color: var(--ink); background: var(--ground); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 0 0 .6rem; }
a { color: var(--accent); } code { font-size: .95em; white-space: nowrap; }
section { margin: 1.1rem 0; padding: 1rem 1.25rem; border: 1px solid var(--line);
  border-radius: 8px; background: var(--panel); scroll-margin-top: 1rem; }
section > :last-child { margin-bottom: 0; }
section.said > p:first-of-type { padding: .7rem 1rem; border-left: 3px solid var(--accent);
  border-radius: 6px; background: var(--veil); white-space: pre-line; }
p { max-width: 50rem; margin: .5rem 0; } .note { font-size: .875rem; color: var(--quiet); }
nav { font-size: .9rem; } nav summary { padding: .2rem 0; }
nav ol { margin: .3rem 0; padding-left: 1.4rem; columns: 17rem; }
.figure { overflow-x: auto; margin: .6rem 0; }
img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
img.photo { background: #fff; }
.wide { overflow-x: auto; } summary { cursor: pointer; color: var(--accent); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem 1.1rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--quiet); }
.number { text-align: right; } .long { overflow-wrap: anywhere; min-width: 9rem; }
@media (max-width: 640px) {
  body { padding: 1rem .6rem 3rem; } section { padding: .8rem .7rem; }
  .figure img.chart { max-width: none; width: 36rem; }
  .rows tr:first-child { display: none; }
  .rows, .rows tbody { display: block; }
  .rows tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr));
    gap: .2rem .8rem; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .rows td { display: block; padding: 0; border: 0; text-align: left; min-width: 0; }
  .rows td::before { content: attr(data-name); display: block; font-size: .75rem;
    color: var(--quiet); }
  .rows td:empty { display: none; }
}
@media print { body { background: #fff; } nav { display: none; } section { border: 0; } }
"""
_NUMBER = re.compile(r"[<>~±+\-\u2212]?\d[\d,.]*(e[+-]?\d+)?(\s?\S{1,4})?")
_LONG = re.compile(r"\S{24}")
"""A word that no column has room for, such as a digest."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_FEW = 4
"""Sections from which on a page has a table of contents."""
_SAID = ("Verdict", "In short", "Simulated", "Sharpness")
"""Headings under which the answer stands."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with words, a table (its first row the header) and a picture, each optional."""

    heading: str
    words: str = ""
    table: Sequence[Sequence[str]] = ()
    picture: Path | None = None
    note: str = ""
    """Small print under the table."""
    link: tuple[str, str] | None = None
    """Words under the note, and the heading of the section of this page that they lead to."""
    folded: bool = False
    """The table is closed until the reader opens it: for long ones."""


def write_page(out: Path, title: str, sections: Sequence[Section]) -> None:
    """Write the page, replacing an older one whole."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
    ]
    if len(sections) >= _FEW:
        links = (
            f'<li><a href="#s{place}">{html.escape(section.heading)}</a>'
            for place, section in enumerate(sections, 1)
        )
        contents = f"<details open><summary>Contents</summary><ol>{''.join(links)}</ol></details>"
        parts.append(f"<nav>{contents}</nav>")
    places = {section.heading: place for place, section in enumerate(sections, 1)}
    for place, section in enumerate(sections, 1):
        kind = ' class="said"' if section.heading in _SAID else ""
        parts.append(f'<section id="s{place}"{kind}><h2>{html.escape(section.heading)}</h2>')
        if section.words:
            parts.append(f"<p>{_text(section.words)}</p>")
        if section.table:
            table = f'<div class="wide">{_table(section.table)}</div>'
            if section.folded:
                lines = f"{len(section.table) - 1} lines"
                table = f"<details><summary>{lines}</summary>{table}</details>"
            parts.append(table)
        if section.note:
            parts.append(f'<p class="note">{_text(section.note)}</p>')
        if section.link is not None:
            words, heading = section.link
            address = f"#s{places[heading]}"
            parts.append(f'<p class="note"><a href="{address}">{html.escape(words)}</a></p>')
        if section.picture is not None:
            parts.append(_picture(section.picture, section.heading))
        parts.append("</section>")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n".join(parts) + "\n")


def pictures_in(folder: Path) -> list[Path]:
    """The figures of a report in its folder, without those that an older samepath left as PNG."""
    drawings = set(folder.glob("*.svg"))
    photos = {file for file in folder.glob("*.png") if file.with_suffix(".svg") not in drawings}
    return sorted(drawings | photos)


def _text(words: str) -> str:
    """Words, in which options such as --minutes do not break after their dashes."""
    return _OPTION.sub(r"<code>\g<0></code>", html.escape(words))


def _picture(file: Path, heading: str) -> str:
    """A drawing (SVG), whose colours follow the page's, or a photograph (PNG)."""
    kind, look = ("svg+xml", "chart") if file.suffix == ".svg" else ("png", "photo")
    data = base64.b64encode(file.read_bytes()).decode()
    name = html.escape(heading, quote=True)
    image = f'<img class="{look}" alt="{name}" src="data:image/{kind};base64,{data}">'
    return f'<div class="figure">{image}</div>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table; where a screen is narrow, one of more than three columns shows its rows as blocks,
    each value under the name of its column."""
    head, *body = rows
    columns = [[row[k] for row in body if k < len(row) and row[k]] for k in range(len(head))]
    looks = ["number" * all(map(_NUMBER.fullmatch, column)) for column in columns]

    def cell(tag: str, text: str, k: int) -> str:
        look = "long" if _LONG.search(text) else looks[k] if k < len(looks) and columns[k] else ""
        name = html.escape(head[k], quote=True) if tag == "td" and k < len(head) else ""
        kind = f' class="{look}"' if look else ""
        label = f' data-name="{name}"' if name else ""
        return f"<{tag}{kind}{label}>{_text(text)}</{tag}>"

    def line(row: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(cell(tag, text, k) for k, text in enumerate(row)) + "</tr>"

    kind = ' class="rows"' if len(head) > 3 else ""
    shown = [line(head, "th")] if any(head) else []
    shown += [line(row, "td") for row in body]
    return f"<table{kind}>{''.join(shown)}</table>"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table for a document."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def table_sections(tables: Tables) -> list[Section]:
    """A section for each table."""
    return [Section(heading=title, table=table, note=note) for title, table, note in tables]


def typed(command: Sequence[str]) -> str:
    """A command line without the folder of its program; nothing for a run that Python started."""
    return " ".join([Path(word).name if k == 0 else word for k, word in enumerate(command)])


def command_section(command: Sequence[str]) -> Section:
    """What was typed."""
    return Section(heading="The command", words=typed(command))


def write_finding_page(
    folder: Path,
    kind: Kind,
    title: str,
    sections: Iterable[Section],
    content: Mapping[str, Any],
    *,
    recipe: str,
    command: Sequence[str],
    measured: MeasuredStep | None = None,
) -> Path:
    """Write a finding: its measured step, the pictures that `sections` draw while they are gone
    through, `<kind>.html`, and last `<kind>.json`; the page's path. If that is interrupted, a
    folder that was new or empty is removed."""
    was_empty = not folder.exists() or not any(folder.iterdir())
    make_folder(folder)
    try:
        if measured is not None:
            write_measured(folder, measured)
        page = folder / f"{kind}.html"
        write_page(page, title, list(sections))
        write_finding(folder, kind, recipe=recipe, command=command, content=content)
    except BaseException:  # Ctrl-C too
        if was_empty:
            shutil.rmtree(folder)
        raise
    return page
