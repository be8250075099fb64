"""The folder of a curation: whose it is, what we wrote in it, and writing it.

In: arrays, keep-lists, facts. Out: files. Guaranteed: the folder of another curation is refused; a
keep.csv that a person has changed is not written over; every file is replaced whole, with
`curation.json` last.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from samepath.data.keep_list import KeepList, write_keep_list
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
ABOUT = "curation.json"
KEEP = "keep.csv"
RANDOM = "random.csv"
_LIBRARIES = ("samepath", "torch", "numpy", "scipy", "scikit-learn", "openTSNE", "kneed")

Arrays: TypeAlias = dict[str, NDArray[Any]]


def checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        whole.update(array.data)
    return whole.hexdigest()


def write_arrays(path: Path, arrays: Arrays) -> str:
    """Write arrays all or nothing, with their checksum; the checksum."""
    found = checksum(arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replaced(path) as aside:
        save_file(whole, aside, metadata={"checksum": found})
    return found


def read_arrays(path: Path) -> Arrays:
    """Read arrays back; ValueError, in words, unless every byte is as it was written."""
    try:
        arrays, about = read_tensors(path, "np")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({brief(error)})") from None
    if checksum(arrays) != about.get("checksum"):
        raise ValueError(f"{path} does not match its checksum")
    return arrays


class Cache:
    """A folder of finished stages."""

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self._note = note

    def path(self, stage: str, depends_on: Mapping[str, Any]) -> Path:
        """Where a stage that depends on this is kept."""
        versions = {name: version(name) for name in _LIBRARIES}
        text = json.dumps([stage, depends_on, versions], sort_keys=True)
        return self.folder / f"{stage}-{hashlib.sha256(text.encode()).hexdigest()}.safetensors"

    def get(self, stage: str, depends_on: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """A stage's arrays."""
        path = self.path(stage, depends_on)
        if path.exists():
            try:
                return read_arrays(path)
            except ValueError as error:
                self._note(f"{error}; computing it again")
        arrays = make()
        write_arrays(path, arrays)
        return arrays


class CurationWriter:
    """DIR of `samepath curate`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = path / "cache"
        self._lock: int | None = None

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

    def begin(self, origin: dict[str, str], recipe: str) -> None:
        """Make the folder ours, and keep others from writing to it."""
        make_folder(self.cache)
        self._lock = lock_folder(self.path, f"{self.path} is being curated")
        self._write_origin({**self._origin(), **origin, "recipe": recipe})

    def end(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_keep_list(self, keep_list: KeepList, name: str, folder: Path) -> None:
        """Write a keep-list over the one that is there."""
        path = folder / name
        aside = self.cache / "new.csv"
        write_keep_list(aside, keep_list, overwrite=True)
        there = self._origin()
        wrote = [*there.get("wrote", []), _sha256(aside)]
        self._write_origin({**there, "wrote": sorted(set(wrote))})  # known before it is there
        aside.replace(path)

    def write(self, folder: Path, arrays: dict[str, Arrays], about: dict[str, Any]) -> None:
        """Write what belongs to one curation (a round, or the whole), and what it is about."""
        for name, content in arrays.items():
            path = folder / f"{name}.safetensors"
            if not content:
                path.unlink(missing_ok=True)
            elif _recorded(path) != checksum(content):
                write_arrays(path, content)
        write_atomically(folder / ABOUT, json.dumps(finite(about), indent=1) + "\n")

    def _origin(self) -> dict[str, Any]:
        """Whose folder this is: kept beside the caches from the first moment on."""
        file = self.cache / "origin.json"
        try:
            found = read_object(file)
            if not isinstance(found.get("wrote", []), list):
                raise ValueError("what it says was written is no list")
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read ({brief(error)}); give another --out") from None

    def _write_origin(self, content: dict[str, Any]) -> None:
        write_atomically(self.cache / "origin.json", json.dumps(content) + "\n")


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
