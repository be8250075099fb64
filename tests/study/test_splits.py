"""Splits: every example held out once, no group on both sides, the same split every time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset

from samepath import Recipe, WeightedSampler
from samepath.data import as_source
from samepath.data.fold_file import Fold, is_fold_file, read_fold, write_fold
from samepath.data.sources import Data, requests_for
from samepath.errors import UserError
from samepath.recipe import of_fold, with_valid_joined
from samepath.study.splits import NumberedFold, SplitRequest, split, split_identity

NUM = 24


def made(**changes: Any) -> Recipe:
    """A recipe of 24 examples in three classes, of eight patients."""
    numbers = np.arange(NUM)
    data = (torch.arange(float(NUM))[:, None], torch.from_numpy(numbers % 3))
    settings: dict[str, Any] = {
        "train": data,
        "train_facts": {"patient": numbers // 3, "size": numbers / 7},
    }
    return Recipe(
        **settings | changes,
        model=lambda: nn.Linear(1, 3),
        loss=lambda model, batch: model(batch[0]).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
        epochs=1,
    )


def held_out(folds: list[NumberedFold]) -> list[list[int]]:
    return [each.fold.valid.tolist() for each in folds]


@given(st.data())
def test_no_group_is_on_both_sides(data: st.DataObject) -> None:
    groups = np.array(data.draw(st.lists(st.integers(0, 12), min_size=NUM, max_size=NUM)))
    number, repeats = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 2))
    stratify = data.draw(st.sampled_from([None, "label"]))
    assume(len(set(groups.tolist())) >= number)
    asked = SplitRequest(folds=number, groups="patient", stratify=stratify, repeats=repeats)
    recipe = made(train_facts={"patient": groups})
    folds = split(recipe, asked, seed=data.draw(st.integers(0, 3)))
    assert len(folds) == number * repeats
    for each in folds:
        assert not set(groups[each.fold.train]) & set(groups[each.fold.valid])
    counts = Counter(row for rows in held_out(folds) for row in rows)
    assert counts == dict.fromkeys(range(NUM), repeats)


def test_the_split_is_of_the_seed_alone() -> None:
    recipe, asked = made(), SplitRequest(folds=4, repeats=2)
    folds = split(recipe, asked, seed=0)
    assert split_identity(folds) == split_identity(split(recipe, asked, seed=0))
    assert split_identity(folds) != split_identity(split(recipe, asked, seed=1))
    assert held_out(folds)[:4] != held_out(folds)[4:], "repeats are other splits"
    assert held_out(folds)[:4] == held_out(split(recipe, replace(asked, repeats=1), seed=0))
    assert [each.name for each in folds][3:5] == ["repeat1-fold4", "repeat2-fold1"]


def test_classes_are_balanced() -> None:
    labels = np.arange(NUM) % 3
    for groups in (None, "patient"):
        asked = SplitRequest(folds=4, stratify="label", groups=groups)
        for rows in held_out(split(made(), asked, seed=0)):
            assert Counter(labels[rows].tolist()) == {0: 2, 1: 2, 2: 2}


def test_a_column_of_a_file_is_as_good_as_a_fact(tmp_path: Path) -> None:
    lines = [f"{n},a patient {n // 3}" for n in reversed(range(NUM))]
    file = tmp_path / "p.csv"
    file.write_text("\n".join(["index,patient", *lines]))
    for_file = split(made(), SplitRequest(folds=4, groups=f"{file}:patient"), seed=0)
    by_fact = split(made(), SplitRequest(folds=4, groups="patient"), seed=0)
    assert held_out(for_file) == held_out(by_fact)


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return NUM

    def __getitem__(self, row: int) -> Any:
        return torch.rand(1), row % 3


UNLABELLED = {"train": torch.zeros(NUM, 1), "train_facts": {}}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "one fold": ({}, {"folds": 1}, "--folds 1: it must be at least 2"),
    "no repeats": ({}, {"repeats": 0}, "--repeats 0"),
    "more folds than examples": ({}, {"folds": 25}, "24 examples; give at most so many"),
    "more folds than groups": (
        {},
        {"folds": 9, "groups": "patient"},
        "8 groups of patient, and none may be on both sides; give at most 8 folds",
    ),
    "more folds than examples of a class": (
        {},
        {"folds": 9, "stratify": "label"},
        "label 0 has 8 examples, fewer than there are folds; give at most 8",
    ),
    "unknown fact": ({}, {"groups": "scan"}, r"--groups scan.*\(label, patient, size\)"),
    "unlabelled": (UNLABELLED, {"stratify": "label"}, "--stratify label.*have no labels"),
    "no classes": ({}, {"stratify": "size"}, "numbers such as 0, no classes"),
    "unknown value": (
        {"train_facts": {"patient": np.array([1.0, np.nan] * 12)}},
        {"groups": "patient"},
        "example 1 has no value",
    ),
    "too few values": (
        {"train_facts": {"patient": np.ones(3)}},
        {"groups": "patient"},
        "give one value for each",
    ),
    "file without column": ({}, {"groups": "p.csv"}, "as in p.csv:patient"),
    "no such file": ({}, {"groups": "gone.csv:patient"}, "gone.csv cannot be read"),
    "random data": ({"train": Noisy()}, {}, "changed at random.*held_out=.*augment="),
    "other data held out": (
        {"held_out": torch.zeros(5, 1)},
        {},
        "held_out has 5 examples, and the training data 24",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_split(what: str) -> None:
    changes, asked, words = REFUSED[what]
    with pytest.raises(UserError, match=words):
        split(made(**changes), SplitRequest(**asked), seed=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("index,scan\n0,a\n", "must name the columns index, patient"),
        ("index,patient\n0,a\n0,b\n", "line 3: index is '0'.*each once"),
        ("index,patient\n24,a\n", "from 0 to 23"),
        ("index,patient\n0,\n", "line 2: patient is empty"),
        ("index,patient\n0,a\n", "no row for example 1"),
    ],
)
def test_files_of_another_form(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(UserError, match=words):
        split(made(), SplitRequest(groups=f"{tmp_path / 'p.csv'}:patient"), seed=0)


# ---- the recipe of a fold


def inputs(data: Data | None) -> list[float]:
    assert data is not None
    source = as_source(data, seed=0)
    loaded = source.load(requests_for(np.arange(len(source))))
    return [float(value) for batch in loaded for value in batch[0]]


class Items(Dataset[Any]):
    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> Any:
        return torch.tensor([float(self.first + row)]), row


MAPPED = "mapped"


@pytest.mark.parametrize("kind", ["tensors", "arrays", MAPPED, "data sets", "both"])
def test_training_and_validation_data_are_split_together(kind: str, tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32)[:, None]
    labels = np.arange(12)
    if kind == MAPPED:
        np.save(tmp_path / "values.npy", values)
        values = np.load(tmp_path / "values.npy", mmap_mode="r")
    parts: list[Any] = [(values[rows], labels[rows]) for rows in (slice(6), slice(6, 12))]
    if kind == "tensors":
        parts = [tuple(map(torch.from_numpy, part)) for part in parts]
    if kind in ("data sets", "both"):
        parts[1] = Items(6)
    if kind == "data sets":
        parts[0] = Items(0)
    facts = [{"patient": np.array(list(text)), text: np.zeros(6)} for text in ("aabbcc", "ccddee")]
    recipe = made(train=parts[0], valid=parts[1], train_facts=facts[0], valid_facts=facts[1])
    whole = with_valid_joined(recipe)
    assert inputs(whole.train) == list(range(12))
    assert list(whole.train_facts) == ["patient"], "what is known of all of them"
    assert "".join(whole.train_facts["patient"]) == "aabbccccddee"
    held = np.isin(np.arange(12), [1, 4, 7, 8])
    of_it = of_fold(whole, Fold(held), tmp_path / "fold.csv")
    assert inputs(of_it.valid) == [1, 4, 7, 8]
    assert inputs(of_it.train) == [0, 2, 3, 5, 6, 9, 10, 11]
    assert "".join(of_it.valid_facts["patient"]) == "accd"
    assert "".join(of_it.train_facts["patient"]) == "abbccdee"


def test_what_cannot_be_split_together() -> None:
    other = (torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(UserError, match=r"float32 \(1,\).*float32 \(2,\).*--examples train"):
        with_valid_joined(made(valid=other))
    weighted = made(valid=made().train, sampler=WeightedSampler(np.ones(NUM)))
    with pytest.raises(UserError, match="no weights for its validation data"):
        with_valid_joined(weighted)
    alone = of_fold(replace(weighted, valid=None), Fold(np.arange(NUM) < 8), Path("fold.csv"))
    assert alone.sampler is not None
    assert alone.sampler.num_examples == 16


def test_held_out_examples_are_judged_without_what_is_random() -> None:
    plain = made().train
    recipe = made(train=Noisy(), held_out=plain, valid=plain)
    with pytest.raises(UserError, match="held_out has nothing of its validation data"):
        with_valid_joined(recipe)
    (each, *_) = split(replace(recipe, valid=None), SplitRequest(folds=4), seed=0)
    of_it = of_fold(recipe, each.fold, Path("fold.csv"))
    assert inputs(of_it.valid) == each.fold.valid.tolist()
    assert not set(inputs(of_it.train)) & set(range(1, NUM)), "these are of the random data"


# ---- fold files


def test_fold_files_are_read_back(tmp_path: Path) -> None:
    file, fold = tmp_path / "fold.csv", Fold(np.array([True, False, True]))
    write_fold(file, fold)
    assert is_fold_file(file)
    assert read_fold(file).identity == fold.identity
    assert read_fold(file).valid.tolist() == [0, 2]
    assert fold.identity != Fold(~fold.held_out).identity


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0,0\n2,1\n", "line 3: index is '2' where 1 is due"),
        ("0,0\n1,yes\n", "line 3: held_out is 'yes'"),
        ("0,0\n1,0\n", "holds out all examples or none"),
    ],
)
def test_other_fold_files(rows: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "fold.csv").write_text("index,held_out\n" + rows)
    with pytest.raises(UserError, match=words):
        read_fold(tmp_path / "fold.csv")
