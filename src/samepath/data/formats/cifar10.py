"""CIFAR-10 (Krizhevsky 2009) in its two official layouts.

In: a folder with data_batch_1.bin ... data_batch_5.bin and test_batch.bin (the binary layout), or
the same names without .bin (the python layout); or the folder above it; or the last batch to be
read. Out: images (N, 3, 32, 32) as bytes, labels, in the order of the files.
Guaranteed: a batch that is absent, cut, or not CIFAR-10's ends in one line that names it. Python
batches must have the published MD5. For binary ones none is published: their size and labels are
checked. A part of the data is read only when the last batch is named.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.batch_pickle import PickledArray, unpickle
from samepath.data.places import data_folders
from samepath.errors import UserError
from samepath.files import brief, read_whole

CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
TEST = "test_batch"
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
NUM_IMAGES = 10_000
"""In each batch."""
NUM_PIXELS = 3 * 32 * 32
RECORD = 1 + NUM_PIXELS
"""Bytes of an image in the binary layout: its label, then red, green and blue, row by row."""
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""Of the python layout's files, as published with them."""
_MOST_BYTES = 1 << 26  # of a python batch; they have 31 million
_MOST_NAMES = 1 << 16  # bytes of batches.meta.txt, which has 61

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
_AGAIN = "get it anew with `samepath download cifar10`"


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """Images (N, 3, 32, 32) of bytes, and their labels."""

    train_images: Bytes
    train_labels: Labels
    test_images: Bytes
    test_labels: Labels


def load_cifar10(path: Path) -> Cifar10:
    """Read the data at a path (see the module)."""
    place = _find(path)
    missing = place.missing(BATCHES[: place.num_batches])
    if missing:
        raise UserError(_what_to_do(place, missing))
    if place.layout.suffix:
        _check_names(place.folder / "batches.meta.txt")
    train_images, train_labels = _read(place, BATCHES[: place.num_batches])
    test_images, test_labels = _read(place, (TEST,))
    return Cifar10(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def find_cifar10() -> Path:
    """All of CIFAR-10, wherever it lies on this machine (see `data.places`)."""
    partial: _Place | None = None
    for folder in data_folders():
        place = _look(folder)
        if place is not None and not place.missing(BATCHES):
            return place.folder
        partial = partial or place
    if partial is not None:
        raise UserError(_what_to_do(partial, partial.missing(BATCHES)))
    looked = ", ".join(dict.fromkeys(map(str, data_folders())))
    raise UserError(
        f"CIFAR-10 is not in {looked}; get it with `samepath download cifar10`, "
        "or say where it is: --data FOLDER"
    )


class _Layout(NamedTuple):
    folder: str
    suffix: str
    read: Callable[[Path], tuple[Bytes, Bytes]]
    """Pixels (images, 3072) and labels of one file."""


class _Place(NamedTuple):
    folder: Path
    layout: _Layout
    num_batches: int = len(BATCHES)
    """Training batches to be read."""

    def file(self, batch: str) -> Path:
        return self.folder / (batch + self.layout.suffix)

    def missing(self, batches: Sequence[str]) -> list[str]:
        return [batch for batch in (*batches, TEST) if not self.file(batch).is_file()]


def _find(path: Path) -> _Place:
    path = Path(os.path.expanduser(path))
    if path.is_file():
        for layout in _LAYOUTS:
            named = re.fullmatch(r"data_batch_([1-5])" + re.escape(layout.suffix), path.name)
            if named:
                return _Place(path.parent, layout, int(named[1]))
        hint = f"unpack it (tar -xzf {path}) and " if path.name.endswith((".gz", ".tar")) else ""
        raise UserError(
            f"{path} is no training batch of CIFAR-10; {hint}give the folder of data_batch_1.bin "
            "and so on, or the last batch to use"
        )
    found = _look(path)
    if found is None:
        raise UserError(
            f"{path} holds no CIFAR-10: neither data_batch_1.bin and so on, nor data_batch_1; "
            "get it with `samepath download cifar10`"
        )
    return found


def _look(folder: Path) -> _Place | None:
    """Where in a folder the most batches are."""
    places = [
        _Place(inside, layout) for layout in _LAYOUTS for inside in (folder, folder / layout.folder)
    ]
    best = min(places, key=lambda place: len(place.missing(BATCHES)))
    return best if len(best.missing(BATCHES)) <= len(BATCHES) else None


def _what_to_do(place: _Place, missing: Sequence[str]) -> str:
    names = [place.file(batch).name for batch in missing]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    text = f"{place.folder} lacks {listed}; get all with `samepath download cifar10`"
    there = [batch for batch in BATCHES if batch not in place.missing(BATCHES)]
    if there and TEST not in missing and there == list(BATCHES[: len(there)]):
        text += (
            f", or train on the {len(there) * NUM_IMAGES:,} images that are there: "
            f"--data {place.file(there[-1])}"
        )
    return text


def _read(place: _Place, batches: Sequence[str]) -> tuple[Bytes, Labels]:
    pixels = np.empty((len(batches), NUM_IMAGES, NUM_PIXELS), np.uint8)
    labels = np.empty((len(batches), NUM_IMAGES), np.int64)
    for number, batch in enumerate(batches):
        try:
            pixels[number], labels[number] = place.layout.read(place.file(batch))
        except OSError as error:
            raise UserError(f"{place.file(batch)} cannot be read: {error.strerror}") from error
    return pixels.reshape(-1, 3, 32, 32), labels.reshape(-1)


def _read_binary(file: Path) -> tuple[Bytes, Bytes]:
    size, expected = file.stat().st_size, NUM_IMAGES * RECORD
    if size != expected:
        raise UserError(
            f"{file} ends after {size:,} bytes; a batch has {expected:,} (10,000 images of "
            f"{RECORD:,}): {_AGAIN}"
        )
    records = np.fromfile(file, np.uint8).reshape(NUM_IMAGES, RECORD)
    wrong = np.flatnonzero(records[:, 0] >= len(CLASS_NAMES))
    if len(wrong):
        raise UserError(
            f"{file}: byte {wrong[0] * RECORD:,}, the label of image {wrong[0]:,}, is "
            f"{records[wrong[0], 0]}; labels are 0 to 9: {_AGAIN}"
        )
    return records[:, 1:], records[:, 0]


def _read_python(file: Path) -> tuple[Bytes, Bytes]:
    size = file.stat().st_size
    if size > _MOST_BYTES:
        raise UserError(f"{file} has {size:,} bytes, more than any batch: {_AGAIN}")
    content = read_whole(file, _MOST_BYTES)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != MD5.get(file.name, digest):
        raise UserError(
            f"{file} ({size:,} bytes) has the MD5 {digest}, not {MD5[file.name]} as published: "
            f"{_AGAIN} (own data can be written in the binary layout)"
        )
    batch = unpickle(content, file)
    try:
        pixels, labels = batch[b"data"], batch[b"labels"]
        if not isinstance(pixels, PickledArray):
            raise ValueError("'data' is no array")
        if not isinstance(labels, list) or len(labels) != NUM_IMAGES:
            raise ValueError("'labels' is no list of 10,000")
        for number, label in enumerate(labels):
            if not isinstance(label, int) or not 0 <= label < len(CLASS_NAMES):
                raise ValueError(f"label {number:,} is {label!r}; labels are 0 to 9")
        return pixels.as_bytes((NUM_IMAGES, NUM_PIXELS)), np.array(labels, np.uint8)
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{file} is not a batch of CIFAR-10 ({error}): {_AGAIN}") from error


_LAYOUTS = (
    _Layout("cifar-10-batches-bin", ".bin", _read_binary),
    _Layout("cifar-10-batches-py", "", _read_python),
)


def _check_names(file: Path) -> None:
    """The classes that come with binary batches, if they do, are CIFAR-10's."""
    if not file.is_file():
        return
    try:
        names = read_whole(file, _MOST_NAMES).decode(errors="replace").split()
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({brief(error)}): {_AGAIN}") from None
    if names != list(CLASS_NAMES):
        raise UserError(
            f"{file} names other classes than CIFAR-10's ({brief(', '.join(names))}): {_AGAIN}"
        )
