"""What is said of studies, findings and curations, and which files of theirs are shown.

In: their JSON as read, and the names in their folder. Out: plain values for JSON. Guaranteed:
content of any kind gives an answer; only files of known kinds are listed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepath.web.dashboard.find import Found, Root, id_of
from samepath.web.dashboard.runs import typed

PAGES = {"study": "report.html", "curation": "report.html", "run": "show/index.html"}
"""Where a kind's page is; <kind>.html for all others."""
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
DOWNLOADS = {".csv": "text/csv", ".json": "application/json", ".gz": "application/gzip"}
MAX_BYTES = 64 * 2**20
"""A larger file is named, not sent."""
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
class Shown:
    """A file that can be asked for."""

    id: str
    name: str
    """Relative to its thing's folder."""
    kind: str
    """page, picture or download."""
    size: int
    is_large: bool
    """Too large to be sent."""
    stamp: int
    """Changes with the file: a browser that has another asks again."""


def thing_line(found: Found, content: Mapping[str, Any], is_running: bool) -> dict[str, Any]:
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


def thing_page(found: Found, content: Mapping[str, Any], root: Root) -> dict[str, Any]:
    """What its own page says beside its report."""
    versions = content.get("versions")
    explore = ["samepath", "explore", root.shown(found.folder)]
    return {
        "command": typed(content.get("command")),
        "explore": shlex.join(explore) if found.kind == "curation" else "",
        "versions": versions if isinstance(versions, dict) else {},
    }


def shown_files(found: Found, root: Root) -> dict[str, Shown]:
    """The files of a thing by id: its page first."""
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
        shown[id] = Shown(id=id, name=name, kind=kind, size=size, is_large=is_large, stamp=stamp)
    return shown


def _title(kind: str, content: Mapping[str, Any]) -> str:
    if kind == "study":
        return _RACE.get(str(content.get("kind")), "a study")
    if kind == "comparison" or content.get("kind") == "comparison":
        return "did curation help?"
    return kind


def _facts(kind: str, content: Mapping[str, Any]) -> Iterator[str]:
    """A few words each."""
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
            yield f"{called}: {_words(names)}" if any(names) else f"{len(made_of)} {name}"


def _words(value: Any) -> str:
    """Text, a number, or a short list or the names of a table of them; nothing for all else."""
    if isinstance(value, str) or type(value) in (int, float):
        return str(value)
    if isinstance(value, Mapping):
        value = list(value)
    if isinstance(value, Sequence) and all(isinstance(each, (str, int, float)) for each in value):
        return ", ".join(str(each) for each in value[:12]) + (", ..." if len(value) > 12 else "")
    return ""
