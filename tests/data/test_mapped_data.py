"""Numpy arrays as data, in memory and mapped from files."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset

from samepath.data import DatasetSource, GrainRequest, Loaders, TensorSource, as_source, sources
from samepath.data.content import examples_identity
from samepath.data.sources import SomeOf, Source, in_memory, labels_of, only_rows
from samepath.errors import UserError

REQUESTS = [[3, 1], [0], [2, 2, 4]]
INPUTS = np.arange(20, dtype=np.float32).reshape(5, 4)
LABELS = np.array([2, 0, 1, 1, 0])


def file_of(array: np.ndarray[Any, Any], folder: Path) -> Path:
    np.save(folder / "data.npy", array)
    return folder / "data.npy"


def load(source: Source) -> list[Any]:
    return list(source.load(GrainRequest(0, np.array(rows, np.int64)) for rows in REQUESTS))


def check(source: Source) -> None:
    for rows, (inputs, labels) in zip(REQUESTS, load(source), strict=True):
        assert inputs.dtype == torch.float32
        assert inputs.tolist() == INPUTS[rows].tolist()
        assert labels.tolist() == LABELS[rows].tolist()


KINDS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: INPUTS,
    "read-only": lambda folder: np.load(file_of(INPUTS, folder), mmap_mode="r"),
    "copy on write": lambda folder: np.load(file_of(INPUTS, folder), mmap_mode="c"),
    "a view": lambda folder: np.asarray(
        np.load(file_of(np.pad(INPUTS, ((1, 0), (0, 2))), folder), mmap_mode="r")[1:, :4]
    ),
    "a tensor": lambda folder: torch.from_file(
        str(_bytes(folder)), shared=True, size=20, dtype=torch.float32
    ).view(5, 4),
}


def _bytes(folder: Path) -> Path:
    (folder / "data.bin").write_bytes(INPUTS.tobytes())
    return folder / "data.bin"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_arrays_are_columns(kind: str, loader_workers: int, tmp_path: Path) -> None:
    data = (KINDS[kind](tmp_path), LABELS)
    assert in_memory(data) == (kind == "memory")
    source = as_source(data, seed=0, loaders=Loaders(loader_workers))
    assert isinstance(source, TensorSource)
    assert len(source) == 5
    check(source)


@pytest.mark.parametrize("kind", KINDS)
def test_one_array_alone(kind: str, tmp_path: Path) -> None:
    found = load(as_source(KINDS[kind](tmp_path), seed=0))
    assert [grain.tolist() for grain in found] == [INPUTS[rows].tolist() for rows in REQUESTS]
    assert all(isinstance(grain, Tensor) for grain in found)


def test_only_what_is_asked_for_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of half a page in a file of many: the system is told of their pages and of no others."""
    data = np.load(file_of(np.zeros((4096, 512), np.float32), tmp_path), mmap_mode="r")
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(sources, "_advise", lambda *advice: told.append(advice))
    load(as_source((data, np.arange(4096)), seed=0))
    address = data.__array_interface__["data"][0]
    whole, *rows = told
    assert whole == (address, data.nbytes, mmap.MADV_RANDOM)
    assert rows == [
        (address + row * 2048, 2048, mmap.MADV_WILLNEED) for some in REQUESTS for row in some
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_kept_rows_of_a_file_stay_in_it(kind: str, tmp_path: Path) -> None:
    rows = np.array([4, 3, 2, 1, 0, 0])
    data = (KINDS[kind](tmp_path), LABELS)
    kept = only_rows(data, rows)
    assert isinstance(kept, tuple if kind == "memory" else SomeOf)
    for loader_workers in (0, 1):
        source = as_source(kept, seed=0, loaders=Loaders(loader_workers))
        assert len(source) == 6
        for wanted, (inputs, labels) in zip(REQUESTS, load(source), strict=True):
            assert inputs.tolist() == INPUTS[rows[wanted]].tolist()
            assert labels.tolist() == LABELS[rows[wanted]].tolist()
    again = as_source(only_rows(kept, np.array([1, 0])), seed=0)
    assert next(iter(again.load([GrainRequest(0, np.array([0]))])))[1].tolist() == [LABELS[3]]


def test_the_same_examples_are_recognised_in_a_file(tmp_path: Path) -> None:
    data = (KINDS["read-only"](tmp_path), LABELS)
    assert examples_identity(data) == examples_identity(
        (torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    )
    labels = labels_of(data, {})
    assert labels is not None
    assert labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.float16, np.bool_])
def test_types_that_scanners_write(dtype: Any) -> None:
    array = np.array([0, 1, 7, 8, 300]).astype(dtype)
    for data in (array, torch.from_numpy(array)):
        found = load(as_source(data, seed=0))
        assert [grain.numpy().tolist() for grain in found] == [array[r].tolist() for r in REQUESTS]
        assert found[0].numpy().dtype == dtype
        some: Any = only_rows(data, np.array([4, 2]))
        assert np.asarray(some).tolist() == array[[4, 2]].tolist()


@pytest.mark.parametrize(
    "array", [np.array(["a", "b"]), np.zeros(2, ">f4"), np.arange(2)[::-1]], ids=str
)
def test_arrays_that_torch_cannot_take(array: Any) -> None:
    with pytest.raises(UserError, match="torch cannot take as it is; give np"):
        as_source((array, np.zeros(2)), seed=0)


def test_unequal_rows() -> None:
    with pytest.raises(UserError, match="5 rows and 6 rows"):
        as_source((INPUTS, np.zeros(6)), seed=0)


def test_what_was_a_sequence_of_examples_stays_one() -> None:
    """A list of arrays, an array of objects, and an array with a collate function."""
    images: Any = [np.zeros((2, 2)), np.ones((2, 2))]
    assert len(as_source(images, seed=0)) == 2
    assert isinstance(as_source(images, seed=0), DatasetSource)
    assert isinstance(only_rows(images, np.array([0])), Subset)
    objects = np.array([{"x": 1}, {"x": 2}], object)
    assert isinstance(as_source(objects, seed=0), DatasetSource)
    assert isinstance(as_source(INPUTS, seed=0, collate=lambda rows: len(rows)), DatasetSource)
