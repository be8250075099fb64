"""A curation folder, opened to be looked at: its arrays and its images.

In: a folder that `samepath curate` wrote. Out: its arrays, checked against each other; its images
as PNG files and as sheets of thumbnails, made in memory. Guaranteed: what is not such a folder, or
is damaged, ends in one line that names the file; images are read from disk one by one, so that
opening a large folder is quick.
"""

from __future__ import annotations

import io
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.files import brief, opened_tensors, read_json

FORMAT = 1
SHEET_SIDE = 2048
MAX_SHEET_PIXELS = 32 * 10**6
"""Pixels of all thumbnails together: an exported page stays small enough to be sent."""
PNG_PIXELS = 2 * 10**6
"""Pixels up to which sheets are PNG, which loses nothing; larger ones are JPEG."""
THUMBNAIL_SIDES = (64, 48, 32, 24, 16)
Floats = NDArray[np.float32]
Whole = NDArray[np.int64]


class Pictures:
    """The images of a curation, one per example."""

    def __init__(self, path: Path) -> None:
        try:
            with opened_tensors(path, "np") as file:
                self._slice = file.get_slice("images")
            shape, kind = self._slice.get_shape(), self._slice.get_dtype()
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read ({brief(error)}); run `samepath curate` again"
            ) from None
        right = len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)
        if kind != "U8" or not right or min(shape[1:], default=0) < 1:
            raise UserError(
                f"{path} holds {kind} of shape {tuple(shape)}; images are bytes (U8) of shape "
                "(N, H, W) or (N, H, W, 3): run `samepath curate` again"
            )
        self.number, self.height, self.width = (int(size) for size in shape[:3])
        self.is_colour = len(shape) == 4
        self._lock = threading.Lock()

    def pixels(self, row: int) -> NDArray[np.uint8]:
        with self._lock:
            found: NDArray[np.uint8] = self._slice[row]
        return found

    def png(self, row: int) -> bytes:
        from PIL import Image

        out = io.BytesIO()
        Image.fromarray(self.pixels(row)).save(out, "PNG")
        return out.getvalue()

    def thumbnail_size(self) -> tuple[int, int]:
        """Width and height on a sheet."""
        longest = max(self.height, self.width)
        for side in THUMBNAIL_SIDES:
            share = min(1.0, side / longest)
            size = max(1, round(self.width * share)), max(1, round(self.height * share))
            if self.number * size[0] * size[1] <= MAX_SHEET_PIXELS:
                break
        return size

    def sheets(self) -> tuple[list[tuple[str, bytes]], tuple[int, int]]:
        """Thumbnails of all examples, in order, line by line: sheets as (media type, file), and
        how many thumbnails a sheet has across and down."""
        width, height = self.thumbnail_size()
        across, down = max(1, SHEET_SIDE // width), max(1, SHEET_SIDE // height)
        starts = range(0, self.number, across * down)
        return [self._sheet(start, across, down) for start in starts], (across, down)

    def _sheet(self, start: int, across: int, down: int) -> tuple[str, bytes]:
        from PIL import Image

        width, height = self.thumbnail_size()
        rows = min(across * down, self.number - start)
        size = across * width, -(-rows // across) * height
        sheet = Image.new("RGB" if self.is_colour else "L", size)
        for line in range(0, rows, across):
            with self._lock:
                found = self._slice[start + line : start + min(line + across, rows)]
            strip = Image.fromarray(np.ascontiguousarray(np.concatenate(found, axis=1)))
            small = strip.resize((len(found) * width, height), Image.Resampling.BOX)
            sheet.paste(small, (0, line // across * height))
        out = io.BytesIO()
        if self.number * width * height <= PNG_PIXELS:
            sheet.save(out, "PNG")
            return "image/png", out.getvalue()
        sheet.save(out, "JPEG", quality=80, subsampling=0)  # subsampling would mix neighbours
        return "image/jpeg", out.getvalue()


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedCuration:
    """What `samepath curate` found; one row of every array is one training example."""

    path: Path
    about: dict[str, Any]
    """curation.json."""
    class_names: tuple[str, ...]
    labels: Whole
    """Zeros where examples have no labels."""
    labels_known: bool
    positions: Floats
    """(N, 2): the map."""
    reduced: Floats
    """(N, P): where nearest neighbours are looked for."""
    losses: Floats | None
    doubts: Floats | None
    """How likely each is wrong, from 0 to 1 (`suspicion` on disk)."""
    guesses: Whole | None
    """The class the model says, if it is a classifier."""
    confidences: Floats | None
    """The probability that the model gives that class."""
    pictures: Pictures | None

    def __len__(self) -> int:
        return len(self.positions)


def open_curation(path: Path) -> OpenedCuration:
    """Read and check a curation folder."""
    about = _read_about(path)
    number = about["num_examples"]
    mapped = _read(path / "map.safetensors", ("map", "reduced"), number, ("suspicion",))
    if mapped["map"].shape[1:] != (2,) or mapped["reduced"].ndim != 2:
        raise _damaged(path / "map.safetensors", "it holds no map of two dimensions")
    if not np.isfinite(mapped["map"]).all():
        raise _damaged(path / "map.safetensors", "some places on the map are NaN or infinite")
    wanted = ("losses", "labels", "probabilities")
    known = _read(path / "features.safetensors", (), number, wanted)
    class_names = tuple(about["class_names"])
    labels = known.get("labels", np.zeros(number, dtype=np.int64))
    is_whole = labels.dtype.kind in "iu"
    if not is_whole or labels.ndim != 1 or labels.min() < 0 or labels.max() >= len(class_names):
        raise _damaged(path / "features.safetensors", "there are labels that have no class name")
    losses, doubts = known.get("losses"), mapped.get("suspicion")
    if any(column is not None and column.ndim != 1 for column in (losses, doubts)):
        raise _damaged(path, "losses or suspicion are not one number per example")
    probabilities = known.get("probabilities")
    if probabilities is not None and (probabilities.ndim != 2 or not probabilities.shape[1]):
        raise _damaged(path / "features.safetensors", "probabilities are not one row per example")
    pictures = None
    if (path / "images.safetensors").exists():
        pictures = Pictures(path / "images.safetensors")
        if pictures.number != number:
            raise _damaged(
                path / "images.safetensors", f"{pictures.number} rows where {number} are due"
            )
    return OpenedCuration(
        path=path,
        about=about,
        class_names=class_names,
        labels=labels.astype(np.int64),
        labels_known="labels" in known,
        positions=mapped["map"].astype(np.float32),
        reduced=mapped["reduced"].astype(np.float32),
        losses=None if losses is None else losses.astype(np.float32),
        doubts=None if doubts is None else doubts.astype(np.float32),
        guesses=None if probabilities is None else probabilities.argmax(1).astype(np.int64),
        confidences=None if probabilities is None else probabilities.max(1).astype(np.float32),
        pictures=pictures,
    )


def saved_keep_lists(path: Path) -> list[Path]:
    """keep.csv, keep-2.csv, keep-3.csv, ...: oldest first."""
    found = {1: path / "keep.csv"} if (path / "keep.csv").is_file() else {}
    for other in path.glob("keep-*.csv"):
        if match := re.fullmatch(r"keep-([1-9]\d{0,8})\.csv", other.name):
            found[int(match[1])] = other
    return [found[number] for number in sorted(found)]


def next_keep_list(path: Path) -> Path:
    """The first name after those of all keep-lists in the folder."""
    taken = [int(p.stem.partition("-")[2] or 1) for p in saved_keep_lists(path)]
    return path / f"keep-{max(taken, default=1) + 1}.csv"


def check_folder(path: Path) -> None:
    if not (path / "curation.json").is_file():
        why = "it has no curation.json" if path.is_dir() else "there is no such folder"
        raise UserError(
            f"{path}: not a curation folder ({why}); make one with "
            "`samepath curate RECIPE --out DIR`"
        )


def _read_about(path: Path) -> dict[str, Any]:
    check_folder(path)
    file = path / "curation.json"
    try:
        about = read_json(file)
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise _damaged(file, f"its format is not {FORMAT}")
    names, number = about.get("class_names"), about.get("num_examples")
    if type(number) is not int or number < 1:
        raise _damaged(file, "num_examples is missing or wrong")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise _damaged(file, "class_names is missing or wrong")
    classes = about.get("classes", [])
    if not isinstance(classes, list) or not all(
        isinstance(c, dict) and type(c.get("label")) in (int, type(None)) for c in classes
    ):
        raise _damaged(file, "classes is wrong")
    return about


def _read(
    file: Path, names: tuple[str, ...], number: int, optional: tuple[str, ...] = ()
) -> dict[str, NDArray[Any]]:
    """Arrays of a file, each with a row per example."""
    try:
        with opened_tensors(file, "np") as content:
            there = set(content.keys())
            for name in names:
                if name not in there:
                    raise _damaged(file, f"it holds no {name!r}")
            found = {n: content.get_tensor(n) for n in (*names, *optional) if n in there}
    except FileNotFoundError:
        raise _damaged(file, "it is missing") from None
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from None
    for name, array in found.items():
        if array.dtype.kind not in "biuf":
            raise _damaged(file, f"{name!r} holds {array.dtype}")
        if array.ndim < 1 or len(array) != number:
            rows = len(array) if array.ndim else 0
            raise _damaged(file, f"{name!r} has {rows} rows where {number} are due")
    return found


def _damaged(file: Path, why: str) -> UserError:
    return UserError(f"{file} cannot be used: {brief(why)}; run `samepath curate` again")
