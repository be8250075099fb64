"""Everything under a folder, as the page asks for it; read again only where it has changed.

An item is a run, a study, a finding (advice, profile, ...) or a curation.

In: a folder, ids of items. Out: plain values, bytes. Guaranteed: only what the search found can be
asked for; a file is read again only when its size or time has changed, metrics only from where the
last look ended; what cannot be read is said, never fatal; one request at a time works on it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from samepath.engine.state.metrics_log import MetricColumns, newest_values, sample_values
from samepath.web.dashboard.find import Item, RootFolder, Search, search
from samepath.web.dashboard.reports import ShownFile, item_line, item_page, shown_files
from samepath.web.dashboard.runs import ShownRun, comparison, curves, run_line, run_page

MAX_COMPARED = 12
KEPT_METRICS = 24
"""Runs whose curves are held in memory."""
MAX_JSON = 32 * 2**20
SEARCH_SECONDS = 1.5
"""Time between two searches, at least; searching takes at most a tenth of all time."""
Value = TypeVar("Value")


class NotFound(Exception):
    """Raised for an item or a file that does not exist, or no longer."""


class Unreadable(Exception):
    """Raised for a file that is there and cannot be read."""


class FolderContents:
    """The items under a folder, and their files."""

    def __init__(self, folder: Path) -> None:
        self.root = RootFolder(folder)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        self._metrics: OrderedDict[str, MetricColumns] = OrderedDict()
        self._search = Search(items=(), notes=())
        self._items: dict[str, Item] = {}
        self._search_due = 0.0

    # ---- what the page asks for

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
            said = comparison(names, digests, all_metrics) if len(pages) > 1 else []
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
            shown = shown_files(item, self.root).get(file)
        if shown is None or shown.is_large:
            raise NotFound("there is no such file, or it is too large to send")
        try:
            inner = Path(item.folder) / Path(shown.name).parent
            with self.root.open(str(inner), Path(shown.name).name) as opened:
                return shown, opened.read()
        except OSError as error:
            raise NotFound(f"{shown.name} cannot be read ({error.strerror})") from None

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
        name = self.root.path.name if item.folder == "." else item.folder
        line = {
            "id": item.id,
            "kind": item.kind,
            "name": name,
            "path": self.root.shown(item.folder),
            "parent": item.parent,
            "time": self._time(item),
            "error": "",
        }
        try:
            content = self._content(item)
            if item.kind == "run":
                return line | self._run_line(item, content)
            is_running = item.mark == "settings.json" and self.root.is_locked(item.folder)
            return line | item_line(item, content, is_running)
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
            spark = self._read(item, "metrics.jsonl", "spark", _train_losses) or []
        except Unreadable as error:
            problem = {"message": str(error)}
        return run_line(record, is_running, newest) | {"spark": spark} | problem

    def _page(self, item: Item) -> dict[str, Any]:
        """Make the content of an item's own page."""
        line = self._line(item)
        files = shown_files(item, self.root).values() if not line["error"] else ()
        page = line | {"files": [vars(file) for file in files]}
        if line["error"]:
            return page
        content = self._content(item)
        if item.kind == "run":
            return page | run_page(ShownRun.of(content), line, line["path"])
        return page | item_page(item, content, self.root)

    def _content(self, item: Item) -> dict[str, Any]:
        content = self._read(item, item.mark, "json", _json)
        if not isinstance(content, dict):
            why = "it is gone" if content is None else "it is not a JSON object"
            raise Unreadable(f"{item.mark} cannot be read ({why})")
        return content

    def _time(self, item: Item) -> float:
        """When an item last changed."""
        times = [0.0]
        for name in (item.mark, "metrics.jsonl"):
            stamp = self._stamp(item, name)
            times.append(stamp[0] / 1e9 if stamp else 0.0)
        return max(times)

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


def _train_losses(file: IO[bytes]) -> list[float]:
    return sample_values(file, "train_loss")


def _json(file: IO[bytes]) -> Any:
    content = file.read(MAX_JSON + 1)
    if len(content) > MAX_JSON:
        raise ValueError(f"it is larger than {MAX_JSON // 2**20} MiB")
    return json.loads(content, parse_constant=str)  # NaN is no JSON: it is text where we write it
