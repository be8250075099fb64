"""Volumes to learn from: cubes of voxels in [0, 1], from the files people have.

In: an .npz or .npy file (MedMNIST's among them), a folder of NIfTI files, a LUNA16 folder, or a
folder that `samepath cubes` wrote. Out: `Volumes`. Guaranteed: every value is finite and in
[0, 1], every volume is a cube whose side is a multiple of 4, nothing is unpickled, and what does
not fit ends in one line that says what to type. Large .npy files and cube folders stay on disk.
Long because every kind of file meets the same checks here.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import shlex
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.images import (
    NIFTI,
    ImageProblem,
    as_array,
    files_below,
    read_image,
    value_range,
)
from samepath.errors import UserError

FORMAT = 1
"""Of cube folders."""

_NAMES = ("volume", "volumes", "cubes", "images")
_GROUPS = ("group", "patient", "scan")
_SPLITS = {"train": "train", "val": "valid", "test": "test"}  # MedMNIST's words, and ours
_ZIP_TROUBLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
_UNREADABLE = (*_ZIP_TROUBLE, ValueError, OSError, MemoryError, KeyError)


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
        assert len(self.group) == len(self.names)
        assert all(len(values) == len(self.names) for values in self.facts.values())
        assert self.split is None or len(self.split) == len(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True)
class Volumes(Listing):
    """Cubes, and what is known about each."""

    cubes: NDArray[Any]
    """(N, side, side, side) as (z, y, x): uint8 (255 stands for 1.0) or float32 in [0, 1]; may be
    memory-mapped."""


def load_volumes(path: Path) -> Volumes:
    """Volumes from a file or folder, checked (see the module). LUNA16 scans are made into cubes
    once and kept in a cache; see `samepath.data.luna16`."""
    path = path.expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; give volumes such as cubes.npz")
    if path.is_file():
        return _checked(read_arrays(path), path)
    if (path / "cubes.json").exists():
        return open_cubes(path)
    if (path / "annotations.csv").exists():
        from samepath.data.luna16 import cached_cubes  # it builds on this module

        return cached_cubes(path)
    return _stack_nifti(path)


# ---- NumPy files


def read_arrays(path: Path) -> Volumes:
    """An .npz or .npy file as it is: volumes of any shape and range."""
    if path.suffix not in (".npz", ".npy"):
        raise UserError(
            f"{path} is no file of volumes; give an .npz or .npy file, or a folder of NIfTI files"
        )
    arrays: dict[str, NDArray[Any]]
    try:
        if path.suffix == ".npy":
            arrays = {"volume": np.lib.format.open_memmap(path, mode="r")}
        else:
            with path.open("rb") as file, zipfile.ZipFile(file):  # else numpy tries to unpickle
                file.seek(0)
                loaded = np.load(file, allow_pickle=False)
                arrays = {name: loaded[name] for name in loaded.files}
    except _UNREADABLE as error:
        if "Object arrays" in str(error) or "Python objects" in str(error):
            raise UserError(
                f"{path} holds pickled Python objects, which could run code; save plain arrays: "
                "numpy.savez('cubes.npz', volume=array)"
            ) from error
        raise UserError(
            f"{path} cannot be read (truncated, or not a NumPy file); make it again with "
            "numpy.savez('cubes.npz', volume=array)"
        ) from error
    if any(f"{word}_images" in arrays for word in _SPLITS):
        return _medmnist(arrays, path)
    found = [name for name in _NAMES if name in arrays and arrays[name].ndim == 4]
    found = found or [name for name, array in arrays.items() if array.ndim == 4]
    if len(found) > 1:
        raise UserError(
            f"{path} holds several arrays of volumes: {', '.join(found)}; keep one, named 'volume'"
        )
    if not found:
        raise UserError(
            f"{path} holds no array of number x depth x height x width, only {_shapes(arrays)}; "
            "give one, named 'volume'"
        )
    volumes = _plain(arrays.pop(found[0]), path)
    names = tuple(f"row {row}" for row in range(len(volumes)))
    columns = {name: _column(array, len(names)) for name, array in arrays.items()}
    known = {name: column for name, column in columns.items() if column is not None}
    return Volumes(cubes=volumes, names=names, group=_take_group(known, names), facts=known)


def _medmnist(arrays: dict[str, NDArray[Any]], path: Path) -> Volumes:
    parts: list[NDArray[Any]] = []
    labels: list[NDArray[Any] | None] = []
    names: list[str] = []
    split: list[str] = []
    for word, ours in _SPLITS.items():
        if f"{word}_images" not in arrays:
            continue
        images = arrays[f"{word}_images"]
        if images.ndim != 4 or (parts and images.shape[1:] != parts[0].shape[1:]):
            raise UserError(
                f"{path} is laid out like MedMNIST but holds {_shapes(arrays)}; give a 3-D set "
                "such as nodulemnist3d.npz (number x 28 x 28 x 28)"
            )
        parts.append(_plain(images, path))
        labels.append(_column(arrays.get(f"{word}_labels", np.zeros(())), len(images)))
        names += [f"{ours} row {row}" for row in range(len(images))]
        split += [ours] * len(images)
    known = [column for column in labels if column is not None]
    return Volumes(
        cubes=np.concatenate(parts),
        names=tuple(names),
        group=tuple(names),
        facts={"label": np.concatenate(known)} if len(known) == len(parts) else {},
        split=tuple(split),
    )


def _plain(array: NDArray[Any], path: Path) -> NDArray[Any]:
    if array.dtype.kind not in "buif":
        raise UserError(f"{path} holds values of type {array.dtype}; give uint8 or float32")
    if len(array) == 0:
        raise UserError(f"{path} holds no volumes (its shape is {array.shape}); give some")
    if array.size == 0:
        raise UserError(f"{path} holds volumes without voxels (its shape is {array.shape})")
    return array


def _shapes(arrays: dict[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"


def _column(array: NDArray[Any], length: int) -> NDArray[Any] | None:
    """An array as one value per example, or None where it is no such thing."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (length,):
        return None
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    if array.dtype.itemsize > 8 and array.dtype.kind == "f":
        array = array.astype(np.float64)
    return np.array(array) if array.dtype.kind in "biufU" else None


def _take_group(columns: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    for name in _GROUPS:
        if name in columns:
            values = columns.pop(name)
            return tuple(str(value) for value in values)
    return names


# ---- checks


def _checked(volumes: Volumes, path: Path) -> Volumes:
    """The same in a type to learn from, or an error that says which command makes it fit."""
    cubes = volumes.cubes
    check_shape(cubes.shape[1:], path)
    low, high, not_finite = value_range(cubes)
    if not_finite is not None:
        raise UserError(f"{path}: {volumes.names[not_finite]} holds NaN or infinite values")
    check_range(low, high, cubes.dtype, path)
    if cubes.dtype == np.bool_:
        cubes = cubes.astype(np.uint8) * np.uint8(255)
    elif cubes.dtype not in (np.uint8, np.float32):
        cubes = cubes.astype(np.float32)
    return replace(volumes, cubes=cubes)


def check_shape(shape: Sequence[int], path: Path) -> None:
    if len(set(shape)) > 1 or shape[0] % 4:
        raise UserError(
            f"{path}: volumes of {' x '.join(map(str, shape))} voxels are not cubes with a side "
            f"that is a multiple of 4; type: {_command(path)} --side 16"
        )


def check_range(low: float, high: float, dtype: np.dtype[Any], path: Path) -> None:
    if dtype == np.uint8 and high == 1:
        raise UserError(
            f"{path}: values are bytes 0 and 1, where 255 should stand for 1.0; "
            f"type: {_command(path)} --window 0,1"
        )
    if dtype != np.uint8 and (low < 0 or high > 1):
        raise UserError(
            f"{path}: values reach from {low:g} to {high:g}, not from 0 to 1; "
            f"type: {_command(path)} --window LOW,HIGH"
        )


def _command(path: Path) -> str:
    return f"samepath cubes {shlex.quote(str(path))} --out cubes"


# ---- folders of NIfTI files


def list_nifti(folder: Path) -> tuple[list[Path], Listing]:
    """The NIfTI files below a folder, and what its `facts.csv` (if any) says about them."""
    files = files_below(folder, NIFTI)
    if not files:
        scans = bool(files_below(folder, (".mhd",)))
        raise UserError(
            f"{folder} holds .mhd scans but no annotations.csv; put LUNA16's beside them"
            if scans
            else f"{folder} holds no volumes; give a folder of .nii.gz files, a LUNA16 folder "
            "(with annotations.csv) or one that samepath cubes wrote"
        )
    names = tuple(file.relative_to(folder).as_posix() for file in files)
    columns: dict[str, list[str]] = {}
    table = folder / "facts.csv"
    if table.exists():
        rows: dict[str, dict[str, str]] = {}
        for line, row in read_table(table, ("file",)):
            if rows.setdefault(row["file"], row) is not row:
                raise UserError(f"{table}, line {line}: {row['file']} again; keep one row of it")
        absent = [name for name in names if name not in rows]
        if absent:
            raise UserError(f"{table} has no row for {absent[0]}; add one, or remove the file")
        keys = [key for key in rows[names[0]] if key != "file"]
        columns = {key: [rows[name][key] for name in names] for key in keys}
    group = _take_group(columns, names)
    facts = {key: _typed(values) for key, values in columns.items()}
    return files, Listing(names=names, group=group, facts=facts)


def _stack_nifti(folder: Path) -> Volumes:
    files, listing = list_nifti(folder)
    arrays: list[NDArray[Any]] = []
    for file in files:
        try:
            array = as_array(read_image(file))
        except ImageProblem as problem:
            raise UserError(f"{file}: {problem}; remove or replace it") from problem
        if not arrays:
            check_shape(array.shape, folder)
        elif array.shape != arrays[0].shape:
            raise UserError(
                f"{file} has {' x '.join(map(str, array.shape))} voxels, {files[0].name} has "
                f"{' x '.join(map(str, arrays[0].shape))}; type: {_command(folder)} --side 16"
            )
        low, high, not_finite = value_range(array[None])
        if not_finite is not None:
            raise UserError(f"{file}: holds NaN or infinite values; remove or replace it")
        if array.dtype != np.uint8:
            check_range(low, high, array.dtype, folder)
            array = array.astype(np.float32)
        arrays.append(array)
    if len({array.dtype for array in arrays}) > 1:
        arrays = [a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays]
    stacked = Volumes(cubes=np.stack(arrays), **vars(listing))
    return _checked(stacked, folder)


def read_table(path: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with a header, each with its line number."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            missing = [name for name in required if name not in header]
            if missing or len(set(header)) < len(header):
                raise UserError(
                    f"{path}: its first line must name the columns {', '.join(required)}, each "
                    f"once; it names {', '.join(header) or 'nothing'}"
                )
            reader.fieldnames = header
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(
                        f"{path}, line {reader.line_num}: not {len(header)} values; "
                        f"the columns are {', '.join(header)}"
                    )
                yield reader.line_num, {key: value.strip() for key, value in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}") from error


def _typed(values: list[str]) -> NDArray[Any]:
    """Whole numbers, else numbers (NaN where empty), else text."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([value or "nan" for value in values]).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(values)


# ---- cube folders


def open_cubes(folder: Path) -> Volumes:
    """A cube folder, its voxels memory-mapped; its checksum is compared first."""
    try:
        content = json.loads((folder / "cubes.json").read_text())
        if content["format"] != FORMAT:
            raise UserError(
                f"{folder} has cube format {content['format']}, this samepath reads {FORMAT}; "
                "make it again with samepath cubes"
            )
        with (folder / "cubes.npy").open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["sha256"]:
                raise ValueError("the checksum differs")
        cubes = np.load(folder / "cubes.npy", mmap_mode="r", allow_pickle=False)
        listing = Listing(
            names=tuple(content["names"]),
            group=tuple(content["group"]),
            facts={key: _load_column(column) for key, column in content["facts"].items()},
            split=content["split"] and tuple(content["split"]),
        )
        if len(listing) != len(cubes):
            raise ValueError("the numbers of cubes differ")
    except UserError:
        raise
    except (*_UNREADABLE, TypeError, AttributeError, AssertionError) as error:
        raise UserError(
            f"{folder} is damaged or incomplete ({error}); delete it and make it again"
        ) from error
    return Volumes(cubes=cubes, **vars(listing))


def dump_column(array: NDArray[Any]) -> dict[str, Any]:
    """Facts for JSON, which has no word for NaN and infinity: they become text."""
    values = [
        str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in array.tolist()
    ]
    return {"dtype": array.dtype.str, "values": values}


def _load_column(column: dict[str, Any]) -> NDArray[Any]:
    return np.array(column["values"], dtype=np.dtype(column["dtype"]))
