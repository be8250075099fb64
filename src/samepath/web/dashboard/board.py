"""Everything under a folder, as the page asks for it; read again only where it has changed.

In: a folder, ids. Out: plain values, bytes. Guaranteed: only what the search found can be asked
for; a file is read again only when its size or time has changed, metrics only from where the last
look ended; what cannot be read is said, never fatal; one request at a time works on it.
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

from samepath.web.dashboard.find import Found, Root, Search, search
from samepath.web.dashboard.metrics import Metrics, last_lines, sample
from samepath.web.dashboard.runs import Record, comparison, curves, run_line, run_page
from samepath.web.dashboard.things import Shown, shown_files, thing_line, thing_page

MAX_COMPARED = 12
KEPT_METRICS = 24
"""Runs whose curves are held in memory."""
MAX_JSON = 32 * 2**20
SEARCH_SECONDS = 1.5
"""A search is at most so often, and never takes more than a tenth of the time."""
Value = TypeVar("Value")


class NotFound(Exception):
    """There is no such thing, or no longer."""


class Unreadable(Exception):
    """A file that is there cannot be read."""


class Board:
    """What is under a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = Root(folder)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        self._metrics: OrderedDict[str, Metrics] = OrderedDict()
        self._search = Search(things=(), notes=())
        self._things: dict[str, Found] = {}
        self._search_due = 0.0

    # ---- what the page asks for

    def overview(self) -> dict[str, Any]:
        """All things, newest first."""
        with self._lock:
            self._look()
            lines = [self._line(found) for found in self._search.things]
            lines.sort(key=lambda line: (-line["time"], line["id"]))
            return {
                "folder": str(self.root.given),
                "place": str(self.root.path),
                "things": lines,
                "notes": list(self._search.notes),
            }

    def runs(
        self, ids: Sequence[str], first: float = -np.inf, last: float = np.inf
    ) -> dict[str, Any]:
        """Runs with their curves between two steps, and how they compare."""
        with self._lock:
            things = [self._find(id) for id in dict.fromkeys(ids)]
            if len(things) > MAX_COMPARED or not all(found.kind == "run" for found in things):
                raise NotFound(f"give up to {MAX_COMPARED} runs")
            all_metrics = [self._metrics_of(found) for found in things]
            pages = [self._page(found) for found in things]
            for page, metrics in zip(pages, all_metrics, strict=True):
                page["curves"] = curves(metrics, first, last)
                page["num_unreadable"] = metrics.num_unreadable
            names = [page["name"] for page in pages]
            digests = [page.get("whole_digest", "") for page in pages]
            said = comparison(names, digests, all_metrics) if len(pages) > 1 else []
            return {"runs": pages, "said": said}

    def thing(self, id: str) -> dict[str, Any]:
        """A study, finding or curation, with what belongs to it."""
        with self._lock:
            self._look()
            found = self._find(id)
            parts = [self._line(other) for other in self._search.things if other.parent == id]
            return self._page(found) | {"parts": parts}

    def file(self, id: str, file: str) -> tuple[Shown, bytes]:
        """One of a thing's files."""
        with self._lock:
            found = self._find(id)
            shown = shown_files(found, self.root).get(file)
        if shown is None or shown.is_large:
            raise NotFound("there is no such file, or it is too large to send")
        try:
            inner = Path(found.folder) / Path(shown.name).parent
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
        self._things = {found.id: found for found in self._search.things}
        folders = {found.folder for found in self._search.things}
        self._known = {key: value for key, value in self._known.items() if key[0] in folders}
        took = time.monotonic() - began
        self._search_due = began + took + max(SEARCH_SECONDS, 9 * took)

    def _find(self, id: str) -> Found:
        if id not in self._things:
            self._look()
        if id not in self._things:
            raise NotFound("there is no such thing in the folder any more")
        return self._things[id]

    def _line(self, found: Found) -> dict[str, Any]:
        """What the overview says of a thing."""
        name = self.root.path.name if found.folder == "." else found.folder
        line = {
            "id": found.id,
            "kind": found.kind,
            "name": name,
            "path": self.root.shown(found.folder),
            "parent": found.parent,
            "time": self._time(found),
            "error": "",
        }
        try:
            content = self._content(found)
            if found.kind == "run":
                return line | self._run_line(found, content)
            is_running = found.mark == "settings.json" and self.root.is_locked(found.folder)
            return line | thing_line(found, content, is_running)
        except Unreadable as error:
            return line | {
                "error": str(error), "status": "unreadable", "recipe": "", "is_live": False,
                "title": found.kind, "verdict": "", "facts": [],
            }  # fmt: skip

    def _run_line(self, found: Found, content: dict[str, Any]) -> dict[str, Any]:
        try:
            record = Record.of(content)
        except ValueError as error:
            raise Unreadable(f"{found.mark} cannot be read ({error})") from None
        is_running = record.status == "running" and self.root.is_locked(found.folder)
        newest: dict[str, Any] = {}
        spark: list[float] = []
        problem = {}
        try:
            if not record.result:
                newest = self._read(found, "metrics.jsonl", "newest", last_lines) or {}
            spark = self._read(found, "metrics.jsonl", "spark", _train_losses) or []
        except Unreadable as error:
            problem = {"message": str(error)}
        return run_line(record, is_running, newest) | {"spark": spark} | problem

    def _page(self, found: Found) -> dict[str, Any]:
        """What a thing's own page says."""
        line = self._line(found)
        files = shown_files(found, self.root).values() if not line["error"] else ()
        page = line | {"files": [vars(file) for file in files]}
        if line["error"]:
            return page
        content = self._content(found)
        if found.kind == "run":
            return page | run_page(Record.of(content), line, line["path"])
        return page | thing_page(found, content, self.root)

    def _content(self, found: Found) -> dict[str, Any]:
        content = self._read(found, found.mark, "json", _json)
        if not isinstance(content, dict):
            why = "it is gone" if content is None else "it is no JSON object"
            raise Unreadable(f"{found.mark} cannot be read ({why})")
        return content

    def _time(self, found: Found) -> float:
        """When something last happened to it."""
        times = [0.0]
        for name in (found.mark, "metrics.jsonl"):
            stamp = self._stamp(found, name)
            times.append(stamp[0] / 1e9 if stamp else 0.0)
        return max(times)

    def _stamp(self, found: Found, name: str) -> tuple[int, int, int] | None:
        try:
            status = (self.root.path / found.folder / name).lstat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(
        self, found: Found, name: str, what: str, read: Callable[[IO[bytes]], Value]
    ) -> Value | None:
        """What a function makes of a file, made again when the file has changed; None without."""
        stamp = self._stamp(found, name)
        if stamp is None:
            return None
        key = (found.folder, name, what)
        if key not in self._known or self._known[key][0] != stamp:
            try:
                with self.root.open(found.folder, name) as file:
                    self._known[key] = stamp, read(file)
            except (OSError, ValueError, RecursionError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise Unreadable(f"{name} cannot be read ({why})") from None
        value: Value = self._known[key][1]
        return value

    def _metrics_of(self, found: Found) -> Metrics:
        """Its metrics, read on; the runs that were asked for last are kept."""
        if found.id not in self._metrics:
            self._metrics[found.id] = Metrics()
            self._known.pop((found.folder, "metrics.jsonl", "columns"), None)
        self._metrics.move_to_end(found.id)
        if len(self._metrics) > KEPT_METRICS:
            self._metrics.popitem(last=False)
        metrics = self._metrics[found.id]
        with suppress(Unreadable):  # the run's message says why
            self._read(found, "metrics.jsonl", "columns", metrics.read_on)
        return metrics


def _train_losses(file: IO[bytes]) -> list[float]:
    return sample(file, "train_loss")


def _json(file: IO[bytes]) -> Any:
    content = file.read(MAX_JSON + 1)
    if len(content) > MAX_JSON:
        raise ValueError(f"it is larger than {MAX_JSON // 2**20} MiB")
    return json.loads(content, parse_constant=str)  # NaN is no JSON: it is text where we write it
