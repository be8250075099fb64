"""Keep-lists: which training examples are kept, and one line of reason for each.

In and out: a CSV file with the columns index, label, x, y, cluster, kept, reason, and note if there
are any; one row per training example, in order. Guaranteed: what is written is read back equal (x
and y to the last bit; text without blanks around it); a file is replaced whole, and only when
asked to; one that is not a keep-list ends in one line that names the file and line.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samepath.data.examples import examples_identity, labels_of
from samepath.data.formats.tables import read_table
from samepath.errors import UserError
from samepath.files import brief, replaced

__all__ = ["KeepList", "examples_identity", "labels_of", "read_keep_list", "write_keep_list"]

_LIMIT = 2.0**128 - 2.0**103  # from here on float32 rounds to infinity

COLUMNS = ("index", "label", "x", "y", "cluster", "kept", "reason")


@dataclass(frozen=True, kw_only=True, eq=False)
class KeepList:
    """What is said of each training example: one row of every array is one example."""

    labels: NDArray[np.int64] | None
    """Classes; None where examples have none."""
    positions: NDArray[np.float32]
    """(N, 2): places on the map."""
    clusters: NDArray[np.int64]
    """-1 is noise."""
    kept: NDArray[np.bool_]
    reasons: Sequence[str]
    """Why it is dropped; of a kept one "", or "kept by hand"."""
    notes: Sequence[str] | None = None
    """What a person wrote beside it; None where nobody did."""

    def __post_init__(self) -> None:
        columns = (self.labels, self.positions, self.clusters, self.reasons, self.notes)
        lengths = {len(column) for column in (self.kept, *columns) if column is not None}
        if lengths != {len(self.kept)} or self.positions.shape != (len(self.kept), 2):
            raise ValueError(f"the columns of a keep-list have {sorted(lengths)} rows; not equal")

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Numbers of the kept examples, ascending."""
        return np.flatnonzero(self.kept)

    @property
    def identity(self) -> str:
        """SHA-256 of which examples are kept, of how many: all that training depends on."""
        return hashlib.sha256(self.kept.astype(np.uint8).tobytes()).hexdigest()


def read_keep_list(path: Path) -> KeepList:
    """A keep-list from disk."""
    if not path.is_file():
        inside = path / "keep.csv"
        hint = f"did you mean {inside}?" if inside.is_file() else "`samepath curate` writes one"
        raise UserError(f"{path}: no such keep-list; {hint}")
    labels: list[int] = []
    positions: list[tuple[float, float]] = []
    clusters: list[int] = []
    kept: list[bool] = []
    reasons: list[str] = []
    notes: list[str] = []
    unlabelled = False
    for number, (line, row) in enumerate(read_table(path, COLUMNS)):
        if row["index"] != str(number):
            raise UserError(
                f"{path}, line {line}: index is {brief(repr(row['index']))} where {number} is due; "
                "a keep-list has one row per training example, in order"
            )
        if row["kept"] not in ("0", "1"):
            raise UserError(
                f"{path}, line {line}: kept is {brief(repr(row['kept']))}; it must be 1 or 0"
            )
        unlabelled = unlabelled if number else not row["label"]
        if not unlabelled:
            labels.append(_whole(path, line, "label", row["label"]))
        elif row["label"]:
            raise UserError(f"{path}, line {line}: has a label, and those before it have none")
        positions.append((_real(path, line, "x", row["x"]), _real(path, line, "y", row["y"])))
        clusters.append(_whole(path, line, "cluster", row["cluster"]))
        kept.append(row["kept"] == "1")
        reasons.append(row["reason"])
        if "note" in row:
            notes.append(row["note"])
    if not kept:
        raise UserError(f"{path} names no examples; give a keep-list with a row for each")
    return KeepList(
        labels=None if unlabelled else np.array(labels, dtype=np.int64),
        positions=np.array(positions, dtype=np.float32),
        clusters=np.array(clusters, dtype=np.int64),
        kept=np.array(kept),
        reasons=reasons,
        notes=notes or None,
    )


def write_keep_list(path: Path, keep_list: KeepList, *, overwrite: bool = False) -> None:
    """Write a keep-list, over another only when told to."""
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists and is not written over; give another name")
    labels = [""] * len(keep_list) if keep_list.labels is None else keep_list.labels.tolist()
    columns: dict[str, Sequence[object]] = {
        "index": range(len(keep_list)),
        "label": labels,
        # numpy's text of a float32 has as many digits as it takes to read the same one back
        "x": keep_list.positions[:, 0].astype(np.str_).tolist(),
        "y": keep_list.positions[:, 1].astype(np.str_).tolist(),
        "cluster": keep_list.clusters.tolist(),
        "kept": keep_list.kept.astype(np.int64).tolist(),
        "reason": keep_list.reasons,
    }
    assert tuple(columns) == COLUMNS
    if keep_list.notes is not None:
        columns["note"] = keep_list.notes
    try:
        with (
            replaced(path) as aside,
            aside.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another path") from None


def _whole(path: Path, line: int, name: str, text: str) -> int:
    with suppress(ValueError):
        if abs(number := int(text)) < 2**63:
            return number
    raise UserError(
        f"{path}, line {line}: {name} is {brief(repr(text))}; it must be a whole number"
    )


def _real(path: Path, line: int, name: str, text: str) -> float:
    with suppress(ValueError):
        if abs(number := float(text)) < _LIMIT:
            return number
    raise UserError(f"{path}, line {line}: {name} is {brief(repr(text))}; it must be a number")
