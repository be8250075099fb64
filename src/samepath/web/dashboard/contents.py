"""Everything under a folder that samepath wrote: found, opened safely, and read for the page.

An item is a run, a study, a finding (advice, profile, ...) or a curation.

In: a folder, ids of items. Out: plain values, bytes. Guaranteed: no link is followed, so that
nothing outside the folder is read or written; the search is bounded, and says so where it stopped;
only what it found, and only files of known kinds, can be asked for; nothing is locked, and nothing
written but a run's note; a file is read again only when its size or time has changed, metrics only
from where the last look ended; what cannot be read is said, never fatal; one request at a time
works on it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from samepath.engine.state.metrics_log import MetricColumns, newest_values, sample_values
from samepath.files import is_locked, open_plain, write_atomically
from samepath.insight.folder import BRANCHES
from samepath.web.dashboard.items import (
    ShownRun,
    comparison,
    curves,
    item_line,
    item_page,
    run_line,
    run_page,
)

MARKS = {
    "run.json": "run",
    "study.json": "study",
    "comparison.json": "comparison",
    "folds.json": "folds",
    "curation.json": "curation",
    "advice.json": "advice",
    "profile.json": "profile",
    "curvature.json": "curvature",
    "simulation.json": "simulation",
}
"""The file that a folder of each kind has."""
UNDERWAY = "settings.json"
"""The file of a study that has no result yet, beside a folder of runs."""
_NAMES = {*MARKS, UNDERWAY, "pyvenv.cfg"}
SKIPPED = {
    "node_modules", "__pycache__", "site-packages", "venv",
    "checkpoints", "weights", "cache", "tensorboard", "wandb", "show",
}  # fmt: skip
MAX_DEPTH = 6
MAX_FOLDERS = 5_000
MAX_ITEMS = 1_000
PAGES = {"study": "report.html", "curation": "report.html", "run": "show/index.html"}
"""The report of each kind; <kind>.html for all others."""
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
DOWNLOADS = {".csv": "text/csv", ".json": "application/json", ".gz": "application/gzip"}
MAX_BYTES = 64 * 2**20
"""Size up to which a file is sent; a larger one is only named."""
MAX_JSON = 32 * 2**20
NOTE = "note.txt"
"""A run's note, in its folder."""
MAX_NOTE = 4 * 2000
"""Its size: a character takes up to four bytes."""
MAX_COMPARED = 12
KEPT_METRICS = 24
"""Runs whose curves are held in memory."""
SEARCH_SECONDS = 1.5
"""Time between two searches, at least; searching takes at most a tenth of all time."""
Value = TypeVar("Value")


# ---- the search


@dataclass(frozen=True, kw_only=True)
class Item:
    """A run, a study, a finding or a curation."""

    id: str
    kind: str
    folder: str
    """Its place relative to the folder that was searched; "." for that itself."""
    mark: str
    """The file it was found by."""
    parent: str | None
    """The id of what it is a part of: a run of a study, say."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a walk found, the least deep first, and what it left out."""

    items: tuple[Item, ...] = ()
    notes: tuple[str, ...] = ()


class RootFolder:
    """The folder that is looked at, with all below it."""

    def __init__(self, given: Path) -> None:
        self.given = given
        """The folder as it was typed: commands that are shown name places this way."""
        self.path = given.resolve()

    def shown(self, folder: str) -> str:
        """A place in it as one would type it."""
        return str(self.given / folder)

    def open(self, folder: str, name: str) -> IO[bytes]:
        """Open a regular file (a name, or a path relative to its folder), never through a link;
        OSError where there is none."""
        file = self.path / folder / name
        if os.path.realpath(file.parent) != str(file.parent):
            raise PermissionError(errno.EPERM, "it is a link to another place")
        return open_plain(file, follow=False)

    def is_locked(self, folder: str) -> bool:
        """True while a run trains here, or a study runs."""
        return is_locked(self.path / folder)


def id_of(*words: str) -> str:
    """An id that is the same for the same place whenever the server is started."""
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def search(root: RootFolder) -> Search:
    """Walk the folder and list its items."""
    items: list[Item] = []
    waiting: deque[tuple[str, int, Item | None]] = deque([(".", 0, None)])
    num_folders = num_unreadable = num_links = 0
    notes = []
    while waiting:
        folder, depth, parent = waiting.popleft()
        num_folders += 1
        if num_folders > MAX_FOLDERS or len(items) >= MAX_ITEMS:
            what = f"{MAX_FOLDERS:,} folders" if num_folders > MAX_FOLDERS else f"{MAX_ITEMS:,}"
            notes.append(f"there is more than {what} here: give a deeper folder to see the rest")
            break
        try:
            entries = _entries(root.path / folder)
        except OSError:
            num_unreadable += 1
            continue
        if "pyvenv.cfg" in entries:
            continue
        # branches are a part of the study or advice that they were made for, once that is there
        is_part = os.path.basename(folder) == BRANCHES and parent and parent.mark != UNDERWAY
        outer = parent.id if parent else None
        found = [
            Item(id=id_of(folder, kind), kind=kind, folder=folder, mark=mark, parent=outer)
            for mark, kind in _marks(entries)
            if not (is_part and mark == UNDERWAY)
        ]
        items += found
        inner = found[0] if found else parent
        for name, entry in sorted(entries.items()):
            if name in SKIPPED or name.startswith("."):
                continue
            if entry.is_symlink():
                # not entry.is_dir(), which raises where links lead round
                stays = Path(os.path.realpath(entry.path)).is_relative_to(root.path)
                num_links += os.path.isdir(entry.path) and not stays
            elif entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                below = name if folder == "." else f"{folder}/{name}"
                waiting.append((below, depth + 1, inner))
    if num_unreadable:
        notes.append(f"folders that cannot be read: {num_unreadable}")
    if num_links:
        notes.append(f"links that lead out of this folder and are not followed: {num_links}")
    return Search(items=tuple(items), notes=tuple(notes))


def _entries(folder: Path) -> dict[str, os.DirEntry[str]]:
    """What matters of a folder by name: its folders, links and marks, not a million pictures."""
    with os.scandir(folder) as entries:
        return {
            entry.name: entry
            for entry in entries
            if entry.name in _NAMES or entry.is_symlink() or entry.is_dir(follow_symlinks=False)
        }


def _marks(entries: Mapping[str, os.DirEntry[str]]) -> Iterator[tuple[str, str]]:
    """The marks in a folder, and what they are marks of."""
    files = {n for n in _NAMES if n in entries and entries[n].is_file(follow_symlinks=False)}
    yield from ((mark, kind) for mark, kind in MARKS.items() if mark in files)
    if UNDERWAY in files and "runs" in entries and not files & MARKS.keys():
        yield UNDERWAY, "study"


# ---- what the page asks for


class NotFound(Exception):
    """Raised for an item or a file that does not exist, or no longer."""


class NotWritten(Exception):
    """Raised for a note that cannot be kept."""


class Unreadable(Exception):
    """Raised for a file that is there and cannot be read."""


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


class FolderContents:
    """The items under a folder, and their files."""

    def __init__(self, folder: Path) -> None:
        self.root = RootFolder(folder)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        self._metrics: OrderedDict[str, MetricColumns] = OrderedDict()
        self._search = Search()
        self._items: dict[str, Item] = {}
        self._search_due = 0.0

    def overview(self) -> dict[str, Any]:
        """All items, newest first."""
        with self._lock:
            self._look()
            lines = [self._line(item) for item in self._search.items]
            lines.sort(key=lambda line: (-line["time"], line["id"]))
            return {
                "folder": str(self.root.given),
                "place": str(self.root.path),
                "items": lines,
                "notes": list(self._search.notes),
            }

    def runs(
        self, ids: Sequence[str], first: float = -np.inf, last: float = np.inf
    ) -> dict[str, Any]:
        """Runs with their curves between two steps, and how they compare."""
        with self._lock:
            items = [self._find(id) for id in dict.fromkeys(ids)]
            if len(items) > MAX_COMPARED or not all(item.kind == "run" for item in items):
                raise NotFound(f"give up to {MAX_COMPARED} runs")
            all_metrics = [self._metrics_of(item) for item in items]
            pages = [self._page(item) for item in items]
            for page, metrics in zip(pages, all_metrics, strict=True):
                page["curves"] = curves(metrics, first, last)
                page["num_unreadable"] = metrics.num_unreadable
            names = [page["name"] for page in pages]
            digests = [page.get("whole_digest", "") for page in pages]
            configs = [page.get("config", {}) for page in pages]
            said = comparison(names, digests, all_metrics, configs) if len(pages) > 1 else []
            return {"runs": pages, "said": said}

    def item(self, id: str) -> dict[str, Any]:
        """A study, finding or curation, with what belongs to it."""
        with self._lock:
            self._look()
            item = self._find(id)
            parts = [self._line(other) for other in self._search.items if other.parent == id]
            return self._page(item) | {"parts": parts}

    def file(self, id: str, file: str) -> tuple[ShownFile, bytes]:
        """One of an item's files."""
        with self._lock:
            item = self._find(id)
            shown = self._files(item).get(file)
        if shown is None or shown.is_large:
            raise NotFound("there is no such file, or it is too large to send")
        try:
            with self.root.open(item.folder, shown.name) as opened:
                return shown, opened.read()
        except OSError as error:
            raise NotFound(f"{shown.name} cannot be read ({error.strerror})") from None

    def write_note(self, id: str, text: str) -> None:
        """Keep a run's note as a file in its folder; without words there is none."""
        with self._lock:
            item = self._find(id)
            if item.kind != "run":
                raise NotFound("only runs have notes")
            data = text.strip().encode(errors="replace")
            if len(data) > MAX_NOTE:
                raise NotWritten(f"a note has at most {MAX_NOTE:,} bytes")
            folder = self.root.path / item.folder
            try:
                if os.path.realpath(folder) != str(folder):
                    raise PermissionError(errno.EPERM, "it is a link to another place")
                if data:
                    # private: the only way to write that never follows a link that lies there
                    write_atomically(folder / NOTE, data + b"\n", private=True)
                    (folder / NOTE).chmod(0o644)
                else:
                    (folder / NOTE).unlink(missing_ok=True)
            except OSError as error:
                raise NotWritten(f"the note was not saved ({error.strerror})") from None

    # ---- how it is put together

    def _look(self) -> None:
        """Search the folder, unless that has just been done."""
        began = time.monotonic()
        if began < self._search_due:
            return
        self._search = search(self.root)
        self._items = {item.id: item for item in self._search.items}
        folders = {item.folder for item in self._search.items}
        self._known = {key: value for key, value in self._known.items() if key[0] in folders}
        took = time.monotonic() - began
        self._search_due = began + took + max(SEARCH_SECONDS, 9 * took)

    def _find(self, id: str) -> Item:
        if id not in self._items:
            self._look()
        if id not in self._items:
            raise NotFound("there is no such run, study or report in the folder any more")
        return self._items[id]

    def _line(self, item: Item) -> dict[str, Any]:
        """Make the line of an item in the overview."""
        stamps = [self._stamp(item, name) for name in (item.mark, "metrics.jsonl")]
        line = {
            "id": item.id,
            "kind": item.kind,
            "name": self.root.path.name if item.folder == "." else item.folder,
            "path": self.root.shown(item.folder),
            "parent": item.parent,
            "time": max(stamp[0] / 1e9 if stamp else 0.0 for stamp in stamps),
            "error": "",
        }
        try:
            content = self._content(item)
            if item.kind == "run":
                return line | self._run_line(item, content)
            status = ""
            if item.mark == UNDERWAY:
                status = "running" if self.root.is_locked(item.folder) else "stopped"
            return line | item_line(item.kind, content, status)
        except Unreadable as error:
            return line | {
                "error": str(error), "status": "unreadable", "recipe": "", "is_live": False,
                "title": item.kind, "verdict": "", "facts": [],
            }  # fmt: skip

    def _run_line(self, item: Item, content: dict[str, Any]) -> dict[str, Any]:
        try:
            record = ShownRun.of(content)
        except ValueError as error:
            raise Unreadable(f"{item.mark} cannot be read ({error})") from None
        is_running = record.status == "running" and self.root.is_locked(item.folder)
        newest: dict[str, Any] = {}
        spark: list[float] = []
        problem = {}
        try:
            if not record.result:
                newest = self._read(item, "metrics.jsonl", "newest", newest_values) or {}
            losses = partial(sample_values, name="train_loss")
            spark = self._read(item, "metrics.jsonl", "spark", losses) or []
        except Unreadable as error:
            problem = {"message": str(error)}
        try:
            note = self._read(item, NOTE, "note", _note) or ""
        except Unreadable as error:
            note = str(error)
        more = {"spark": spark, "note": note} | problem
        return run_line(record, is_running, newest) | more

    def _page(self, item: Item) -> dict[str, Any]:
        """Make the content of an item's own page."""
        line = self._line(item)
        if line["error"]:
            return line | {"files": []}
        page = line | {"files": [vars(file) for file in self._files(item).values()]}
        content = self._content(item)
        if item.kind == "run":
            return page | run_page(ShownRun.of(content), line)
        return page | item_page(content, line)

    def _files(self, item: Item) -> dict[str, ShownFile]:
        """The files of an item by id: its page first."""
        page = PAGES.get(item.kind, f"{item.kind}.html")
        names = [page]
        with suppress(OSError):  # it has just gone
            names += sorted(os.listdir(self.root.path / item.folder))
        shown = {}
        for name in dict.fromkeys(names):
            suffix = Path(name).suffix.lower()
            kind = "page" if name == page else "picture" if suffix in PICTURES else "download"
            if kind == "download" and (suffix not in DOWNLOADS or item.kind == "run"):
                continue
            try:
                with self.root.open(item.folder, name) as file:
                    status = os.fstat(file.fileno())
            except OSError:
                continue
            id = id_of(item.id, name)
            shown[id] = ShownFile(
                id=id,
                name=name,
                kind=kind,
                size=status.st_size,
                is_large=status.st_size > MAX_BYTES,
                stamp=status.st_mtime_ns,
            )
        return shown

    def _content(self, item: Item) -> dict[str, Any]:
        content = self._read(item, item.mark, "json", _json)
        if not isinstance(content, dict):
            why = "it is gone" if content is None else "it is not a JSON object"
            raise Unreadable(f"{item.mark} cannot be read ({why})")
        return content

    def _stamp(self, item: Item, name: str) -> tuple[int, int, int] | None:
        try:
            status = (self.root.path / item.folder / name).lstat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(
        self, item: Item, name: str, what: str, read: Callable[[IO[bytes]], Value]
    ) -> Value | None:
        """Read a file with a function, again only when it has changed; None without a file."""
        stamp = self._stamp(item, name)
        if stamp is None:
            return None
        key = (item.folder, name, what)
        if key not in self._known or self._known[key][0] != stamp:
            try:
                with self.root.open(item.folder, name) as file:
                    self._known[key] = stamp, read(file)
            except (OSError, ValueError, RecursionError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise Unreadable(f"{name} cannot be read ({why})") from None
        value: Value = self._known[key][1]
        return value

    def _metrics_of(self, item: Item) -> MetricColumns:
        """A run's metrics, read on; the runs that were asked for last are kept in memory."""
        if item.id not in self._metrics:
            self._metrics[item.id] = MetricColumns()
            self._known.pop((item.folder, "metrics.jsonl", "columns"), None)
        self._metrics.move_to_end(item.id)
        if len(self._metrics) > KEPT_METRICS:
            self._metrics.popitem(last=False)
        metrics = self._metrics[item.id]
        with suppress(Unreadable):  # the run's message says why
            self._read(item, "metrics.jsonl", "columns", metrics.read_on)
        return metrics


def _note(file: IO[bytes]) -> str:
    return file.read(MAX_NOTE).decode("utf-8", "replace").strip()


def _json(file: IO[bytes]) -> Any:
    content = file.read(MAX_JSON + 1)
    if len(content) > MAX_JSON:
        raise ValueError(f"it is larger than {MAX_JSON // 2**20} MiB")
    return json.loads(content, parse_constant=str)  # NaN is no JSON: it is text where we write it
