"""Whatever a person has as data, by example number: tensors, arrays in memory and in files,
data sets, sources of one's own; all of it, or some rows."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from samepath.data import DatasetSource, GrainRequest, Loaders, TensorSource, as_source, sources
from samepath.data.content import examples_identity
from samepath.data.sources import SomeOf, Source, in_memory, labels_of, only_rows
from samepath.errors import UserError

REQUESTS = [(0, [3, 1]), (0, [0]), (1, [2, 2, 4])]
INPUTS = np.arange(20, dtype=np.float32).reshape(5, 4)
LABELS = np.array([2, 0, 1, 1, 0])
TENSORS = (torch.from_numpy(INPUTS), torch.from_numpy(LABELS))


def load(source: Source, requests: list[tuple[int, list[int]]] = REQUESTS) -> list[Any]:
    return list(source.load(GrainRequest(epoch, np.array(e, np.int64)) for epoch, e in requests))


def check(source: Source, rows: Any = range(5)) -> None:
    """It gives INPUTS and LABELS, or these rows of them."""
    assert len(source) == len(rows)
    for (_, wanted), (inputs, labels) in zip(REQUESTS, load(source), strict=True):
        assert inputs.dtype == torch.float32
        assert inputs.tolist() == INPUTS[np.array(rows)[wanted]].tolist()
        assert labels.tolist() == LABELS[np.array(rows)[wanted]].tolist()


class Items(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return TENSORS[0][index], int(LABELS[index])


class Own:
    """A source of one's own."""

    def __len__(self) -> int:
        return 5

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        for request in requests:
            yield TENSORS[0][request.examples], TENSORS[1][request.examples]


# ---- every kind of data


def mapped(folder: Path, array: Any = INPUTS, mode: Any = "r") -> Any:
    np.save(folder / "data.npy", array)
    return np.load(folder / "data.npy", mmap_mode=mode)


def mapped_tensor(folder: Path) -> Tensor:
    (folder / "data.bin").write_bytes(INPUTS.tobytes())
    file = str(folder / "data.bin")
    return torch.from_file(file, shared=True, size=20, dtype=torch.float32).view(5, 4)


IN_FILES: dict[str, Callable[[Path], Any]] = {
    "read-only": mapped,
    "copy on write": lambda folder: mapped(folder, mode="c"),
    "a view": lambda folder: np.asarray(mapped(folder, np.pad(INPUTS, ((1, 0), (0, 2))))[1:, :4]),
    "a tensor": mapped_tensor,
}
COLUMNS: dict[str, Callable[[Path], Any]] = {
    "tensors": lambda folder: TENSORS,
    "arrays": lambda folder: (INPUTS, LABELS),
    "a list": lambda folder: list(TENSORS),
    "a TensorDataset": lambda folder: TensorDataset(*TENSORS),
} | {name: lambda folder, make=make: (make(folder), LABELS) for name, make in IN_FILES.items()}
KINDS = COLUMNS | {"a Dataset": lambda folder: Items(), "a source": lambda folder: Own()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_any_kind_of_data_is_loaded_whole_and_in_part(
    kind: str, loader_workers: int, tmp_path: Path
) -> None:
    data, loaders = KINDS[kind](tmp_path), Loaders(loader_workers)
    assert in_memory(data) == (kind in COLUMNS and kind not in IN_FILES)
    source = as_source(data, seed=0, loaders=loaders)
    assert isinstance(source, TensorSource) == (kind in COLUMNS)
    check(source)
    rows = [4, 3, 2, 1, 0, 0]
    kept = only_rows(data, np.array(rows))
    assert isinstance(kept, SomeOf) == (kind in IN_FILES or kind == "a source")
    check(as_source(kept, seed=0, loaders=loaders), rows)
    again = as_source(only_rows(kept, np.array([1, 0])), seed=0)
    assert load(again, [(0, [0])])[0][1].tolist() == [LABELS[3]]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_identity_of_any_kind(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind](tmp_path)
    for rows, expected in ((None, LABELS), (np.array([4, 2]), LABELS[[4, 2]])):
        labels = labels_of(data, {}, rows=rows)
        assert labels is not None
        assert labels.tolist() == expected.tolist()
    if kind != "a Dataset":  # whose batches are lists, not tuples
        assert examples_identity(data) == examples_identity(TENSORS)


def test_no_labels() -> None:
    inputs, labels = TENSORS
    assert labels_of(inputs, {}) is None
    assert labels_of((inputs, inputs[:, 0]), {}) is None, "targets that are no classes"
    assert labels_of((inputs, labels, labels), {}) is None
    assert labels_of(inputs, {"label": np.array(["a"] * 5)}) is None
    found = labels_of(inputs, {"label": LABELS.astype(np.int16)})
    assert found is not None
    assert found.tolist() == LABELS.tolist()


@pytest.mark.parametrize("kind", IN_FILES)
def test_one_column_alone_stays_alone(kind: str, tmp_path: Path) -> None:
    for data in (IN_FILES[kind](tmp_path), INPUTS, TENSORS[0]):
        found = load(as_source(data, seed=0))
        assert all(isinstance(grain, Tensor) for grain in found)
        assert [grain.tolist() for grain in found] == [INPUTS[e].tolist() for _, e in REQUESTS]
    assert isinstance(only_rows(TENSORS[0], np.array([1])), Tensor)
    assert isinstance(load(as_source((TENSORS[0],), seed=0))[0], tuple), "a tuple of one too"


def test_grains_are_memory_of_their_own() -> None:
    """Writing to a grain must not change the data, nor another grain."""
    data = torch.zeros(5, 2)
    first, second = load(as_source(data, seed=0), [(0, [1]), (0, [1])])
    first += 1
    assert second.sum() == 0
    assert data.sum() == 0


def test_only_what_is_asked_for_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of half a page in a file of many: the system is told of their pages and of no others."""
    data = mapped(tmp_path, np.zeros((4096, 512), np.float32))
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(sources, "_advise", lambda *advice: told.append(advice))
    load(as_source((data, np.arange(4096)), seed=0))
    address = data.__array_interface__["data"][0]
    whole, *rows = told
    assert whole == (address, data.nbytes, mmap.MADV_RANDOM)
    wanted = [row for _, some in REQUESTS for row in some]
    assert rows == [(address + row * 2048, 2048, mmap.MADV_WILLNEED) for row in wanted]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.float16, np.bool_])
def test_types_that_scanners_write(dtype: Any) -> None:
    array = np.array([0, 1, 7, 8, 300]).astype(dtype)
    for data in (array, torch.from_numpy(array)):
        found = load(as_source(data, seed=0))
        assert [g.numpy().tolist() for g in found] == [array[e].tolist() for _, e in REQUESTS]
        assert found[0].numpy().dtype == dtype
        some: Any = only_rows(data, np.array([4, 2]))
        assert np.asarray(some).tolist() == array[[4, 2]].tolist()


# ---- data sets


class Noisy(Dataset[dict[str, Any]]):
    """Items with noise from every generator."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "number": index,
            "noise": torch.rand(2) + random.random() + float(np.random.rand()),
        }


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_a_dataset_meets_randomness_of_its_own(loader_workers: int) -> None:
    """An item's noise depends on (seed, epoch, example): not on neighbours, order or processes."""
    found = load(as_source(Noisy(), seed=3, loaders=Loaders(loader_workers)))
    assert [grain["number"].tolist() for grain in found] == [e for _, e in REQUESTS]
    for (epoch, examples), grain in zip(REQUESTS, found, strict=True):
        for example, noise in zip(examples, grain["noise"], strict=True):
            (alone,) = load(DatasetSource(Noisy(), seed=3), [(epoch, [example])])
            assert torch.equal(alone["noise"][0], noise)


def test_noise_differs_between_seeds_epochs_and_examples() -> None:
    cases = [(3, 1, 2), (3, 2, 1), (2, 1, 3), (1, 3, 2), (3, 1, 3)]
    found = {
        tuple(load(DatasetSource(Noisy(), seed=s), [(p, [e])])[0]["noise"][0].tolist())
        for s, p, e in cases
    }
    assert len(found) == len(cases)


class Squares(TensorDataset):
    """A TensorDataset with items of its own."""

    def __getitem__(self, index: int) -> Any:
        return {"square": self.tensors[0][index] ** 2}


def test_a_subclass_of_tensordataset_keeps_its_items() -> None:
    data: Any = Squares(torch.arange(5.0))
    found = load(as_source(data, seed=0))
    assert [grain["square"].tolist() for grain in found] == [[9.0, 1.0], [0.0], [4.0, 4.0, 16.0]]
    (cut,) = load(as_source(only_rows(data, np.array([4, 2])), seed=0), [(0, [0, 1])])
    assert cut["square"].tolist() == [16.0, 4.0]


# ---- lists: of columns, of examples, or neither

LISTS: dict[str, tuple[Any, type[Source]]] = {
    "numbers": ([10.0, 11.0], DatasetSource),
    "unlike tensors of equal length": ([torch.zeros(2, 3), torch.ones(2)], TensorSource),
    "one tensor": ([torch.zeros(4, 1)], TensorSource),
    "tensors and numbers": ([torch.zeros(()), 1.0], DatasetSource),
    "sentences": ([torch.zeros(3), torch.zeros(5)], DatasetSource),
    "scalars": ([torch.tensor(1.0), torch.tensor(2.0)], DatasetSource),
    "arrays": ([np.zeros((2, 2)), np.ones((2, 2))], DatasetSource),
    "an array of objects": (np.array([{"x": 1}, {"x": 2}], object), DatasetSource),
}


@pytest.mark.parametrize("what", LISTS)
def test_lists_are_columns_or_examples(what: str) -> None:
    data, kind = LISTS[what]
    assert isinstance(as_source(data, seed=0), kind)
    cut = only_rows(data, np.array([0]))
    assert isinstance(cut, Subset) == (kind is DatasetSource)


AMBIGUOUS: dict[str, Any] = {
    "images": [torch.zeros(3, 4) for _ in range(140)],
    "two": [torch.zeros(2), torch.ones(2)],
    "pictures of many sizes": [torch.zeros(3, size) for size in range(4, 20)],
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_a_list_of_tensors_that_may_be_either_is_refused(what: str) -> None:
    says = rf"list of {len(AMBIGUOUS[what])} tensors.*tuple\(tensors\).*torch\.stack"
    for look in (
        lambda data: as_source(data, seed=0),
        lambda data: only_rows(data, np.array([0])),
        in_memory,
    ):
        with pytest.raises(UserError, match=says):
            look(AMBIGUOUS[what])
    assert len(as_source(tuple(AMBIGUOUS["two"]), seed=0)) == 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


BAD: dict[str, tuple[Any, str]] = {
    "iterable": (Stream(), "Stream is an IterableDataset.*map-style"),
    "no length": (NoLength(), "NoLength has no __len__"),
    "unequal": ((INPUTS, torch.zeros(6)), "tensors have 5 rows and 6 rows"),
    "scalar": (torch.tensor(3.0), "have no rows; give tensors with one row per example"),
    "scalar among others": ((torch.zeros(3), torch.tensor(3.0)), "have no rows and 3 rows"),
    "number": (3, "data of type int"),
    "none": (None, "data of type NoneType"),
    "generator": ((x for x in range(3)), "data of type generator"),
    "text": ((np.array(["a", "b"]), np.zeros(2)), "torch cannot take as it is; give np"),
    "byte order": ((np.zeros(2, ">f4"), np.zeros(2)), "torch cannot take as it is; give np"),
    "backwards": ((np.arange(2)[::-1], np.zeros(2)), "torch cannot take as it is; give np"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data(what: str) -> None:
    data, says = BAD[what]
    with pytest.raises(UserError, match=says):
        as_source(data, seed=0)


# ---- collate

COLLATED: dict[str, tuple[Any, Any]] = {
    "tensor": (TENSORS[0], lambda row: TENSORS[0][row]),
    "array": (INPUTS, lambda row: INPUTS[row]),
    "tuple": ((TENSORS[0], np.arange(5)), lambda row: (TENSORS[0][row], row)),
    "TensorDataset": (TensorDataset(*TENSORS), lambda row: (TENSORS[0][row], LABELS[row])),
    "list": (list(TENSORS[0]), lambda row: TENSORS[0][row]),
    "list of unlike": ([torch.arange(n + 1) for n in range(5)], lambda row: torch.arange(row + 1)),
    "Dataset": (Items(), lambda row: (TENSORS[0][row], LABELS[row])),
}


@pytest.mark.parametrize("what", COLLATED)
def test_nothing_is_read_past_a_collate(what: str) -> None:
    """It is given the items, one for each example, whatever the data is."""
    data, item = COLLATED[what]

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(part) for part in value]
        return value if isinstance(value, int) else value.tolist()

    def collate(items: list[Any]) -> Any:
        return [plain(each) for each in items]

    source = as_source(data, seed=0, collate=collate)
    assert len(source) == 5
    assert load(source) == [[plain(item(row)) for row in rows] for _, rows in REQUESTS]
    cut = as_source(only_rows(data, np.array([4, 1]), collate), seed=0, collate=collate)
    assert load(cut, [(0, [0, 1])]) == [[plain(item(4)), plain(item(1))]]
    assert in_memory(data, collate) == (what in ("tensor", "array", "tuple", "TensorDataset"))


def test_uneven_columns_are_refused_with_a_collate_too() -> None:
    with pytest.raises(UserError, match="tensors have 3 rows and 5 rows"):
        as_source((torch.zeros(3), torch.zeros(5)), seed=0, collate=list)
