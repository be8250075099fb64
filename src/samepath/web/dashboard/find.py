"""Search for what samepath wrote under a folder, and open it safely.

In: a folder. Out: what was found in it, each item with an id made of its place. Guaranteed: no
link is followed, so that nothing outside the folder is read; the walk is bounded, and says so where
it stopped; nothing is written or locked.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from samepath.files import is_locked

MARKS = {
    "run.json": "run",
    "study.json": "study",
    "comparison.json": "comparison",
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
    "checkpoints", "weights", "cache", "tensorboard", "show",
}  # fmt: skip
MAX_DEPTH = 6
MAX_FOLDERS = 5_000
MAX_ITEMS = 1_000


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

    items: tuple[Item, ...]
    notes: tuple[str, ...]


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
        """Open a regular file, never through a link; OSError where there is none."""
        place = self.path / folder
        if os.path.realpath(place) != str(place):
            raise PermissionError(errno.EPERM, "it is a link to another place")
        how = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe does not hang us
        descriptor = os.open(place / name, how)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "it is not a plain file")
        return os.fdopen(descriptor, "rb")

    def is_locked(self, folder: str) -> bool:
        """True while a run trains here, or a study runs."""
        return is_locked(self.path / folder)


def id_of(*words: str) -> str:
    """An id that is the same for the same place whenever the server is started."""
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def search(root: RootFolder) -> Search:
    """Walk the folder and list its items."""
    items: list[Item] = []
    waiting: deque[tuple[str, int, str | None]] = deque([(".", 0, None)])
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
        found = [
            Item(id=id_of(folder, kind), kind=kind, folder=folder, mark=mark, parent=parent)
            for mark, kind in _marks(entries)
        ]
        items += found
        inner = found[0].id if found else parent
        for name, entry in sorted(entries.items()):
            if name in SKIPPED or name.startswith("."):
                continue
            if entry.is_symlink():
                # not entry.is_dir(), which raises where links lead round
                num_links += os.path.isdir(entry.path) and not _stays(root, entry.path)
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


def _stays(root: RootFolder, link: str) -> bool:
    """True for a link whose target is under the root: it is seen at its own place."""
    return Path(os.path.realpath(link)).is_relative_to(root.path)
