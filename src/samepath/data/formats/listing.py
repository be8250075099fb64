"""What is known of volumes, and the rules they meet before anything learns from them.

In: arrays, CSV tables, names of groups. Out: `Volumes`; rows and columns of tables; a split into
training and validation. Guaranteed: `checked` volumes are finite, in [0, 1], and cubes whose side
is a multiple of 4; what does not fit ends in one line that names the file (and line) and says what
to type; no group is on both sides of a split, which depends on the names alone.
"""

from __future__ import annotations

import csv
import hashlib
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.files import brief, check_memory, check_text, open_plain

Rows: TypeAlias = NDArray[np.int64]
Number = TypeVar("Number", int, float)

_GROUPS = ("group", "patient", "scan")
_PIECE_BYTES = 1 << 24
_MOST_LINE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What is known about each example besides its voxels."""

    names: tuple[str, ...]
    """Where each came from: 'crops/a.nii.gz', 'seriesuid#row', 'row 17' (counted from 0)."""
    group: tuple[str, ...]
    """Examples of one patient or scan share a group; else each its own name."""
    facts: dict[str, NDArray[Any]]
    """One value per example, such as 'diameter_mm' or 'label'; may be empty."""
    split: tuple[str, ...] | None = None
    """'train', 'valid' or 'test' per example, where the file itself says so."""

    def __post_init__(self) -> None:
        for values in (self.group, self.split, *self.facts.values()):
            if values is not None and len(values) != len(self.names):
                raise ValueError(f"{len(self.names)} names, but {len(values)} values of something")

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True)
class Volumes(Listing):
    """Cubes, and what is known about each."""

    cubes: NDArray[Any]
    """(N, side, side, side) as (z, y, x): uint8 (255 stands for 1.0) or float32 in [0, 1]; may be
    memory-mapped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.cubes) != len(self.names):
            raise ValueError(f"{len(self.names)} names, but {len(self.cubes)} cubes")


def checked(volumes: Volumes, path: Path) -> Volumes:
    """The volumes in a type to learn from, or an error that says which command makes it fit."""
    cubes = volumes.cubes
    check_shape(cubes.shape[1:], path)
    low, high, not_finite = value_range(cubes)
    if not_finite is not None:
        raise UserError(f"{path}: {volumes.names[not_finite]} holds NaN or infinite values")
    if cubes.dtype == np.uint8 and high == 1:
        raise UserError(
            f"{path}: values are bytes 0 and 1, where 255 should stand for 1.0; "
            f"type: {cubes_command(path)} --window 0,1"
        )
    if cubes.dtype != np.uint8 and (low < 0 or high > 1):
        raise UserError(
            f"{path}: values reach from {low:g} to {high:g}, not from 0 to 1; "
            f"type: {cubes_command(path)} --window LOW,HIGH"
        )
    if cubes.dtype not in (np.uint8, np.float32):
        try:
            check_memory(4 * cubes.size)
        except ValueError as error:
            raise UserError(
                f"{path} holds {cubes.dtype}, which must become float32 in memory, and {error}; "
                "save it as float32, which stays on disk"
            ) from None
        is_truth = cubes.dtype == np.bool_
        cubes = cubes * np.uint8(255) if is_truth else cubes.astype(np.float32)
    return replace(volumes, cubes=cubes)


def check_shape(shape: Sequence[int], path: Path) -> None:
    """Raise unless volumes are cubes with a side that is a multiple of 4."""
    if len(set(shape)) > 1 or shape[0] % 4:
        raise UserError(
            f"{path}: volumes of {by(shape)} voxels are not cubes with a side "
            f"that is a multiple of 4; type: {cubes_command(path)} --side 16"
        )


def cubes_command(path: Path) -> str:
    return f"samepath cubes {shlex.quote(str(path))} --out cubes"


def by(shape: Sequence[float]) -> str:
    """8 x 16 x 16"""
    return " x ".join(map(str, shape))


def value_range(volumes: NDArray[Any]) -> tuple[float, float, int | None]:
    """Lowest and highest finite value, and the first row that holds others; read in pieces.

    Bytes cannot break the rules: as soon as one is above 1, (0, 255) is the answer.
    """
    low, high, not_finite = math.inf, -math.inf, None
    rows = max(1, _PIECE_BYTES // max(1, volumes[0].nbytes))
    for start in range(0, len(volumes), rows):
        piece = volumes[start : start + rows]
        if piece.dtype == np.uint8 and piece.max() > 1:
            return 0.0, 255.0, None
        is_finite = np.isfinite(piece)
        if not is_finite.all():
            if not_finite is None:
                not_finite = start + int(is_finite.reshape(len(piece), -1).all(1).argmin())
            piece = piece[is_finite]
        if piece.size:
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    return low, high, not_finite


def check_side_mm(sides: NDArray[Any], path: Path, instead: str = "") -> NDArray[np.float64]:
    """The cubes' sides in millimetres, or an error of one line."""
    if sides.dtype.kind not in "uif" or not (np.isfinite(sides) & (sides > 0)).all():
        raise UserError(
            f"{path}: side_mm must be a number above 0 for every volume; correct it{instead}"
        )
    return sides.astype(np.float64)


# ---- groups


def take_group(columns: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """The column that says what belongs together, taken out of the others; else the names."""
    for name in _GROUPS:
        if name in columns:
            return tuple(str(value) for value in columns.pop(name))
    return names


def split_by_group(groups: Sequence[str], num_valid: int) -> tuple[Rows, Rows]:
    """Rows for training and validation, both ascending.

    Groups are taken in the order of their hashes (no random generator whose stream might change)
    and go to validation while they fit into `num_valid`, so that it holds that many where whole
    groups allow it, and never more.
    """
    names, numbers, counts = np.unique(
        np.asarray(groups, dtype=np.str_), return_inverse=True, return_counts=True
    )
    hashes = [hashlib.sha256(str(name).encode()).digest() for name in names]
    chosen: list[int] = []
    for number in sorted(range(len(names)), key=hashes.__getitem__):
        if counts[number] <= num_valid:
            chosen.append(number)
            num_valid -= counts[number]
    is_valid = np.isin(numbers, chosen)
    return np.flatnonzero(~is_valid), np.flatnonzero(is_valid)


# ---- CSV tables


def read_table(path: Path, required: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a CSV file with a header, each with its place: 'keep.csv, line 7'."""
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
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise UserError(
                        f"{where}: not {len(header)} values; the columns are "
                        f"{brief(', '.join(header))}"
                    )
                yield where, {key: value.strip() for key, value in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {brief(error)}") from error


def _lines(file: IO[str]) -> Iterator[str]:
    """Lines one by one, so that one without an end does not fill the memory."""
    while line := file.readline(_MOST_LINE):
        if len(line) == _MOST_LINE:
            raise csv.Error(f"a line has more than {_MOST_LINE:,} characters")
        yield line


def number_in(
    row: Mapping[str, str],
    name: str,
    where: str,
    kind: Callable[[str], Number],
    below: float = math.inf,
) -> Number:
    """A number of a table's row, smaller than `below`."""
    with suppress(ValueError):
        if abs(number := kind(row[name])) < below:
            return number
    what = "a whole number" if kind is int else "a number"
    raise UserError(f"{where}: {name} is {brief(repr(row[name]))}; it must be {what}")


def typed(values: list[str], where: Path) -> NDArray[Any]:
    """Whole numbers, else numbers (NaN where empty), else text; `where` they are from."""
    try:
        check_text(values)
    except ValueError as error:
        raise UserError(f"{where}: {error}; shorten its longest text") from None
    for kind in (np.int64, np.uint64, np.float64):  # uint64: the keys of generated nodules
        with suppress(ValueError, OverflowError):
            return np.array([value or "nan" for value in values]).astype(kind)
    return np.array(values)
