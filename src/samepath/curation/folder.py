"""The folder of a curation: whose it is, writing it, and reading it back.

In: arrays, keep-lists, facts; or a folder that `samepath curate` wrote. Out: files; or its arrays,
checked against each other. Guaranteed: the folder of another curation is refused; a keep.csv that a
person has changed is not written over; every file is replaced whole, with `curation.json` last; a
folder that is damaged ends in one line that names the file; images are read from disk one by one,
so that opening a large folder is quick.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from samepath.data.keep_list import ABOUT, KeepList, write_keep_list
from samepath.errors import UserError
from samepath.files import (
    brief,
    content_hash,
    finite,
    is_empty,
    lock_folder,
    make_folder,
    opened_tensors,
    read_object,
    read_tensors,
    replaced,
    write_atomically,
)

FORMAT = 1
KEEP = "keep.csv"
FACTS = "facts.json"
_MOST_FACTS = 30
_LIBRARIES = ("samepath", "torch", "numpy", "scipy", "scikit-learn", "openTSNE", "kneed")
_SHAPES: dict[str, dict[str, tuple[int | str, ...]]] = {
    "map": {"map": (2,), "reduced": ("P",), "suspicion": (), "candidates": ()},
    "features": {"labels": (), "losses": (), "probabilities": ("C",)},
}
"""What is read of each file: its arrays, and their shapes after the number of examples."""
_NEEDED = {"map": ("map", "reduced"), "features": ()}
_ROUND_ARRAYS = ("features", "map", "images")

Arrays: TypeAlias = dict[str, NDArray[Any]]


def control_of(keep: Path) -> Path:
    """The control beside a keep-list, as many kept at random: random-2.csv of keep-2.csv; the
    folder's random.csv where a list has none of its own."""
    name = re.fullmatch(r"keep(-\d+)?\.csv", keep.name)
    own = keep.with_name(f"random{(name and name[1]) or ''}.csv")
    return own if own.exists() else keep.with_name("random.csv")


def checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        whole.update(array.data)
    return whole.hexdigest()


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays all or nothing, with their checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replaced(path) as aside:
        save_file(whole, aside, metadata={"checksum": checksum(arrays)})


def read_arrays(path: Path) -> Arrays:
    """Read arrays back; ValueError, in words, unless every byte is as it was written."""
    try:
        arrays, about = read_tensors(path, "np")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({brief(error)})") from None
    if checksum(arrays) != about.get("checksum"):
        raise ValueError(f"{path} does not match its checksum")
    return arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class Curation:
    """What `samepath curate` found; one row of every array is one training example."""

    about: dict[str, Any]
    """curation.json."""
    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    """Zeros where examples have no labels."""
    has_labels: bool
    positions: NDArray[np.float32]
    """(N, 2): the map."""
    reduced: NDArray[np.float32]
    """(N, P): where nearest neighbours are looked for."""
    facts: dict[str, list[Any]]
    """What the recipe says of each example, by name: numbers or text."""
    columns: Arrays
    """One number per example, as far as they are known: `losses`; `suspicion`, how likely the label
    is wrong, from 0 to 1; of a classifier `guesses` and `confidences`, the likeliest class and its
    probability."""
    pictures: Pictures | None
    candidates: NDArray[np.bool_]
    """What the curation began with: all, or what the keep-list of --keep kept."""

    def __len__(self) -> int:
        return len(self.positions)


class CurationFolder:
    """DIR of `samepath curate`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = path / "cache"

    # ---- writing

    def refuse(self, origin: dict[str, str]) -> None:
        """Raise unless a curation of this origin can be written here."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file; give a folder")
        there = self._origin()
        if not there and self.path.is_dir() and not is_empty(self.path):
            raise UserError(f"--out {self.path} is not empty and no curation; give a new folder")
        known = {name: there[name] for name in origin if name in there}
        if known and known != origin:
            raise UserError(
                f"--out {self.path} holds the curation of another recipe or other data "
                f"({brief(there.get('recipe'))}); give another folder"
            )
        keep = self.path / KEEP
        if keep.exists() and _sha256(keep) not in there.get("wrote", []):
            raise UserError(
                f"{keep} has been changed since it was written; give it another name, such as "
                "keep-2.csv, to keep it"
            )

    @contextmanager
    def held(self, origin: dict[str, str], recipe: str) -> Iterator[None]:
        """Make the folder ours, and keep others from writing to it until the end."""
        make_folder(self.cache)
        lock = lock_folder(self.path, f"{self.path} is being curated")
        try:
            self._write_origin({**self._origin(), **origin, "recipe": recipe})
            yield
        finally:
            os.close(lock)

    def write_keep_list(self, keep_list: KeepList, path: Path) -> None:
        """Write a keep-list over the one that is there."""
        aside = self.cache / "new.csv"
        write_keep_list(aside, keep_list, overwrite=True)
        there = self._origin()
        wrote = [*there.get("wrote", []), _sha256(aside)]
        self._write_origin({**there, "wrote": sorted(set(wrote))})  # known before it is there
        aside.replace(path)

    def write(
        self,
        folder: Path,
        arrays: dict[str, Arrays],
        about: dict[str, Any],
        facts: Mapping[str, NDArray[Any]],
    ) -> None:
        """Write what belongs to one curation (a round, or the whole), and what it is about."""
        write_atomically(folder / FACTS, json.dumps(finite(_listed(facts))) + "\n")
        for name, content in arrays.items():
            path = folder / f"{name}.safetensors"
            if not content:
                path.unlink(missing_ok=True)
            elif _recorded(path) != checksum(content):
                write_arrays(path, content)
        write_atomically(folder / ABOUT, json.dumps(finite(about), indent=1) + "\n")

    def remove_rounds(self, number: int) -> list[Path]:
        """Remove folders of rounds beyond this number, which are of earlier settings; returns those
        that hold more than was written here, and stay."""
        ours = {
            KEEP,
            "random.csv",
            ABOUT,
            FACTS,
            *(f"{name}.safetensors" for name in _ROUND_ARRAYS),
        }
        wrote = set(self._origin().get("wrote", []))
        left = []
        for path in sorted(self.path.glob("round-*")):
            if not (match := re.fullmatch(r"round-([1-9]\d{0,8})", path.name)):
                continue
            if int(match[1]) <= number or not path.is_dir():
                continue
            lists = [path / KEEP, path / "random.csv"]
            known = all(not each.exists() or _sha256(each) in wrote for each in lists)
            if known and {each.name for each in path.iterdir()} <= ours:
                shutil.rmtree(path)
            else:
                left.append(path)
        return left

    def stage_file(self, stage: str, depends_on: Mapping[str, Any]) -> Path:
        """The file of the arrays of a stage that depends on this."""
        versions = {name: version(name) for name in _LIBRARIES}
        text = json.dumps([stage, depends_on, versions], sort_keys=True)
        return self.cache / f"{stage}-{hashlib.sha256(text.encode()).hexdigest()}.safetensors"

    def stage(
        self,
        stage: str,
        depends_on: Mapping[str, Any],
        make: Callable[[], Arrays],
        note: Callable[[str], None],
    ) -> Arrays:
        """A stage's arrays, made unless they are there."""
        path = self.stage_file(stage, depends_on)
        if path.exists():
            try:
                return read_arrays(path)
            except ValueError as error:
                note(f"{error}; computing it again")
        arrays = make()
        write_arrays(path, arrays)
        return arrays

    def _origin(self) -> dict[str, Any]:
        """The recipe and data of this folder: kept beside the caches from the first moment on."""
        file = self.cache / "origin.json"
        try:
            found = read_object(file)
            if not isinstance(found.get("wrote", []), list):
                raise ValueError("its field 'wrote' is not a list")
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read ({brief(error)}); give another --out") from None

    def _write_origin(self, content: dict[str, Any]) -> None:
        write_atomically(self.cache / "origin.json", json.dumps(content) + "\n")

    # ---- reading

    def check(self) -> None:
        """Raise unless `samepath curate` wrote this folder."""
        if not (self.path / ABOUT).is_file():
            why = f"it has no {ABOUT}" if self.path.is_dir() else "there is no such folder"
            raise UserError(
                f"{self.path}: not a curation folder ({why}); make one with "
                "`samepath curate RECIPE --out DIR`"
            )

    def keep_lists(self) -> list[Path]:
        """keep.csv, keep-2.csv, keep-3.csv, ...: oldest first."""
        found = {1: self.path / KEEP} if (self.path / KEEP).is_file() else {}
        for other in self.path.glob("keep-*.csv"):
            if match := re.fullmatch(r"keep-([1-9]\d{0,8})\.csv", other.name):
                found[int(match[1])] = other
        return [found[number] for number in sorted(found)]

    def next_keep_list(self) -> Path:
        """The first name after those of all keep-lists and controls in the folder."""
        names = [path.name for path in self.path.glob("*-*.csv")]
        matches = [re.fullmatch(r"(?:keep|random)-([1-9]\d{0,8})\.csv", name) for name in names]
        taken = [int(match[1]) for match in matches if match]
        return self.path / f"keep-{max(taken, default=1) + 1}.csv"

    def read(self) -> Curation:
        """Everything that was found, checked."""
        about = self._about()
        mapped = self._arrays("map", about["num_examples"])
        known = self._arrays("features", about["num_examples"])
        if not np.isfinite(mapped["map"]).all():
            raise _damaged(self.path / "map.safetensors", "places on the map are NaN or infinite")
        labels = known.get("labels", np.zeros(about["num_examples"], dtype=np.int64))
        if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < len(
            about["class_names"]
        ):
            why = "there are labels that have no class name"
            raise _damaged(self.path / "features.safetensors", why)
        columns = {
            name: array.astype(np.float32)
            for name, array in (*known.items(), *mapped.items())
            if name in ("losses", "suspicion")
        }
        if (probabilities := known.get("probabilities")) is not None:
            columns["guesses"] = probabilities.argmax(1).astype(np.int64)
            columns["confidences"] = probabilities.max(1).astype(np.float32)
        images = self.path / "images.safetensors"
        return Curation(
            about=about,
            class_names=tuple(about["class_names"]),
            facts=self._facts(about["num_examples"]),
            labels=labels.astype(np.int64),
            has_labels="labels" in known,
            positions=mapped["map"].astype(np.float32),
            reduced=mapped["reduced"].astype(np.float32),
            columns=columns,
            pictures=Pictures(images, about["num_examples"]) if images.exists() else None,
            candidates=mapped.get("candidates", np.ones(about["num_examples"])).astype(np.bool_),
        )

    def _facts(self, number: int) -> dict[str, list[Any]]:
        file = self.path / FACTS
        if not file.exists():
            return {}
        try:
            found = read_object(file)
        except (OSError, ValueError) as error:
            raise _damaged(file, brief(error)) from None
        for name, values in found.items():
            plain = isinstance(values, list) and all(
                isinstance(value, (int, float, str, type(None))) for value in values
            )
            if not plain or len(values) != number:
                raise _damaged(file, f"{brief(name)!r} is not a number or text for each example")
        return found

    def _about(self) -> dict[str, Any]:
        self.check()
        file = self.path / ABOUT
        try:
            about = read_object(file)
        except (OSError, ValueError) as error:
            raise _damaged(file, brief(error)) from None
        names, number = about.get("class_names"), about.get("num_examples")
        classes = about.get("classes", [])
        if about.get("format") != FORMAT:
            raise _damaged(file, f"its format is not {FORMAT}")
        if type(number) is not int or number < 1:
            raise _damaged(file, "num_examples is missing or wrong")
        if not isinstance(names, list) or not names or {type(name) for name in names} != {str}:
            raise _damaged(file, "class_names is missing or wrong")
        if not isinstance(classes, list) or not all(
            isinstance(c, dict) and type(c.get("label")) in (int, type(None)) for c in classes
        ):
            raise _damaged(file, "classes is wrong")
        if not _is_noise(about.get("label_noise")):
            raise _damaged(file, "label_noise is wrong")
        return about

    def _arrays(self, name: str, number: int) -> Arrays:
        """Arrays of a file, each with a row per example."""
        file = self.path / f"{name}.safetensors"
        try:
            with opened_tensors(file, "np") as content:
                there = set(content.keys())
                found: Arrays = {n: content.get_tensor(n) for n in _SHAPES[name] if n in there}
        except FileNotFoundError:
            raise _damaged(file, "it is missing") from None
        except (OSError, ValueError) as error:
            raise _damaged(file, brief(error)) from None
        for each in _NEEDED[name]:
            if each not in found:
                raise _damaged(file, f"it holds no {each!r}")
        for each, array in found.items():
            due = (number, *_SHAPES[name][each])
            pairs = zip_longest(due, array.shape)
            fits = array.shape == tuple(
                has if isinstance(size, str) else size for size, has in pairs
            )
            if not fits or 0 in array.shape or array.dtype.kind not in "biuf":
                wanted = f"({', '.join(map(str, due))})"
                raise _damaged(
                    file, f"{each!r} holds {array.dtype} of shape {array.shape}; {wanted} is due"
                )
        return found


class Pictures:
    """The images of a curation, one per example."""

    def __init__(self, path: Path, number: int) -> None:
        try:
            with opened_tensors(path, "np") as file:
                self._slice = file.get_slice("images")
            shape, kind = tuple(self._slice.get_shape()), self._slice.get_dtype()
        except (OSError, ValueError) as error:
            raise _damaged(path, brief(error)) from None
        right = len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)
        if kind != "U8" or not right or 0 in shape or shape[0] != number:
            raise _damaged(
                path,
                f"it holds {kind} of shape {shape}; images are bytes (U8) of shape ({number}, H, W)"
                f" or ({number}, H, W, 3)",
            )
        self.height, self.width = shape[1:3]
        self.is_colour = len(shape) == 4
        self.number = number
        self._lock = threading.Lock()

    def pixels(self, rows: int | slice) -> NDArray[np.uint8]:
        with self._lock:
            found: NDArray[np.uint8] = self._slice[rows]
        return found

    def png(self, row: int) -> bytes:
        from PIL import Image

        out = io.BytesIO()
        Image.fromarray(self.pixels(row)).save(out, "PNG")
        return out.getvalue()


def _listed(facts: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    """Facts that are one number or text per example."""
    plain = {name: np.asarray(values) for name, values in facts.items()}
    plain = {name: a for name, a in plain.items() if a.ndim == 1 and a.dtype.kind in "biufU"}
    return {name: plain[name].tolist() for name in list(plain)[:_MOST_FACTS]}


def _sha256(path: Path) -> str:
    try:
        return content_hash(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give another --out") from None


def _recorded(path: Path) -> str | None:
    """The checksum a file says it has."""
    try:
        with opened_tensors(path, "np") as file:
            return (file.metadata() or {}).get("checksum")
    except (OSError, ValueError):
        return None


def _is_noise(found: object) -> bool:
    """Whether this is what `curate` says of wrong labels."""
    if found is None:
        return True
    if not isinstance(found, dict) or not isinstance(found.get("confusions"), list):
        return False
    pairs = found["confusions"]
    if not all(isinstance(pair, dict) for pair in pairs):
        return False
    numbers = [found.get(name) for name in ("rate", "rate_low", "rate_high")]
    numbers += [pair.get(name) for pair in pairs for name in ("number", "low", "high")]
    words = [found.get("judge")] + [pair.get(n) for pair in pairs for n in ("right", "written")]
    return all(type(n) in (int, float) for n in numbers) and all(type(w) is str for w in words)


def _damaged(file: Path, why: str) -> UserError:
    return UserError(f"{file} cannot be used: {why}; run `samepath curate` again")
