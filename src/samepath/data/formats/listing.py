"""What volumes are once they are read, and the rules they meet before anything learns from them.

In: arrays with names, groups and facts. Out: `Volumes`, `checked`: every value finite and in
[0, 1], every volume a cube whose side is a multiple of 4; what does not fit ends in one line that
says what to type.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.files import check_memory

_GROUPS = ("group", "patient", "scan")
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What is known about each example besides its voxels."""

    names: tuple[str, ...]
    """Where each came from: 'crops/a.nii.gz', 'seriesuid#row', 'row 17' (counted from 0)."""

    group: tuple[str, ...]
    """Examples of one patient or scan share a group; else each its own name. Splits keep groups
    together."""

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


def take_group(columns: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """The column that says what belongs together, taken out of the others; else the names."""
    for name in _GROUPS:
        if name in columns:
            return tuple(str(value) for value in columns.pop(name))
    return names


def checked(volumes: Volumes, path: Path) -> Volumes:
    """The volumes in a type to learn from, or an error that says which command makes it fit."""
    cubes = volumes.cubes
    check_shape(cubes.shape[1:], path)
    low, high, not_finite = value_range(cubes)
    if not_finite is not None:
        raise UserError(f"{path}: {volumes.names[not_finite]} holds NaN or infinite values")
    if cubes.dtype == np.uint8:
        if high == 1:
            raise UserError(
                f"{path}: values are bytes 0 and 1, where 255 should stand for 1.0; "
                f"type: {cubes_command(path)} --window 0,1"
            )
    elif low < 0 or high > 1:
        raise UserError(
            f"{path}: values reach from {low:g} to {high:g}, not from 0 to 1; "
            f"type: {cubes_command(path)} --window LOW,HIGH"
        )
    elif cubes.dtype != np.float32:
        try:
            check_memory(4 * cubes.size)
        except ValueError as error:
            raise UserError(
                f"{path} holds {cubes.dtype}, which must become float32 in memory, and {error}; "
                "save it as float32, which stays on disk"
            ) from None
        is_truth = cubes.dtype == np.bool_
        cubes = cubes.astype(np.uint8) * np.uint8(255) if is_truth else cubes.astype(np.float32)
    return replace(volumes, cubes=cubes)


def check_shape(shape: Sequence[int], path: Path) -> None:
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
        if piece.dtype.kind == "f":
            is_finite = np.isfinite(piece)
            if not is_finite.all():
                bad = np.flatnonzero(~is_finite.reshape(len(piece), -1).all(1))
                not_finite = start + int(bad[0]) if not_finite is None else not_finite
                piece = piece[is_finite]
        elif piece.dtype == np.uint8 and piece.max() > 1:
            return 0.0, 255.0, None
        if piece.size:
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    return low, high, not_finite
