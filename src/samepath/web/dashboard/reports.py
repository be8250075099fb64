"""Studies, findings and curations as the page shows them: words, files and reports.

In: their JSON as read, the names in their folder, and the HTML of a report, which is not
trusted. Out: plain values for JSON. Guaranteed: content of any kind gives an answer; only files of
known kinds are listed; of a report only tags of a short list are left, without attributes, and only
pictures that are inside it: what runs or loads something is left out.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, TypeAlias

from samepath.web.dashboard.find import Item, RootFolder, id_of
from samepath.web.dashboard.runs import typed

PAGES = {"study": "report.html", "curation": "report.html", "run": "show/index.html"}
"""The report of each kind; <kind>.html for all others."""
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
DOWNLOADS = {".csv": "text/csv", ".json": "application/json", ".gz": "application/gzip"}
MAX_BYTES = 64 * 2**20
"""Size up to which a file is sent; a larger one is only named."""
_LISTED = {
    "strategies": "strategies",
    "workers": "workers",
    "num_workers": "workers",
    "batch_sizes": "batch sizes",
    "learning_rates": "learning rates",
    "engines": "engines",
}
_MADE_OF = (("curves", "modelled", ("policy", "network")), ("runs", "runs", ("path",)))
_RACE = {"race": "strategies raced to a target", "grid": "batch sizes and learning rates"}


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """A file of an item that the page can ask for."""

    id: str
    name: str
    """Its path relative to its item's folder."""
    kind: str
    """page, picture or download."""
    size: int
    is_large: bool
    """True for a file that is too large to be sent."""
    stamp: int
    """A number that changes with the file: a browser that has another asks again."""


def item_line(found: Item, content: Mapping[str, Any], is_running: bool) -> dict[str, Any]:
    """A study, finding or curation in the overview."""
    recipe = Path(str(content.get("recipe") or "?")).stem
    line: dict[str, Any] = {
        "recipe": recipe,
        "title": _title(found.kind, content),
        "verdict": _words(content.get("verdict") or content.get("summary")),
        "is_live": False,
        "status": "",
        "facts": list(_facts(found.kind, content)),
    }
    if found.mark == "settings.json":  # its recipe is only known by a checksum yet
        status = "running" if is_running else "stopped"
        line |= {"recipe": "", "status": status, "is_live": is_running, "verdict": ""}
    return line


def item_page(found: Item, content: Mapping[str, Any], root: RootFolder) -> dict[str, Any]:
    """Facts for an item's page beside its report."""
    versions = content.get("versions")
    explore = ["samepath", "explore", root.shown(found.folder)]
    return {
        "command": typed(content.get("command")),
        "explore": shlex.join(explore) if found.kind == "curation" else "",
        "versions": versions if isinstance(versions, dict) else {},
    }


def shown_files(found: Item, root: RootFolder) -> dict[str, ShownFile]:
    """The files of an item by id: its page first."""
    folder = root.path / found.folder
    page = PAGES.get(found.kind, f"{found.kind}.html")
    names = [page]
    with suppress(OSError):  # it has just gone
        names += sorted(os.listdir(folder))
    shown = {}
    for name in dict.fromkeys(names):
        suffix = Path(name).suffix.lower()
        kind = "page" if name == page else "picture" if suffix in PICTURES else "download"
        if kind == "download" and (suffix not in DOWNLOADS or found.kind == "run"):
            continue
        try:
            inner = Path(found.folder) / Path(name).parent
            with root.open(str(inner), Path(name).name) as file:
                size = file.seek(0, 2)
            stamp = (folder / name).stat().st_mtime_ns
        except OSError:
            continue
        id, is_large = id_of(found.id, name), size > MAX_BYTES
        shown[id] = ShownFile(
            id=id, name=name, kind=kind, size=size, is_large=is_large, stamp=stamp
        )
    return shown


def _title(kind: str, content: Mapping[str, Any]) -> str:
    if kind == "study":
        return _RACE.get(str(content.get("kind")), "a study")
    if kind == "comparison" or content.get("kind") == "comparison":
        return "did curation help?"
    return kind


def _facts(kind: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Facts about an item, a few words each."""
    if kind == "curation":
        kept, number = content.get("num_kept"), content.get("num_examples")
        if type(kept) is int and type(number) is int and number:
            yield f"{kept:,} of {number:,} kept ({100 * kept / number:.1f}%)"
    for name, called in _LISTED.items():
        words = _words(content.get(name))
        if words:
            yield f"{called}: {words}"
    for name, called, parts in _MADE_OF:
        made_of = content.get(name)
        if isinstance(made_of, list):
            each = [part for part in made_of if isinstance(part, dict)]
            names = [
                " over ".join(filter(None, (_words(part.get(name)) for name in parts)))
                for part in each
            ]
            number = len(made_of)
            counted = f"{number} {name if number != 1 else name.removesuffix('s')}"
            yield f"{called}: {_words(names)}" if any(names) else counted


def _words(value: Any) -> str:
    """Words for text, a number, a list of them, or the names of a table; "" for all else."""
    if isinstance(value, str) or type(value) in (int, float):
        return str(value)
    if isinstance(value, Mapping):
        value = list(value)
    if isinstance(value, Sequence) and all(isinstance(each, (str, int, float)) for each in value):
        return ", ".join(str(each) for each in value[:12]) + (", ..." if len(value) > 12 else "")
    return ""


# ---- a report, in the page's own look

Node: TypeAlias = str | list[Any]

KEPT = {
    "h1", "h2", "h3", "h4", "p", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td",
    "details", "summary", "code", "pre", "strong", "em", "b", "i", "br", "dl", "dt", "dd", "sub",
    "sup", "small", "figure", "figcaption",
}  # fmt: skip
LEFT_OUT = {
    "script", "style", "title", "template", "noscript", "iframe", "object", "svg", "math",
    "textarea", "select", "button", "audio", "video", "canvas",
}  # fmt: skip
"""Tags that are left out with all that is in them."""
_VOID = {"br"}
_PICTURE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=\s]+")
_DEEPEST = 40


def take_apart(html: str) -> list[Node]:
    """What to show of a report, in order: text, [tag, children] or ["img", source, words]."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    return parser.top


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.top: list[Node] = []
        self._open: list[tuple[str, list[Node]]] = [("", self.top)]
        self._left_out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._left_out or tag in LEFT_OUT:
            self._left_out.append(tag)
        elif tag == "img":
            given = dict(attrs)
            source = given.get("src") or ""
            if _PICTURE.fullmatch(source):
                self._add(["img", source, given.get("alt") or ""])
        elif tag in _VOID:
            self._add([tag, []])
        elif tag in KEPT and len(self._open) < _DEEPEST:
            small = tag == "p" and dict(attrs).get("class") == "note"
            inner: list[Node] = []
            self._add(["note" if small else tag, inner])
            self._open.append((tag, inner))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("img", *_VOID):
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._left_out:
            if tag in self._left_out:
                while self._left_out.pop() != tag:
                    pass
        elif any(tag == opened for opened, _ in self._open[1:]):
            while self._open.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._left_out and data.strip():
            self._add(data)

    def _add(self, node: Node) -> None:
        self._open[-1][1].append(node)
