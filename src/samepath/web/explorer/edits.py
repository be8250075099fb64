"""Edits of a keep-list by hand, with undo and redo, safe from crashes.

In: a keep-list, and edits to its rows. Out: the columns as they stand. Guaranteed: every edit is on
disk, in a journal beside the keep-list, before it counts; opened again, the columns and the history
are as they were left; a line that a crash cut off is as if it had never been begun; a journal of
another keep-list is set aside, never used and never deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.data.keep_list import KeepList
from samepath.errors import UserError
from samepath.files import brief, content_hash, parse_json, read_whole

FORMAT = 1
MOST_JOURNAL = 1 << 30
OWN_LABEL = -1
Rows = NDArray[np.int64]


class Columns(NamedTuple):
    """The columns that can be changed, of some rows or of all."""

    kept: NDArray[np.bool_]
    reasons: NDArray[np.object_]
    clusters: NDArray[np.int64]
    notes: NDArray[np.object_]
    targets: NDArray[np.int64]
    """Labels given by relabelling; OWN_LABEL where the example has its own."""

    def take(self, rows: Rows | NDArray[np.bool_]) -> Columns:
        return Columns(
            self.kept[rows],
            self.reasons[rows],
            self.clusters[rows],
            self.notes[rows],
            self.targets[rows],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """New values of some rows."""

    title: str
    """Words for it, as in "undo: drop 12 examples"."""
    rows: Rows
    after: Columns
    setting: tuple[int, float, int] | None = None
    """The class, eps and min_samples of an edit that clusters again."""

    def as_line(self) -> dict[str, Any]:
        values = {name: column.tolist() for name, column in self.after._asdict().items()}
        return {"edit": self.title, "rows": self.rows.tolist(), **values, "setting": self.setting}

    @classmethod
    def from_line(cls, line: dict[str, Any], number: int) -> Edit:
        rows = np.array(line["rows"], dtype=np.int64)
        after = Columns(
            kept=np.array(line["kept"], dtype=np.bool_),
            reasons=texts(line["reasons"]),
            clusters=np.array(line["clusters"], dtype=np.int64),
            notes=texts(line["notes"]),
            targets=np.array(line.get("targets", [OWN_LABEL] * len(rows)), dtype=np.int64),
        )
        inside = ((rows >= 0) & (rows < number)).all()
        if not inside or any(len(column) != len(rows) for column in after):
            raise ValueError("rows and values do not match")
        if not all(isinstance(text, str) for text in (*after.reasons, *after.notes)):
            raise ValueError("a reason or a note is no text")
        setting = line["setting"]
        if setting is not None:
            setting = int(setting[0]), float(setting[1]), int(setting[2])
        return cls(title=str(line["edit"]), rows=rows, after=after, setting=setting)


def texts(values: Sequence[str]) -> NDArray[np.object_]:
    """Strings of any length as an array."""
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


def _targets(keep_list: KeepList) -> NDArray[np.int64]:
    """The new labels of a keep-list that relabels."""
    own = np.full(len(keep_list), OWN_LABEL, dtype=np.int64)
    if keep_list.relabelled is None or keep_list.suggested is None:
        return own
    return np.where(keep_list.relabelled, keep_list.suggested, own)


def journal_of(keep: Path, folder: Path) -> Path:
    """The file of unsaved edits of a keep-list, in the folder that is explored."""
    return folder / f"{keep.name}.edits"


class Edits:
    """A keep-list being edited."""

    def __init__(
        self, keep_list: KeepList, keep: Path, journal: Path, *, read_only: bool = False
    ) -> None:
        self.columns = Columns(
            kept=keep_list.kept.copy(),
            reasons=texts(keep_list.reasons),
            clusters=keep_list.clusters.copy(),
            notes=texts(keep_list.notes or [""] * len(keep_list)),
            targets=_targets(keep_list),
        )
        self.journal = journal
        self.set_aside: Path | None = None
        """The file to which edits of an older keep-list of the same name were moved."""
        self.version = 0
        """A number that grows with every change: a page that has another one is behind."""
        self._done: list[tuple[Edit, Columns]] = []
        self._undone: list[Edit] = []
        self._saved_at: Edit | None = None
        self._header = {"format": FORMAT, "keep": keep.name, "sha256": content_hash(keep)}
        self._restore(read_only)

    @property
    def is_saved(self) -> bool:
        """True if the columns are those of a file: the one opened, or the last one saved."""
        return self._last is self._saved_at

    @property
    def _last(self) -> Edit | None:
        return self._done[-1][0] if self._done else None

    def state(self) -> dict[str, Any]:
        """What can be undone, eps and min_samples of classes that were clustered again, and whether
        all is saved."""
        given = [edit.setting for edit, _ in self._done if edit.setting is not None]
        return {
            "version": self.version,
            "undo": self._last.title if self._last else None,
            "redo": self._undone[-1].title if self._undone else None,
            "num_edits": len(self._done),
            "settings": {label: (eps, min_samples) for label, eps, min_samples in given},
            "is_saved": self.is_saved,
        }

    def apply(self, edit: Edit) -> Rows:
        """Make an edit; returns the rows it changed."""
        return self._journaled(edit.as_line())

    def undo(self) -> Rows:
        """Undo the last edit; returns the rows it changed."""
        if not self._done:
            raise UserError("there is nothing to undo")
        return self._journaled({"undo": 1})

    def redo(self) -> Rows:
        """Redo what was undone last; returns the rows it changed."""
        if not self._undone:
            raise UserError("there is nothing to redo")
        return self._journaled({"redo": 1})

    def mark_saved(self, file: Path) -> None:
        self._journaled({"saved": file.name})

    def _journaled(self, line: dict[str, Any]) -> Rows:
        self._write(line)
        return self._replay(line)

    def _replay(self, line: dict[str, Any]) -> Rows:
        """Do what a line of the journal says; returns the rows that changed."""
        if "edit" in line:
            edit = Edit.from_line(line, len(self.columns.kept))
            self._undone.clear()
            return self._apply(edit)
        if "undo" in line:
            edit, before = self._done.pop()
            self._undone.append(edit)
            return self._set(edit.rows, before)
        if "redo" in line:
            return self._apply(self._undone.pop())
        if "saved" in line:
            self._saved_at = self._last
            return np.arange(0)
        raise ValueError("no such entry")

    def _apply(self, edit: Edit) -> Rows:
        self._done.append((edit, self.columns.take(edit.rows)))
        return self._set(edit.rows, edit.after)

    def _set(self, rows: Rows, values: Columns) -> Rows:
        for column, new in zip(self.columns, values, strict=True):
            column[rows] = new
        self.version += 1
        return rows

    # ---- the journal

    def _write(self, line: dict[str, Any]) -> None:
        """Add a line to the journal: on disk when this returns, all of it or nothing."""
        lines = [line] if self.journal.exists() else [self._header, line]
        try:
            with self.journal.open("ab") as file:
                size = file.tell()
                try:
                    file.write("".join(json.dumps(each) + "\n" for each in lines).encode())
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
        except OSError as error:
            raise UserError(
                f"{self.journal} cannot be written ({error.strerror}); nothing was changed"
            ) from None

    def _restore(self, read_only: bool) -> None:
        """Take up the journal of this keep-list, if there is one."""
        if not self.journal.exists():
            return
        try:
            content = read_whole(self.journal, MOST_JOURNAL)
        except (OSError, ValueError) as error:
            raise self._unusable(f"cannot be read ({brief(error)})") from None
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.decode("utf-8", "replace").splitlines()
        try:
            header = parse_json(lines[0]) if lines else None
        except ValueError:
            header = None
        if header != self._header:
            if not read_only:
                self._put_aside()
            return
        for number, text in enumerate(lines[1:], start=2):
            try:
                self._replay(parse_json(text))
            except (ValueError, LookupError, TypeError, ArithmeticError) as error:
                raise self._unusable(f"line {number} cannot be read ({brief(error)})") from None
        if read_only:
            return
        if self.is_saved:
            self._forget()
        elif len(whole) < len(content):
            os.truncate(self.journal, len(whole))

    def _unusable(self, why: str) -> UserError:
        again = f"move the file away to begin again from {self._header['keep']}"
        return UserError(f"{self.journal}, {why}; {again}")

    def _forget(self) -> None:
        """Remove a journal whose edits are all in a saved keep-list; this one is shown unedited."""
        while self._done:
            self._replay({"undo": 1})
        self._undone.clear()
        self._saved_at = None
        self.version = 0
        self.journal.unlink()

    def _put_aside(self) -> None:
        number = 1
        while (aside := self.journal.with_name(f"{self.journal.name}-{number}")).exists():
            number += 1
        self.journal.rename(aside)
        self.set_aside = aside
