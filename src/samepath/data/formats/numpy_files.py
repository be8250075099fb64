"""Volumes in NumPy files, MedMNIST's among them.

In: an .npz or .npy file. Out: `Volumes` as they are stored, of any shape and range. Guaranteed:
nothing is unpickled, an .npy file stays on disk, memory is taken only for what a file holds, and
one that cannot be used ends in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import Volumes, take_group
from samepath.data.formats.npy import PickledObjects, map_array, unzip_arrays
from samepath.errors import UserError
from samepath.files import brief, check_memory, open_plain

_NAMES = ("volume", "volumes", "cubes", "images")
_SPLITS = {"train": "train", "val": "valid", "test": "test"}  # MedMNIST's words, and ours
_NAME_BYTES = 128  # what a volume's name and group take, at the least


def read_arrays(path: Path) -> Volumes:
    """The volumes of a file; other arrays with one value per volume are its facts."""
    arrays = _load(path)
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
    facts = {name: column for name, column in columns.items() if column is not None}
    return Volumes(cubes=volumes, names=names, group=take_group(facts, names), facts=facts)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    if path.suffix not in (".npz", ".npy"):
        raise UserError(
            f"{path} is no file of volumes; give an .npz or .npy file, or a folder of NIfTI files"
        )
    try:
        with open_plain(path) as file:
            if path.suffix == ".npy":
                return {"volume": map_array(file)}
            return unzip_arrays(file)
    except PickledObjects:
        raise UserError(
            f"{path} holds pickled Python objects, which could run code; save plain arrays: "
            "numpy.savez('cubes.npz', volume=array)"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a NumPy file ({brief(error)}); make it again with "
            "numpy.savez('cubes.npz', volume=array)"
        ) from error


def _medmnist(arrays: dict[str, NDArray[Any]], path: Path) -> Volumes:
    words = [word for word in _SPLITS if f"{word}_images" in arrays]
    parts = [arrays[f"{word}_images"] for word in words]
    if any(part.ndim != 4 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise UserError(
            f"{path} is laid out like MedMNIST but holds {_shapes(arrays)}; give a 3-D set "
            "such as nodulemnist3d.npz (number x 28 x 28 x 28)"
        )
    cubes = np.concatenate([_plain(part, path) for part in parts])
    rows = [
        (_SPLITS[word], row)
        for word, part in zip(words, parts, strict=True)
        for row in range(len(part))
    ]
    names = tuple(f"{split} row {row}" for split, row in rows)
    found = [
        _column(arrays.get(f"{word}_labels", np.zeros(())), len(part))
        for word, part in zip(words, parts, strict=True)
    ]
    labels = [column for column in found if column is not None]
    return Volumes(
        cubes=cubes,
        names=names,
        group=names,
        facts={"label": np.concatenate(labels)} if len(labels) == len(parts) else {},
        split=tuple(split for split, _ in rows),
    )


def _plain(array: NDArray[Any], path: Path) -> NDArray[Any]:
    if array.dtype.kind not in "buif":
        raise UserError(f"{path} holds values of type {array.dtype}; give uint8 or float32")
    if len(array) == 0:
        raise UserError(f"{path} holds no volumes (its shape is {array.shape}); give some")
    if array.size == 0:
        raise UserError(f"{path} holds volumes without voxels (its shape is {array.shape})")
    try:
        check_memory(max(array[0].nbytes, len(array) * _NAME_BYTES))
    except ValueError as error:
        raise UserError(f"{path} (its shape is {array.shape}) is too large: {error}") from None
    return array


def _shapes(arrays: dict[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"


def _column(array: NDArray[Any], length: int) -> NDArray[Any] | None:
    """An array as one value per volume, or None where it is no such thing."""
    if array.shape not in ((length,), (length, 1)):
        return None
    array = array.reshape(length)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.kind in "biufU" else None
