"""One self-contained page: pictures, tables and words in a single HTML file.

In: a title and sections. Out: a file that opens anywhere, also without a network: pictures are
inside it. Guaranteed: all text is escaped.

`new_folder` and `command_section` are what the reports of findings share.
"""

from __future__ import annotations

import base64
import html
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samepath.files import make_folder, write_atomically
from samepath.report.words import Tables

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.25rem 1rem 0.25rem 0; border-bottom: 1px solid #ddd;
         overflow-wrap: anywhere; vertical-align: top; min-width: 4rem; }
th { overflow-wrap: normal; }
p { max-width: 46rem; } .note { font-size: 0.9rem; color: #555; }
.wide { overflow-x: auto; } summary { cursor: pointer; }
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with words, a table (its first row the header) and a picture, each optional."""

    heading: str
    words: str = ""
    table: Sequence[Sequence[str]] = ()
    picture: Path | None = None
    note: str = ""
    """Small print under the table."""
    folded: bool = False
    """The table is closed until the reader opens it: for long ones."""


def write_page(out: Path, title: str, sections: Sequence[Section]) -> None:
    """Write the page, replacing an older one whole."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
    ]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        if section.words:
            parts.append(f"<p>{html.escape(section.words)}</p>")
        if section.table:
            table = f'<div class="wide">{_table(section.table)}</div>'
            if section.folded:
                lines = f"{len(section.table) - 1} lines"
                table = f"<details><summary>{lines}</summary>{table}</details>"
            parts.append(table)
        if section.note:
            parts.append(f'<p class="note">{html.escape(section.note)}</p>')
        if section.picture is not None:
            data = base64.b64encode(section.picture.read_bytes()).decode()
            name = html.escape(section.heading, quote=True)
            parts.append(f'<img alt="{name}" src="data:image/png;base64,{data}">')
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, "\n".join(parts) + "\n")


def _table(rows: Sequence[Sequence[str]]) -> str:
    def line(row: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

    head, *body = rows
    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in body) + "</table>"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table for a document."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def table_sections(tables: Tables) -> list[Section]:
    """A section for each table."""
    return [Section(heading=title, table=table, note=note) for title, table, note in tables]


def command_section(command: Sequence[str]) -> Section:
    """What was typed."""
    return Section(heading="The command", words=" ".join([Path(command[0]).name, *command[1:]]))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make a folder to write into; remove it again if writing is interrupted."""
    make_folder(folder)
    try:
        yield folder
    except BaseException:  # Ctrl-C too; it was new or empty
        shutil.rmtree(folder)
        raise
