"""Cube folders: `cubes.npy` (the voxels, uint8) and `cubes.json` (all else).

In and out: cubes with what is known about each. Guaranteed: a folder is written aside and renamed,
so that it is complete or absent, whoever else makes the same one at the same time; one that was
damaged since is refused, by its checksum.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import Listing, Volumes, check_shape
from samepath.data.formats.npy import map_array
from samepath.errors import UserError
from samepath.files import brief, check_text, content_hash, folder_aside, open_plain, read_object
from samepath.version import __version__

FORMAT = 1
ABOUT = "cubes.json"
"""The file that makes a folder a cube folder."""
_VOXELS = "cubes.npy"
_WRONG_CONTENT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_DAMAGED = (*_WRONG_CONTENT, OSError, EOFError, MemoryError, RuntimeError)


class Made(NamedTuple):
    """A cube for a row of the listing, and facts found while it was made."""

    row: int
    voxels: NDArray[np.uint8]
    facts: dict[str, float]


def write_cubes(
    out: Path, listing: Listing, made: Iterable[Made], side: int, about: dict[str, Any]
) -> bool:
    """Write a cube folder of what is made: some or all rows of the listing, in order.

    `about` is read at the end and may be filled while cubes are made. Returns False where someone
    else put a cube folder there first: theirs stays.
    """
    rows: list[int] = []
    found: list[dict[str, float]] = []
    try:
        with folder_aside(out, shared=True) as aside:
            with (aside / _VOXELS).open("wb+") as file:
                _write_header(file, 0, side)
                for cube in made:
                    file.write(np.ascontiguousarray(cube.voxels).tobytes())
                    rows.append(cube.row)
                    found.append(cube.facts)
                file.seek(0)
                _write_header(file, len(rows), side)  # as long: numpy leaves room for digits
            facts = {key: values[rows] for key, values in listing.facts.items()}
            for key in found[0] if found else ():
                facts[key] = np.array([each[key] for each in found])
            content = {
                "format": FORMAT,
                "samepath": __version__,
                **about,
                "sha256": content_hash(aside / _VOXELS),
                "names": [listing.names[row] for row in rows],
                "group": [listing.group[row] for row in rows],
                "split": listing.split and [listing.split[row] for row in rows],
                "facts": {key: _dump_column(values) for key, values in facts.items()},
            }
            (aside / ABOUT).write_text(json.dumps(content, indent=1, allow_nan=False))
            try:
                aside.rename(out)
            except OSError:
                if (out / ABOUT).exists():
                    return False
                raise
            return True
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error


def open_cubes(folder: Path) -> Volumes:
    """A cube folder, its voxels memory-mapped; its checksum is compared first."""
    try:
        content = read_object(folder / ABOUT)
        if content["format"] != FORMAT:
            raise UserError(
                f"{folder} has cube format {brief(content['format'])}, this samepath reads "
                f"{FORMAT}; make it again with samepath cubes"
            )
        if content_hash(folder / _VOXELS) != content["sha256"]:
            raise ValueError("the checksum differs")
        with open_plain(folder / _VOXELS) as file:
            cubes = map_array(file)
        if cubes.dtype != np.uint8 or cubes.ndim != 4 or not cubes.size:
            raise ValueError(f"its voxels are {cubes.dtype} of the shape {cubes.shape}")
        check_shape(cubes.shape[1:], folder)
        return Volumes(
            cubes=cubes,
            names=_texts(content["names"]),
            group=_texts(content["group"]),
            facts={key: _load_column(column) for key, column in content["facts"].items()},
            split=content["split"] and _texts(content["split"]),
        )
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(
            f"{folder} is damaged or incomplete ({brief(error)}); delete it and make it again"
        ) from error


def _write_header(file: IO[bytes], count: int, side: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, side)}
    np.lib.format.write_array_header_1_0(file, header)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("names, groups or splits are not text")
    check_text(values)
    return tuple(values)


def _load_column(column: dict[str, Any]) -> NDArray[Any]:
    """What `_dump_column` wrote."""
    if not (kind := re.fullmatch(r"[<>|=]([biufU])\d+", column["dtype"])):
        raise ValueError("facts that are neither numbers nor text")
    if kind[1] == "U":  # as long as they are, whatever the type says
        return np.array(_texts(column["values"]))
    return np.array(column["values"], kind[0])


def _dump_column(array: NDArray[Any]) -> dict[str, Any]:
    """Facts for JSON, which has no word for NaN and infinity: they become text."""
    values = [
        str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in array.tolist()
    ]
    return {"dtype": array.dtype.str, "values": values}
