"""The real nodules, how they are split, and the data files of the runs.

In: an .npz (or other volumes) of nodules with two classes, and how many folds and which shares were
asked for. Out: folds by whole groups, nested parts of each fold's training nodules, and .npz files
that recipes read: training and held-out nodules, with the facts `label`, `group`, `split` and
`augment`. Guaranteed: what a generator's file holds was never held out; what cannot be split so is
refused in one line before anything is written.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import split_by_group
from samepath.data.formats.volumes import load_masks, load_volumes
from samepath.errors import UserError
from samepath.output.predict import write_npz
from samepath.recipes.nodules.classifier import two_classes
from samepath.recipes.nodules.generation import MIN_EXAMPLES
from samepath.study.splits import numbered_folds

Rows = NDArray[np.int64]
VALID_PART = 6
"""A generator validates on one in so many of the nodules it may see."""


@dataclass(frozen=True, kw_only=True)
class RealNodules:
    """All real nodules of a data set."""

    path: Path
    cubes: NDArray[Any]
    label: NDArray[np.int64]
    groups: NDArray[np.str_]
    arrays: Mapping[str, NDArray[Any]]
    """Whatever else the file has for each nodule (masks, diameters), for the generator."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, kw_only=True)
class WorthFold:
    """One fold: what it holds out, and nested parts of the rest."""

    number: int
    held_out: Rows
    train: Mapping[int, Rows]
    """By percent of the nodules that are not held out."""


def load_real(path: Path) -> RealNodules:
    """The nodules of a file or folder, checked."""
    volumes = load_volumes(path)
    label = two_classes(volumes.facts, path)
    if len(set(label.tolist())) < 2:
        raise UserError(f"{path}: all nodules have one class; give nodules of two")
    arrays: dict[str, NDArray[Any]] = dict(volumes.facts)
    mask = load_masks(path, volumes.cubes.shape)
    if mask is not None:
        arrays["mask"] = mask
    arrays.pop("augment", None)
    return RealNodules(
        path=path,
        cubes=np.asarray(volumes.cubes),
        label=label,
        groups=np.array(volumes.group, dtype=np.str_),
        arrays=arrays,
    )


def split_real(
    real: RealNodules, *, folds: int, percents: Sequence[int], seed: int, generates: bool
) -> list[WorthFold]:
    """Folds by whole groups, balanced over classes. Where something `generates`, the smallest part
    must have enough of each class to learn from."""
    if folds < 2:
        raise UserError(f"--folds {folds}: it must be at least 2")
    counts = np.bincount(real.label, minlength=2)
    if counts.min() < folds:
        raise UserError(
            f"--folds {folds}: class {counts.argmin()} has {counts.min()} nodules, fewer than "
            f"there are folds; give at most {max(2, counts.min())} folds"
        )
    num_groups = len(np.unique(real.groups))
    if num_groups < folds:
        raise UserError(f"--folds {folds}: there are {num_groups} groups; give at most so many")
    groups = None if num_groups == len(real) else real.groups
    made = [
        WorthFold(
            number=each.number,
            held_out=each.fold.valid,
            train={p: _part(real, each.fold.train, p) for p in percents},
        )
        for each in numbered_folds(len(real), folds, seed, groups, real.label.astype(np.str_))
    ]
    for fold in made:
        for what, rows in (("holds out", fold.held_out), ("trains on", fold.train[min(percents)])):
            few = np.bincount(real.label[rows], minlength=2)
            if not few.min():
                raise UserError(
                    f"fold {fold.number} {what} no nodule of class {few.argmin()}; give fewer "
                    "--folds or a larger --percents"
                )
        few = np.bincount(real.label[generator_rows(real, fold.train[min(percents)])[0]])
        if generates and few.min() < MIN_EXAMPLES:
            raise UserError(
                f"--percents {min(percents)}: a generator would learn from {few.min()} nodules of "
                f"class {few.argmin()} in fold {fold.number}, and {MIN_EXAMPLES} are needed; give "
                "a larger share, or fewer --folds"
            )
    return made


def _part(real: RealNodules, rows: Rows, percent: int) -> Rows:
    """The given percentage of each class, whole groups in the order of their hashes: smaller parts
    are inside larger ones."""
    if percent == 100:
        return rows
    chosen: list[Rows] = []
    groups = real.groups[rows]
    order = sorted(set(groups.tolist()), key=lambda name: hashlib.sha256(name.encode()).digest())
    rank = {name: place for place, name in enumerate(order)}
    ranks = np.array([rank[name] for name in groups.tolist()])
    for label in (0, 1):
        mine = np.flatnonzero(real.label[rows] == label)
        wanted = math.ceil(len(mine) * percent / 100)
        last = np.sort(ranks[mine])[wanted - 1]
        chosen.append(rows[mine[ranks[mine] <= last]])
    return np.sort(np.concatenate(chosen))


def generator_rows(real: RealNodules, rows: Rows) -> tuple[Rows, Rows]:
    """The nodules a generator learns from, and those it validates on: both from its part."""
    train, valid = split_by_group(real.groups[rows].tolist(), max(1, len(rows) // VALID_PART))
    return rows[train], rows[valid]


# ---- files


def write_generator_data(path: Path, real: RealNodules, rows: Rows) -> None:
    """The file that a fold's generator learns from. What else might name classes is left out, so
    that all recipes learn the same two, those of `label`."""
    train, valid = generator_rows(real, rows)
    order = np.concatenate([train, valid])
    split = np.array(["train"] * len(train) + ["valid"] * len(valid))
    other = ("category", "malignancy")
    known = {name: array[order] for name, array in real.arrays.items() if name not in other}
    ours = {"volume": real.cubes[order], "group": real.groups[order], "split": split}
    write_npz(path, known | ours | {"label": real.label[order]})


def write_classifier_data(
    path: Path,
    real: RealNodules,
    rows: Rows,
    held_out: Rows,
    made: tuple[NDArray[np.uint8], NDArray[np.int64]] | None,
    *,
    augment: bool,
) -> None:
    """The file that a classifier learns from: these real nodules, and (or) generated ones; it is
    judged on those held out."""
    cubes, label = _as_bytes(real.cubes[rows]), real.label[rows]
    groups = [f"real {name}" for name in real.groups[rows].tolist()]
    if made is not None:
        cubes, label = np.concatenate([cubes, made[0]]), np.concatenate([label, made[1]])
        groups += [f"generated {number}" for number in range(len(made[1]))]
    num_train, num_held_out = len(label), len(held_out)
    groups += [f"real {name}" for name in real.groups[held_out].tolist()]
    arrays: dict[str, NDArray[Any]] = {
        "volume": np.concatenate([cubes, _as_bytes(real.cubes[held_out])]),
        "label": np.concatenate([label, real.label[held_out]]),
        "group": np.array(groups),
        "split": np.array(["train"] * num_train + ["valid"] * num_held_out),
        "augment": np.array([int(augment)] * num_train + [0] * num_held_out),
    }
    write_npz(path, arrays)


def _as_bytes(cubes: NDArray[Any]) -> NDArray[np.uint8]:
    """Cubes as bytes, so that real and generated ones have the same steps of intensity."""
    return cubes if cubes.dtype == np.uint8 else np.rint(cubes * 255.0).astype(np.uint8)
