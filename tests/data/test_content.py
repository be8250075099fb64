"""Fingerprints of data: other data has another, however it is held; the same data has the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from samepath.data.content import content_of, fingerprint_path, held_content, same_content
from samepath.data.sources import only_rows

MADE = torch.Generator().manual_seed(0)
INPUTS = torch.randn(5000, 3, generator=MADE)
LABELS = torch.arange(5000) % 7
SWAPPED = INPUTS[[4999, *range(1, 4999), 0]]


def changed(row: int) -> Tensor:
    """One value of one row is another."""
    other = INPUTS.clone()
    other[row, 1] += 1
    return other


class Items(Dataset[tuple[Tensor, int]]):
    """A data set of any kind."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index], index % 7


HELD: dict[str, Any] = {
    "tensor": lambda inputs: inputs,
    "array": lambda inputs: inputs.numpy(),
    "tuple": lambda inputs: (inputs, LABELS),
    "list": lambda inputs: [inputs, LABELS],
    "TensorDataset": lambda inputs: TensorDataset(inputs, LABELS),
    "Subset": lambda inputs: Subset(TensorDataset(inputs, LABELS), range(5000)),
    "ConcatDataset": lambda inputs: ConcatDataset([TensorDataset(inputs), TensorDataset(LABELS)]),
    "lying otherwise": lambda inputs: inputs.t().contiguous().t(),
}


@pytest.mark.parametrize("kind", HELD)
def test_every_value_in_memory_counts(kind: str) -> None:
    before = content_of(HELD[kind](INPUTS))
    assert before.keys() == {"data"}
    assert before == content_of(HELD[kind](INPUTS.clone()))
    assert before == held_content(HELD[kind](INPUTS))
    others = [changed(0), changed(17), changed(2501), changed(4999), SWAPPED, INPUTS.double()]
    found = [content_of(HELD[kind](other))["data"] for other in others]
    assert len({*found, before["data"]}) == len(others) + 1


def test_how_it_lies_in_memory_does_not() -> None:
    turned, array = INPUTS.t().contiguous().t(), INPUTS.numpy()
    same: list[Any] = [INPUTS, turned, array, np.asfortranarray(array)]
    assert len({content_of(data)["data"] for data in same}) == 1


def test_another_fold_is_other_data() -> None:
    """Folds of one data set have equal shapes, and often nothing else in common."""
    whole = TensorDataset(INPUTS, LABELS)
    folds = [range(2500), range(2500, 5000), range(0, 5000, 2)]
    assert len({content_of(Subset(whole, fold))["data"] for fold in folds}) == 3
    items = [content_of(Subset(Items(INPUTS), list(fold))) for fold in folds]
    assert not same_content(items[0], items[1])
    assert not same_content(items[0], items[2]), "the first item is the same, the rows are not"
    kept = [only_rows((INPUTS, LABELS), np.array(rows)) for rows in ([1, 2], [1, 3])]
    assert content_of(kept[0]) != content_of(kept[1])


def test_types_that_are_seldom_used() -> None:
    kinds = [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.complex64, torch.uint16]
    found = {content_of(torch.ones(9, 3).to(kind))["data"] for kind in kinds}
    assert len(found) == len(kinds)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert content_of(conjugate) == content_of(conjugate.resolve_conj())
    assert content_of(torch.zeros(4, 0)) != content_of(torch.zeros(5, 0))


def test_a_mapped_file_is_not_read_through(tmp_path: Path, monkeypatch: Any) -> None:
    np.save(tmp_path / "a.npy", INPUTS.numpy())
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    before = content_of(mapped)
    np.save(tmp_path / "b.npy", changed(0).numpy())
    assert content_of(np.load(tmp_path / "b.npy", mmap_mode="r")) != before
    read: list[int] = []
    monkeypatch.setattr("samepath.data.content._sum", lambda part: read.append(len(part)) or 0)  # type: ignore[func-returns-value]
    assert content_of(mapped) == before
    assert not read
    content_of(INPUTS)
    assert read, "in memory everything is"


# ---- items


def test_items_of_other_data_sets() -> None:
    before = content_of(Items(INPUTS))
    assert before.keys() == {"form", "item 0", "item 2500", "item 4999"}
    assert before == content_of(Items(INPUTS))
    assert before == content_of(Items(INPUTS), loader_workers=3)
    assert held_content(Items(INPUTS)) == {}
    for row in (0, 2500, 4999):
        assert not same_content(before, content_of(Items(changed(row))))
    assert not same_content(before, content_of(Items(INPUTS[:4000])))


class Noisy(Items):
    """Keyed by (seed, epoch, example) as everything random is that uses the global generators."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index] + torch.rand(3) + random.random() + float(np.random.rand()), index


class OwnGenerator(Items):
    def __init__(self, inputs: Tensor, seed: int) -> None:
        super().__init__(inputs)
        self.generator = np.random.default_rng(seed)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index] + float(self.generator.normal()), index


class Counting(Items):
    number = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.number += 1
        return self.inputs[index] + self.number, index


def test_random_items() -> None:
    assert content_of(Noisy(INPUTS)) == content_of(Noisy(INPUTS))
    assert "item 0" in content_of(Noisy(INPUTS))
    assert not same_content(content_of(Noisy(INPUTS)), content_of(Noisy(changed(0))))
    own = [content_of(OwnGenerator(INPUTS, seed)) for seed in (0, 1)]
    assert "item 0" in own[0], "its own generator is keyed by the example too"
    assert own[0] == own[1]
    counting = content_of(Counting(INPUTS))
    assert counting.keys() == {"form"}, "no two loads agree"


class Photographs(Items):
    """Items with the name of a file, and a thing that is no number."""

    def __init__(self, inputs: Tensor, folder: str) -> None:
        super().__init__(inputs)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        return {"image": self.inputs[index], "file": f"{self.folder}/{index}", "made": object()}


def test_names_of_files_may_change() -> None:
    before, moved = (content_of(Photographs(INPUTS, folder)) for folder in ("/a", "/b"))
    assert before == moved
    assert "item 0" in before
    assert not same_content(before, content_of(Photographs(changed(0), "/a")))


class Broken(Items):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index:
            raise OSError("no such file")
        return super().__getitem__(index)


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_items_that_cannot_be_loaded_are_left_to_the_run(loader_workers: int) -> None:
    threads = torch.get_num_threads()
    found = content_of(Broken(INPUTS), loader_workers=loader_workers)
    assert found.keys() <= {"form", "item 0"}
    assert torch.get_num_threads() == threads


def test_lists_and_sources_of_ones_own() -> None:
    class Own:
        def __len__(self) -> int:
            return 20

        def load(self, requests: Any) -> Iterator[Any]:
            for request in requests:
                yield INPUTS[request.examples]

    assert content_of(Own()).keys() == {"form", "item 0", "item 10", "item 19"}
    sentences: Any = [torch.arange(n) for n in range(1, 6)]
    others: Any = [torch.arange(n) + 1 for n in range(1, 6)]
    assert not same_content(content_of(sentences), content_of(others))
    pairs: Any = list(INPUTS[:6])
    assert content_of(pairs, collate=torch.stack).keys() >= {"form", "item 0"}


def test_what_only_one_has_is_not_compared() -> None:
    assert same_content({}, {"data": "a"})
    assert same_content({"a": "1", "b": "2"}, {"b": "2", "c": "3"})
    assert not same_content({"a": "1"}, {"a": "2"})


# ---- files


def test_a_moved_file_is_the_same_and_a_changed_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(3 << 20))
    before = fingerprint_path(file)
    assert fingerprint_path(file.rename(tmp_path / "b.bin")) == before
    for place in (0, (3 << 20) - 1):
        content = bytearray(3 << 20)
        content[place] = 1
        file.write_bytes(content)
        assert fingerprint_path(file) != before


def test_a_folder_is_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "one").write_text("1")
    before = fingerprint_path(folder)
    assert fingerprint_path(folder.rename(tmp_path / "moved")) == before
    (tmp_path / "moved" / "two").touch()
    assert fingerprint_path(tmp_path / "moved") != before
