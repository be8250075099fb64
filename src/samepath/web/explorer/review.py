"""How far a review of the examples has come: which of them a person has looked at.

In: rows that were looked at. Out: a flag for each example. Guaranteed: on disk, beside the
keep-lists, before it counts; opened again it is as it was left; a line that a crash cut off is as
if it had never been begun.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from samepath.errors import UserError
from samepath.files import brief, read_whole
from samepath.web.explorer.edits import Rows

NAME = "reviewed.txt"
AGAIN = "again"
_MOST_BYTES = 1 << 26


class Review:
    """The examples of a folder that were reviewed."""

    def __init__(self, folder: Path, number: int) -> None:
        self._file = folder / NAME
        self.seen = np.zeros(number, dtype=bool)
        if not self._file.exists():
            return
        try:
            content = read_whole(self._file, _MOST_BYTES).decode()
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self._file} cannot be read ({brief(error)}); move it away to begin the review "
                "again"
            ) from None
        for line in content[: content.rfind("\n") + 1].split():
            if line == AGAIN:
                self.seen[:] = False
            elif line.isascii() and line.isdecimal() and int(line) < number:
                self.seen[int(line)] = True
            else:
                raise UserError(
                    f"{self._file}: {brief(repr(line))} is no example of this folder; move the "
                    "file away to begin the review again"
                )

    def add(self, rows: Rows) -> None:
        """Remember that these examples were looked at."""
        new = rows[~self.seen[rows]]
        self._write("".join(f"{row}\n" for row in new.tolist()))
        self.seen[new] = True

    def begin_again(self) -> None:
        self._write(f"{AGAIN}\n")
        self.seen[:] = False

    def _write(self, text: str) -> None:
        try:
            with self._file.open("a+b") as file:  # after half a line, begin a new one
                size = file.tell()
                file.seek(max(size - 1, 0))
                cut = size > 0 and file.read(1) != b"\n"
                if cut:
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"{self._file} cannot be written ({error.strerror})") from None
