"""Fold files: which examples a fold of cross-validation holds out.

In and out: a CSV file with the columns index and held_out (1 or 0), one row per example, in order:
those of the training data, and of the validation data after them where both are split together. It
is given where a keep-list is. Guaranteed: what is written is read back equal; a file that is not of
this form ends in one line that names the file and line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import read_table
from samepath.errors import UserError
from samepath.files import brief, open_plain, write_atomically

COLUMNS = ("index", "held_out")


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold: what is trained on, and what is held out."""

    held_out: NDArray[np.bool_]
    """One value per example."""

    def __len__(self) -> int:
        return len(self.held_out)

    @property
    def train(self) -> NDArray[np.int64]:
        """Numbers of the examples that are trained on, ascending."""
        return np.flatnonzero(~self.held_out)

    @property
    def valid(self) -> NDArray[np.int64]:
        """Numbers of the examples that are held out, ascending."""
        return np.flatnonzero(self.held_out)

    @property
    def identity(self) -> str:
        """SHA-256 of which examples are held out, of how many."""
        return hashlib.sha256(b"fold" + self.held_out.astype(np.uint8).tobytes()).hexdigest()


def is_fold_file(path: Path) -> bool:
    """Whether a file begins as a fold file does. (One that cannot be read does not.)"""
    try:
        with open_plain(path) as file:
            first = file.readline(100)
    except OSError:
        return False
    return first.strip() == ",".join(COLUMNS).encode()


def write_fold(path: Path, fold: Fold) -> None:
    """Write a fold file, replacing an older one whole."""
    rows = (f"{index},{int(held)}\n" for index, held in enumerate(fold.held_out.tolist()))
    write_atomically(path, ",".join(COLUMNS) + "\n" + "".join(rows))


def read_fold(path: Path) -> Fold:
    """Read a fold file."""
    held_out: list[bool] = []
    for where, row in read_table(path, COLUMNS):
        if row["index"] != str(len(held_out)):
            raise UserError(
                f"{where}: index is {brief(repr(row['index']))} where {len(held_out)} is due; a "
                "fold file has one row per example, in order"
            )
        if row["held_out"] not in ("0", "1"):
            raise UserError(
                f"{where}: held_out is {brief(repr(row['held_out']))}; it must be 1 or 0"
            )
        held_out.append(row["held_out"] == "1")
    if len(set(held_out)) < 2:
        raise UserError(f"{path} holds out all examples or none; hold out some, and train on some")
    return Fold(np.array(held_out))
