"""Folders of files, and the CSV tables beside them.

In: a folder or a CSV file with a header. Out: paths; rows with their line numbers; columns as
arrays. Guaranteed: a table that cannot be used ends in one line that names the file and line.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.files import brief, check_text, open_plain

_MOST_LINE = 1 << 20


def files_below(folder: Path, *endings: str) -> list[Path]:
    """Files at any depth with one of these endings, sorted; hidden ones are left out.

    Linked folders are entered, each real folder once.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in files if not name.startswith("."))
        found += [Path(place, name) for name in visible if name.endswith(endings)]
    return sorted(found)


def read_table(path: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with a header, each with its line number."""
    try:
        with TextIOWrapper(open_plain(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(_lines(file), strict=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            if not set(required) <= set(header) or len(set(header)) < len(header):
                raise UserError(
                    f"{path}: its first line must name the columns {', '.join(required)}, each "
                    f"once; it names {brief(', '.join(header)) or 'nothing'}"
                )
            reader.fieldnames = header
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(
                        f"{path}, line {reader.line_num}: not {len(header)} values; "
                        f"the columns are {brief(', '.join(header))}"
                    )
                yield reader.line_num, {key: value.strip() for key, value in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {brief(error)}") from error


def _lines(file: IO[str]) -> Iterator[str]:
    """Lines one by one, so that one without an end does not fill the memory."""
    while line := file.readline(_MOST_LINE):
        if len(line) == _MOST_LINE:
            raise csv.Error(f"a line has more than {_MOST_LINE:,} characters")
        yield line


def typed(values: list[str], where: Path) -> NDArray[Any]:
    """Whole numbers, else numbers (NaN where empty), else text; `where` they are from."""
    try:
        check_text(values)
    except ValueError as error:
        raise UserError(f"{where}: {error}; shorten its longest text") from None
    for kind in (np.int64, np.uint64, np.float64):  # uint64: the keys of generated nodules
        try:
            return np.array([value or "nan" for value in values]).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(values)
