"""CIFAR-10 (Krizhevsky 2009) in its official binary version.

In: a folder with data_batch_1.bin ... data_batch_5.bin and test_batch.bin; or the folder above it;
or the last batch to be read. Out: images (N, 3, 32, 32) as bytes, and labels, in the files' order.
Guaranteed: a batch that is absent, cut, or not CIFAR-10's ends in one line that names it. No
checksum is published for these files: their size and labels are checked. A part of the data is read
only when the last batch is named. The python version of CIFAR-10 is pickled, and refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.data.download import data_folders
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
"""Images in each batch."""
NUM_PIXELS = 3 * 32 * 32
RECORD = 1 + NUM_PIXELS
"""Bytes of an image in the binary layout: its label, then red, green and blue, row by row."""
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
    """All of CIFAR-10, wherever it lies on this machine (see `data_folders`)."""
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


class _Place(NamedTuple):
    folder: Path
    num_batches: int = len(BATCHES)
    """Training batches to be read."""

    def file(self, batch: str) -> Path:
        return self.folder / f"{batch}.bin"

    def missing(self, batches: Sequence[str]) -> list[str]:
        return [batch for batch in (*batches, TEST) if not self.file(batch).is_file()]


def _find(path: Path) -> _Place:
    path = Path(os.path.expanduser(path))
    if path.is_file():
        if named := re.fullmatch(r"data_batch_([1-5])\.bin", path.name):
            return _Place(path.parent, int(named[1]))
        _refuse_python_version(path.parent)
        hint = f"unpack it (tar -xzf {path}) and " if path.name.endswith((".gz", ".tar")) else ""
        raise UserError(
            f"{path} is no training batch of CIFAR-10; {hint}give the folder of data_batch_1.bin "
            "and so on, or the last batch to use"
        )
    found = _look(path)
    if found is None:
        _refuse_python_version(path)
        _refuse_python_version(path / "cifar-10-batches-py")
        raise UserError(
            f"{path} holds no CIFAR-10 (data_batch_1.bin and so on); get it with "
            "`samepath download cifar10`"
        )
    return found


def _look(folder: Path) -> _Place | None:
    """Where in a folder the most batches are."""
    places = [_Place(folder), _Place(folder / "cifar-10-batches-bin")]
    best = min(places, key=lambda place: len(place.missing(BATCHES)))
    return best if len(best.missing(BATCHES)) <= len(BATCHES) else None


def _refuse_python_version(folder: Path) -> None:
    if any((folder / batch).is_file() for batch in (*BATCHES, TEST)):
        raise UserError(
            f"{folder} holds the python version of CIFAR-10, which is pickled and could run code; "
            "get the binary version with `samepath download cifar10`"
        )


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
            pixels[number], labels[number] = _read_batch(place.file(batch))
        except OSError as error:
            raise UserError(f"{place.file(batch)} cannot be read: {error.strerror}") from error
    return pixels.reshape(-1, 3, 32, 32), labels.reshape(-1)


def _read_batch(file: Path) -> tuple[Bytes, Bytes]:
    """Pixels (images, 3072) and labels of one file."""
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


def _check_names(file: Path) -> None:
    """Refuse batches that come with the names of other classes than CIFAR-10's."""
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
