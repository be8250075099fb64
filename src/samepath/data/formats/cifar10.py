"""CIFAR-10 (Krizhevsky 2009) in its official binary version.

In: a folder with data_batch_1.bin ... data_batch_5.bin and test_batch.bin; or the folder above it;
or the last batch to be read. Out: images (N, 3, 32, 32) as bytes, and labels, in the files' order.
Guaranteed: a batch that is absent, cut, or not CIFAR-10's ends in one line that names it. No
checksum is published for these files: their size and labels are checked. A part of the data is read
only when the last batch is named. The python version of CIFAR-10 is pickled, and refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samepath.data.download import ARCHIVES, data_folders
from samepath.errors import UserError
from samepath.files import brief, read_whole

CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
BATCHES, TEST = ARCHIVES["cifar10"].files[:5], ARCHIVES["cifar10"].files[5]
NUM_IMAGES = 10_000
"""Images in each batch."""
RECORD = 1 + 3 * 32 * 32
"""Bytes of an image in the binary layout: its label, then red, green and blue, row by row."""
_MOST_NAMES = 1 << 16  # bytes of batches.meta.txt, which has 61

Bytes = NDArray[np.uint8]
Examples = tuple[Bytes, NDArray[np.int64]]
"""Images (N, 3, 32, 32), and their labels."""
_AGAIN = "get it anew with `samepath download cifar10`"


def load_cifar10(path: Path) -> tuple[Examples, Examples]:
    """Read the training and the test data at a path (see the module)."""
    path = Path(os.path.expanduser(path))
    is_last = path.name in BATCHES and path.is_file()
    folder = path.parent if is_last else _look(path)
    if folder is None:
        raise UserError(_why_none(path))
    batches = BATCHES[: BATCHES.index(path.name) + 1] if is_last else BATCHES
    if missing := _missing(folder, batches):
        raise UserError(_what_to_do(folder, missing))
    _check_names(folder / "batches.meta.txt")
    return _read(folder, batches), _read(folder, [TEST])


def find_cifar10() -> Path:
    """All of CIFAR-10, wherever it lies on this machine (see `data_folders`)."""
    found = [folder for place in data_folders() if (folder := _look(place))]
    for folder in found:
        if not _missing(folder, BATCHES):
            return folder
    if found:
        raise UserError(_what_to_do(found[0], _missing(found[0], BATCHES)))
    looked = ", ".join(dict.fromkeys(map(str, data_folders())))
    raise UserError(
        f"CIFAR-10 is not in {looked}; get it with `samepath download cifar10`, "
        "or say where it is: --data FOLDER"
    )


def _missing(folder: Path, batches: Sequence[str]) -> list[str]:
    return [name for name in (*batches, TEST) if not (folder / name).is_file()]


def _look(folder: Path) -> Path | None:
    """Find where the most batches are: in this folder or the one that is unpacked in it."""
    places = (folder, folder / ARCHIVES["cifar10"].folder)
    best = min(places, key=lambda place: len(_missing(place, BATCHES)))
    return best if len(_missing(best, BATCHES)) <= len(BATCHES) else None


def _why_none(path: Path) -> str:
    """Why there is no CIFAR-10 at a path, and what to do."""
    pickled = [name.removesuffix(".bin") for name in (*BATCHES, TEST)]
    for folder in (path.parent if path.is_file() else path, path / "cifar-10-batches-py"):
        if any((folder / name).is_file() for name in pickled):
            return (
                f"{folder} holds the python version of CIFAR-10, which is pickled and could run "
                "code; get the binary version with `samepath download cifar10`"
            )
    if path.is_file():
        hint = f"unpack it (tar -xzf {path}) and " if path.name.endswith((".gz", ".tar")) else ""
        return (
            f"{path} is no training batch of CIFAR-10; {hint}give the folder of data_batch_1.bin "
            "and so on, or the last batch to use"
        )
    return (
        f"{path} holds no CIFAR-10 (data_batch_1.bin and so on); get it with "
        "`samepath download cifar10`"
    )


def _what_to_do(folder: Path, missing: Sequence[str]) -> str:
    listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    text = f"{folder} lacks {listed}; get all with `samepath download cifar10`"
    there = [name for name in BATCHES if (folder / name).is_file()]
    if there and TEST not in missing and there == list(BATCHES[: len(there)]):
        text += (
            f", or train on the {len(there) * NUM_IMAGES:,} images that are there: "
            f"--data {folder / there[-1]}"
        )
    return text


def _read(folder: Path, batches: Sequence[str]) -> Examples:
    records = np.concatenate([_read_batch(folder / name) for name in batches])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _read_batch(file: Path) -> Bytes:
    """The records of one file: (images, 1 + 3072)."""
    try:
        size, expected = file.stat().st_size, NUM_IMAGES * RECORD
        if size != expected:
            raise UserError(
                f"{file} ends after {size:,} bytes; a batch has {expected:,} (10,000 images of "
                f"{RECORD:,}): {_AGAIN}"
            )
        records = np.fromfile(file, np.uint8).reshape(NUM_IMAGES, RECORD)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    wrong = np.flatnonzero(records[:, 0] >= len(CLASS_NAMES))
    if len(wrong):
        raise UserError(
            f"{file}: byte {wrong[0] * RECORD:,}, the label of image {wrong[0]:,}, is "
            f"{records[wrong[0], 0]}; labels are 0 to 9: {_AGAIN}"
        )
    return records


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
