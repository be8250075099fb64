"""Finished stages, kept by content.

In: what a stage depends on, and how to compute it. Out: its arrays, computed or read back.
Guaranteed: a stage is named by the SHA-256 of everything it depends on, versions included, so that
another input or setting is another name; a file is complete or absent; one whose bytes do not match
its checksum is computed again, with one line that says so. No pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from samepath.files import brief, read_tensors, replaced

Arrays: TypeAlias = dict[str, NDArray[Any]]

_LIBRARIES = ("samepath", "torch", "numpy", "scipy", "scikit-learn", "openTSNE", "kneed")


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
        self.made: list[str] = []
        """Stages that were computed, not read back."""
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
        self.made.append(stage)
        return arrays
