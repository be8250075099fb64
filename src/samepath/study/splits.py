"""Splits of a recipe's examples into folds, by scikit-learn's splitters.

In: a recipe, how many folds, what belongs together and what is to be balanced (facts of the
examples by name, or columns of a CSV file), a seed. Out: folds. Guaranteed: each example is held
out once in every repeat; no group is on both sides of a fold; the split depends on these alone, and
on scikit-learn's version; what cannot be split so is refused before anything is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samepath.console import count
from samepath.data import GrainRequest, as_source
from samepath.data.content import add_value
from samepath.data.fold_file import Fold
from samepath.data.formats.listing import read_table
from samepath.data.sources import in_memory, labels_of
from samepath.errors import UserError
from samepath.files import brief
from samepath.keys import key
from samepath.recipe import Recipe

Names = NDArray[np.str_]
_LABEL = "label"


@dataclass(frozen=True, kw_only=True)
class SplitRequest:
    """How examples are to be split."""

    folds: int = 5
    groups: str | None = None
    """Examples that share it are never on both sides: a fact's name, or FILE.csv:COLUMN."""
    stratify: str | None = None
    """What every fold has in about the same proportions: likewise, or label."""
    repeats: int = 1
    """Splits, each with other folds."""
    examples: Literal["all", "train"] = "all"
    """all: those of the training and validation data together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberedFold:
    """A fold with its place in the split."""

    repeat: int
    number: int
    """Both from 1."""
    fold: Fold

    @property
    def name(self) -> str:
        return f"repeat{self.repeat}-fold{self.number}"


def split(recipe: Recipe, asked: SplitRequest, seed: int) -> list[NumberedFold]:
    """Split the recipe's training data."""
    for option, number, least in (("--folds", asked.folds, 2), ("--repeats", asked.repeats, 1)):
        if number < least:
            raise UserError(f"{option} {number}: it must be at least {least}")
    _refuse_random(recipe)
    num_examples = len(as_source(recipe.train, seed=0, collate=recipe.collate))
    if asked.folds > num_examples:
        raise UserError(
            f"--folds {asked.folds}: there are {count(num_examples, 'example')}; give at most so "
            "many folds"
        )
    groups = classes = None
    if asked.groups is not None:
        groups = _column(recipe, "--groups", asked.groups, num_examples)
        _refuse_few_groups(groups, asked)
    if asked.stratify is not None:
        classes = _column(recipe, "--stratify", asked.stratify, num_examples)
        _refuse_rare_classes(classes, asked)
    return numbered_folds(num_examples, asked.folds, seed, groups, classes, asked.repeats)


def numbered_folds(
    num_examples: int,
    folds: int,
    seed: int,
    groups: Names | None,
    classes: Names | None,
    repeats: int = 1,
) -> list[NumberedFold]:
    """The folds of so many examples that can be split so: by whole groups, balanced over classes,
    where these are given."""
    return [
        NumberedFold(repeat=repeat + 1, number=number + 1, fold=fold)
        for repeat in range(repeats)
        for number, fold in enumerate(
            _folds(num_examples, folds, key("folds", seed, repeat), groups, classes)
        )
    ]


def split_identity(folds: Sequence[NumberedFold]) -> str:
    """SHA-256 of all folds of a split."""
    return hashlib.sha256("".join(each.fold.identity for each in folds).encode()).hexdigest()


def _folds(
    num_examples: int, number: int, word: int, groups: Names | None, classes: Names | None
) -> Iterator[Fold]:
    """One split into so many folds."""
    from sklearn import model_selection as sklearn

    if groups is None:
        kind: Any = sklearn.KFold if classes is None else sklearn.StratifiedKFold
    else:
        kind = sklearn.GroupKFold if classes is None else sklearn.StratifiedGroupKFold
    splitter = kind(number, shuffle=True, random_state=word % 2**32)
    for _, rows in splitter.split(np.zeros(num_examples), classes, groups):
        held_out = np.zeros(num_examples, np.bool_)
        held_out[rows] = True
        if not held_out.any():
            raise UserError(
                f"--folds {number}: balanced over whole groups, one fold is empty; give fewer "
                "folds, or leave --stratify out"
            )
        yield Fold(held_out)


def _refuse_few_groups(groups: Names, asked: SplitRequest) -> None:
    number = len(np.unique(groups))
    if number < asked.folds:
        raise UserError(
            f"--folds {asked.folds}: there are {count(number, 'group')} of {asked.groups}, and "
            f"none may be on both sides; give at most {number} folds"
        )


def _refuse_rare_classes(classes: Names, asked: SplitRequest) -> None:
    names, counts = np.unique(classes, return_counts=True)
    rarest = int(counts.argmin())
    if counts[rarest] < asked.folds:
        raise UserError(
            f"--folds {asked.folds}: {asked.stratify} {names[rarest]} has "
            f"{count(int(counts[rarest]), 'example')}, fewer than there are folds; give at most "
            f"{max(2, counts[rarest])} folds, or leave --stratify out"
        )


def _refuse_random(recipe: Recipe) -> None:
    """Raise where examples that are held out would come out different from epoch to epoch: they
    would be judged as they are augmented."""
    judged = recipe.train if recipe.held_out is None else recipe.held_out
    source = as_source(judged, seed=0, collate=recipe.collate)
    if len(source) != (number := len(as_source(recipe.train, seed=0, collate=recipe.collate))):
        raise UserError(
            f"held_out has {len(source)} examples, and the training data {number}; give the same "
            "ones in the same order"
        )
    if in_memory(judged, recipe.collate):
        return
    found = set()
    for batch in source.load(GrainRequest(epoch, np.array([0])) for epoch in range(3)):
        whole = hashlib.sha256()
        add_value(whole, batch, lambda value: None)
        found.add(whole.digest())
    if len(found) > 1:
        raise UserError(
            f"examples of {recipe.origin.name!r} are changed at random when they are loaded, and "
            "so would be those that a fold holds out; give the recipe held_out= (the same examples "
            "without what is random), or move what is random to augment="
        )


# ---- what is known of each example


def _column(recipe: Recipe, option: str, what: str, num_examples: int) -> Names:
    """One value per example, as text."""
    if ".csv" in what:
        return _of_file(option, what, num_examples)
    values = recipe.train_facts.get(what)
    if values is None and what == _LABEL:
        values = labels_of(recipe.train, recipe.train_facts, recipe.collate)
        if values is None:
            raise UserError(
                f"{option} {what}: the examples of {recipe.origin.name!r} have no labels (a batch "
                "is no pair of inputs and whole numbers); name a fact, or give FILE.csv:COLUMN"
            )
    if values is None:
        known = ", ".join([_LABEL, *(name for name in recipe.train_facts if name != _LABEL)])
        raise UserError(
            f"{option} {what}: {recipe.origin.name!r} knows nothing of that name of its examples "
            f"({known}); choose from these, or give FILE.csv:COLUMN"
        )
    values = np.asarray(values)
    if values.shape != (num_examples,):
        raise UserError(
            f"{option} {what}: it has the shape {values.shape} for {num_examples} examples; give "
            "one value for each"
        )
    if values.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(values))
        if len(missing):
            raise UserError(f"{option} {what}: example {missing[0]} has no value (NaN)")
        if option == "--stratify" and (values != np.round(values)).any():
            raise UserError(
                f"{option} {what}: its values are numbers such as {values[0]:g}, no classes; give "
                "FILE.csv:COLUMN with a class for each example"
            )
    return values.astype(np.str_)


def _of_file(option: str, what: str, num_examples: int) -> Names:
    """A column of a CSV file that numbers the examples in its column `index`."""
    path, _, name = what.rpartition(":")
    if not path.endswith(".csv"):
        raise UserError(f"{option} {what}: name a column of the file too, as in {what}:patient")
    found: list[str | None] = [None] * num_examples
    for where, row in read_table(Path(path), ("index", name)):
        index = row["index"]
        if not (index.isdecimal() and int(index) < num_examples) or found[int(index)] is not None:
            raise UserError(
                f"{where}: index is {brief(repr(index))}; it must be a number from 0 to "
                f"{num_examples - 1}, each once"
            )
        if not row[name]:
            raise UserError(f"{where}: {name} is empty; give a value for each example")
        found[int(index)] = row[name]
    if None in found:
        raise UserError(
            f"{path} has no row for example {found.index(None)}; give one for each of "
            f"{num_examples}"
        )
    return np.array(found, dtype=np.str_)
