"""Volumes in NumPy files, MedMNIST's among them.

In: an .npz or .npy file. Out: `Volumes` as they are stored, of any shape and range. Guaranteed:
nothing is unpickled; an .npy file stays on disk; a header is held against the length of the file
before memory is taken, and so are the sizes that an archive gives its members, which may not share
bytes (numpy's own reader believes them); a file that cannot be used ends in one line.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from samepath.data.formats.listing import Volumes, take_group
from samepath.errors import UserError
from samepath.files import brief, check_memory, check_unpacked, guarded, open_plain, size_of

Arrays = dict[str, NDArray[Any]]

_NAMES = ("volume", "volumes", "cubes", "images")
_SPLITS = {"train": "train", "val": "valid", "test": "test"}  # MedMNIST's words, and ours
_NAME_BYTES = 128  # what a volume's name and group take, at the least
_MOST_HEADER = 1 << 16
_PIECE_BYTES = 1 << 22
_LOCAL_HEADER = 30  # bytes that a zip file has before a member, at the least


def read_arrays(path: Path) -> Volumes:
    """The volumes of a file; other arrays with one value per volume are its facts, and `split`
    (train, valid or test) says what each is for."""
    if path.suffix not in (".npz", ".npy"):
        raise UserError(
            f"{path} is no file of volumes; give an .npz or .npy file, or a folder of NIfTI files"
        )
    arrays = load_arrays(path, "numpy.savez('cubes.npz', volume=array)")
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
    split = _take_split(facts, path)
    group = take_group(facts, names)
    return Volumes(cubes=volumes, names=names, group=group, facts=facts, split=split)


def read_masks(path: Path, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """The array `mask` of an .npz file, one for each volume (`shape` is that of all volumes), none
    of them empty; None where the file has none."""
    arrays = load_arrays(path, "numpy.savez('cubes.npz', volume=array, mask=masks)")
    return checked_masks(arrays["mask"], path, shape) if "mask" in arrays else None


def checked_masks(mask: NDArray[Any], path: Path, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Masks of volumes of a shape as booleans, or an error of one line."""
    if mask.shape != shape:
        raise UserError(
            f"{path}: mask has the shape {mask.shape}, the volumes {shape}; give one mask of the "
            "same shape for each"
        )
    if mask.dtype.kind not in "bui" or not np.isin(mask, (0, 1)).all():
        raise UserError(f"{path}: mask holds more than 0 and 1; save it as mask > 0")
    empty = np.flatnonzero(~mask.astype(np.bool_).any((1, 2, 3)))
    if len(empty):
        raise UserError(
            f"{path}: the mask of row {empty[0]} is empty ({len(empty)} of {len(mask)} are); "
            "remove these nodules, or mark some voxels"
        )
    return mask.astype(np.bool_)


def _take_split(facts: Arrays, path: Path) -> tuple[str, ...] | None:
    """What the volumes are for, taken out of the facts, where the file says it in words."""
    if "split" not in facts or facts["split"].dtype.kind != "U":
        return None
    said = tuple(facts.pop("split").tolist())
    if not set(said) <= {"train", "valid", "test"}:
        other = next(word for word in said if word not in ("train", "valid", "test"))
        raise UserError(
            f"{path}: its split says {brief(repr(other))}; it must be train, valid or test"
        )
    return said


def load_arrays(path: Path, how_to_save: str) -> Arrays:
    """All arrays of a NumPy file by name, in its order; that of an .npy file, which stays on disk,
    is called `volume`. `how_to_save` is what to type to write such a file."""
    try:
        with open_plain(path) as file:
            if path.suffix == ".npy":
                return {"volume": map_array(file)}
            return guarded(lambda: _unzip(file))
    except _PickledObjects:
        raise UserError(
            f"{path} holds pickled Python objects, which could run code; save plain arrays: "
            f"{how_to_save}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a NumPy file ({brief(error)}); make it again with "
            f"{how_to_save}"
        ) from error


def _medmnist(arrays: Arrays, path: Path) -> Volumes:
    parts = {w: arrays[f"{w}_images"] for w in _SPLITS if f"{w}_images" in arrays}
    if len({part.shape[1:] for part in parts.values()}) > 1 or any(
        part.ndim != 4 for part in parts.values()
    ):
        raise UserError(
            f"{path} is laid out like MedMNIST but holds {_shapes(arrays)}; give a 3-D set "
            "such as nodulemnist3d.npz (number x 28 x 28 x 28)"
        )
    cubes = np.concatenate([_plain(part, path) for part in parts.values()])
    rows = [(_SPLITS[word], row) for word, part in parts.items() for row in range(len(part))]
    names = tuple(f"{split} row {row}" for split, row in rows)
    found = [
        _column(arrays.get(f"{word}_labels", np.zeros(())), len(part))
        for word, part in parts.items()
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
    if array.size == 0:
        raise UserError(f"{path} holds no voxels (its shape is {array.shape}); give some")
    try:
        check_memory(max(array[0].nbytes, len(array) * _NAME_BYTES))
    except ValueError as error:
        raise UserError(f"{path} (its shape is {array.shape}) is too large: {error}") from None
    return array


def _shapes(arrays: Arrays) -> str:
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


# ---- arrays


class _PickledObjects(ValueError):
    """An array of Python objects, which only pickle could read."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    order: Any
    kind: np.dtype[Any]
    start: int
    """Where the values begin."""
    num_bytes: int
    """Bytes of the values."""


def map_array(file: IO[bytes]) -> NDArray[Any]:
    """The array of an .npy file, left on disk."""
    shape, order, kind, start, num_bytes = _read_header(file.read(_MOST_HEADER))
    if start + num_bytes > size_of(file):
        raise ValueError("it is shorter than its header says")
    if num_bytes == 0:
        return guarded(lambda: np.empty(shape, kind, order))
    return guarded(lambda: np.memmap(file, kind, "r", start, shape, order))


def _unzip(file: IO[bytes]) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check_members(members, archive.start_dir)
        check_unpacked(sum(member.file_size for member in members), size_of(file))
        found: Arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise ValueError("it holds two arrays of one name")
            with archive.open(member) as content:
                found[name] = _read_member(content, member.file_size)
        return found


def _check_members(members: list[zipfile.ZipInfo], end: int) -> None:
    """Refuse members that do not lie one behind the other, as numpy writes them."""
    for member in members:
        stored = member.compress_type == zipfile.ZIP_STORED
        if not stored and member.compress_type != zipfile.ZIP_DEFLATED:
            raise ValueError("it is packed in a way that NumPy does not know")
        if stored and member.file_size != member.compress_size:
            raise ValueError("the sizes of its members disagree")
    places = sorted((member.header_offset, member.compress_size) for member in members)
    for (start, size), (following, _) in pairwise([*places, (end, 0)]):
        if start + _LOCAL_HEADER + size > following:
            raise ValueError("its members overlap")


def _read_member(content: IO[bytes], num_bytes: int) -> NDArray[Any]:
    head = content.read(_MOST_HEADER)
    header = _read_header(head)
    if header.start + header.num_bytes != num_bytes:
        raise ValueError("a member is not as long as its header says")
    values = bytearray(head[header.start :])
    while len(values) < header.num_bytes and (piece := content.read(_PIECE_BYTES)):
        values += piece
    if len(values) != header.num_bytes:
        raise ValueError("a member ends before its last value")
    flat = np.frombuffer(values, header.kind) if values else np.empty(0, header.kind)
    return flat.reshape(header.shape, order=header.order)


def _read_header(head: bytes) -> _Header:
    file = io.BytesIO(head)
    version = guarded(lambda: npy.read_magic(file))
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its format {version} is not one that plain arrays need")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    with warnings.catch_warnings():  # of numpy and Python, about how odd a header is
        warnings.simplefilter("ignore")
        shape, is_fortran, kind = guarded(lambda: read(file))
    if kind.hasobject:
        raise _PickledObjects("it holds Python objects")
    if min(shape, default=0) < 0:
        raise ValueError("its header gives a negative size")
    order = "F" if is_fortran else "C"
    return _Header(shape, order, kind, file.tell(), math.prod(shape) * kind.itemsize)
