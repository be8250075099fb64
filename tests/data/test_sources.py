"""Whatever a person has as data, by example number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from samepath.data import DatasetSource, GrainRequest, Loaders, TensorSource, as_source
from samepath.data.sources import Source, in_memory, only_rows
from samepath.errors import UserError

REQUESTS = [(0, [3, 1]), (0, [0]), (1, [2, 2, 4])]


def load(source: Source, requests: list[tuple[int, list[int]]] = REQUESTS) -> list[Any]:
    return list(source.load(GrainRequest(epoch, np.array(e, np.int64)) for epoch, e in requests))


class Noisy(Dataset[dict[str, Any]]):
    """Items with noise from every generator."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "number": index,
            "noise": torch.rand(2) + random.random() + float(np.random.rand()),
        }


def test_a_tensor_gives_tensors() -> None:
    data = torch.arange(10).view(5, 2)
    source = as_source(data, seed=0)
    assert isinstance(source, TensorSource)
    assert len(source) == 5
    found = load(source)
    assert [grain.tolist() for grain in found] == [data[e].tolist() for _, e in REQUESTS]


@pytest.mark.parametrize("wrap", [tuple, list, lambda tensors: TensorDataset(*tensors)])
def test_several_tensors_give_tuples(wrap: Any) -> None:
    data = [torch.arange(5), torch.arange(5.0) * 10]
    source = as_source(wrap(data), seed=0)
    assert isinstance(source, TensorSource)
    for (_, examples), grain in zip(REQUESTS, load(source), strict=True):
        assert isinstance(grain, tuple)
        assert [part.tolist() for part in grain] == [part[examples].tolist() for part in data]


def test_a_tuple_of_one_stays_a_tuple() -> None:
    (grain, *_) = load(as_source((torch.arange(5),), seed=0))
    assert isinstance(grain, tuple)


def test_grains_are_memory_of_their_own() -> None:
    """Writing to a grain must not change the data, nor another grain."""
    data = torch.zeros(5, 2)
    first, second = load(as_source(data, seed=0), [(0, [1]), (0, [1])])
    first += 1
    assert second.sum() == 0
    assert data.sum() == 0


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_a_dataset_meets_randomness_of_its_own(loader_workers: int) -> None:
    """An item's noise depends on (seed, epoch, example): not on neighbours, order or processes."""
    source = as_source(Noisy(), seed=3, loaders=Loaders(loader_workers))
    assert isinstance(source, DatasetSource)
    assert len(source) == 5
    found = load(source)
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


def test_collate() -> None:
    def numbers(items: list[dict[str, Any]]) -> list[int]:
        return [item["number"] for item in items]

    assert load(as_source(Noisy(), seed=0, collate=numbers)) == [e for _, e in REQUESTS]


def test_a_plain_list_is_a_dataset() -> None:
    numbers: Any = [10.0, 11.0, 12.0, 13.0, 14.0]
    found = load(as_source(numbers, seed=0))
    assert [grain.tolist() for grain in found] == [[13.0, 11.0], [10.0], [12.0, 12.0, 14.0]]


def test_a_source_of_ones_own_is_left_alone() -> None:
    class Mine:
        def __len__(self) -> int:
            return 2

        def load(self, requests: Any) -> Iterator[Any]:
            yield from requests

    mine = Mine()
    assert as_source(mine, seed=0) is mine


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


BAD: dict[str, tuple[Any, str]] = {
    "iterable": (Stream(), "Stream is an IterableDataset.*map-style"),
    "no length": (NoLength(), "NoLength has no __len__"),
    "unequal": ((torch.zeros(3), torch.zeros(5)), "tensors have 3 rows and 5 rows"),
    "scalar": (torch.tensor(3.0), "have no rows; give tensors with one row per example"),
    "scalar among others": ((torch.zeros(3), torch.tensor(3.0)), "have no rows and 3 rows"),
    "number": (3, "data of type int"),
    "none": (None, "data of type NoneType"),
    "generator": ((x for x in range(3)), "data of type generator"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data(what: str) -> None:
    data, says = BAD[what]
    with pytest.raises(UserError, match=says):
        as_source(data, seed=0)


def test_lists_of_unlike_tensors_are_columns() -> None:
    """As people keep inputs and labels; a list that is not all tensors is one of examples."""
    columns: Any = [torch.zeros(2, 3), torch.ones(2)]
    assert isinstance(as_source(columns, seed=0), TensorSource)
    assert isinstance(as_source([torch.zeros(4, 1)], seed=0), TensorSource)
    mixed: Any = [torch.zeros(()), 1.0]
    assert isinstance(as_source(mixed, seed=0), DatasetSource)


def test_lists_of_tensors_of_unlike_lengths_are_examples() -> None:
    sentences: Any = [torch.zeros(3), torch.zeros(5)]
    source = as_source(sentences, seed=0)
    assert isinstance(source, DatasetSource)
    assert len(source) == 2
    numbers: Any = [torch.tensor(1.0), torch.tensor(2.0)]
    assert isinstance(as_source(numbers, seed=0), DatasetSource)


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


COLUMN = torch.arange(10.0).view(5, 2)
COLLATED: dict[str, tuple[Any, Any]] = {
    "tensor": (COLUMN, lambda row: COLUMN[row]),
    "array": (COLUMN.numpy(), lambda row: COLUMN.numpy()[row]),
    "tuple": ((COLUMN, np.arange(5)), lambda row: (COLUMN[row], row)),
    "TensorDataset": (TensorDataset(COLUMN, torch.arange(5)), lambda row: (COLUMN[row], row)),
    "list": (list(COLUMN), lambda row: COLUMN[row]),
    "list of unlike": ([torch.arange(n + 1) for n in range(5)], lambda row: torch.arange(row + 1)),
}


@pytest.mark.parametrize("what", COLLATED)
def test_nothing_is_read_past_a_collate(what: str) -> None:
    """It is given the items, one for each example, whatever the data is."""
    data, item = COLLATED[what]

    def plain(value: Any) -> Any:
        return [plain(part) for part in value] if isinstance(value, tuple) else value.tolist()

    def collate(items: list[Any]) -> Any:
        return [plain(each) for each in items]

    def expected(rows: list[int]) -> list[Any]:
        found = [item(row) for row in rows]
        return [[e[0].tolist(), e[1]] if isinstance(e, tuple) else e.tolist() for e in found]

    source = as_source(data, seed=0, collate=collate)
    assert len(source) == 5
    assert load(source) == [expected(rows) for _, rows in REQUESTS]
    cut = as_source(only_rows(data, np.array([4, 1]), collate), seed=0, collate=collate)
    assert load(cut, [(0, [0, 1])]) == [expected([4, 1])]
    assert in_memory(data, collate) == (not isinstance(data, list))


def test_uneven_columns_are_refused_with_a_collate_too() -> None:
    with pytest.raises(UserError, match="tensors have 3 rows and 5 rows"):
        as_source((torch.zeros(3), torch.zeros(5)), seed=0, collate=list)
