"""A small 3-D classifier of nodules: what new nodules are tried on (`samepath worth`).

In: volumes with two classes (`--data`), or the LIDC shapes shipped with samepath, benign against
malignant. A batch is (volumes, labels, flags): an example whose flag is 1 is augmented while it is
trained on (the fact `augment` of the data; 1 where it has none). Out: `nodules_classifier`, a
residual network whose answers are two numbers per nodule, one for each class.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data import Draws
from samepath.data.formats.lidc import load_lidc_shapes, split_by_patient
from samepath.data.formats.listing import split_by_group
from samepath.data.formats.volumes import load_volumes
from samepath.errors import UserError
from samepath.recipe import Recipe
from samepath.recipes.nodules.recipe import as_images, categories

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
WIDTHS = (8, 16, 32, 64)
SHIFT = 0.1
"""The largest shift along an axis, as a part of the cube's side."""
TURN = 0.26
"""The largest turn about an axis beyond quarter turns, in radians (15 degrees)."""
CONTRAST, BRIGHTNESS = 0.1, 0.05
"""How much intensities are stretched and shifted, at most."""


def nodules_classifier(data: Path | None = None) -> Recipe:
    """The recipe: 20 epochs of AdamW, batches of 16."""
    cubes, label, facts, train, valid = _lidc() if data is None else _own(data)
    flags = np.asarray(facts.get("augment", np.ones(len(label)))).astype(np.int64)
    train_part, valid_part = (
        tuple(torch.from_numpy(array[rows]) for array in (cubes, label, flags))
        for rows in (train, valid)
    )
    return Recipe(
        model=SmallResNet,
        train=train_part,
        valid=valid_part if len(valid) else None,
        train_facts={name: values[train] for name, values in facts.items()},
        valid_facts={name: values[valid] for name, values in facts.items()},
        loss=classification_loss,
        evaluate=loss_and_accuracy,
        predict=class_scores,
        augment=augment_flagged,
        optimizer=_adamw,
        batch_size=16,
        max_workers=8,
        epochs=20,
    )


class SmallResNet(nn.Module):
    """A stem that halves the cube, then residual blocks that halve it again, and an average.

    Group norm, since a batch's statistics would differ between grains and are poor for few nodules.
    """

    def __init__(self) -> None:
        super().__init__()
        blocks = [_Block(a, b) for a, b in itertools.pairwise(WIDTHS)]
        self.stem = nn.Conv3d(1, WIDTHS[0], 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, WIDTHS[0])
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(WIDTHS[-1], 2)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 2) scores of (N, 1, side, side, side) images; a class with the larger one is said."""
        features = self.blocks(F.relu(self.norm(self.stem(2.0 * images - 1.0))))
        scores: Tensor = self.head(features.mean((2, 3, 4)))
        return scores


class _Block(nn.Module):
    """Two convolutions, the first with stride 2, beside a projection."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm_1 = nn.GroupNorm(4, outputs)
        self.second = nn.Conv3d(outputs, outputs, 3, padding=1, bias=False)
        self.norm_2 = nn.GroupNorm(4, outputs)
        self.beside = nn.Conv3d(inputs, outputs, 1, stride=2, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        through = F.relu(self.norm_1(self.first(values)))
        return F.relu(self.norm_2(self.second(through)) + self.beside(values))


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(model(as_images(batch[0])), batch[1])


def loss_and_accuracy(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Cross-entropy, and the part of the nodules whose class has the larger score."""
    scores = model(as_images(batch[0]))
    right = scores.argmax(1) == batch[1]
    return {"loss": F.cross_entropy(scores, batch[1]), "accuracy": right.float().mean()}


def class_scores(model: nn.Module, batch: Batch) -> Tensor:
    """(N, 2) scores."""
    scores: Tensor = model(as_images(batch[0]))
    return scores


def augment_flagged(batch: Batch, draws: Draws) -> Batch:
    """Flip, turn, shift and change the intensities of the examples whose flag is 1."""
    volumes, labels, flags = batch
    turns = _turns(draws)
    shifts = draws.uniform(3, -2.0 * SHIFT, 2.0 * SHIFT)  # the cube is [-1, 1]^3
    contrast = draws.uniform(1, 1.0 - CONTRAST, 1.0 + CONTRAST)
    brightness = draws.uniform(1, -BRIGHTNESS, BRIGHTNESS)
    images = as_images(volumes)
    chosen = flags.bool()
    if chosen.any():
        affine = torch.from_numpy(np.concatenate([turns, shifts[:, :, None]], axis=2))[chosen]
        grid = F.affine_grid(affine, list(images[chosen].shape), align_corners=False)
        moved = F.grid_sample(images[chosen], grid, padding_mode="border", align_corners=False)
        scale, offset = (
            torch.from_numpy(x)[chosen].view(-1, 1, 1, 1, 1) for x in (contrast, brightness)
        )
        images = images.clone()
        images[chosen] = ((moved - 0.5) * scale + 0.5 + offset).clamp(0.0, 1.0)
    return images.squeeze(1), labels, flags


def _turns(draws: Draws) -> NDArray[np.float32]:
    """(N, 3, 3): one of the cube's 48 symmetries, then a small turn about each axis."""
    number = len(draws)
    order = np.argsort(draws.uniform(3), axis=1)
    signs = np.where(draws.coin(0.5, 3), np.float32(1.0), np.float32(-1.0))
    symmetry = np.zeros((number, 3, 3), np.float32)
    symmetry[np.arange(number)[:, None], np.arange(3), order] = signs
    angles = draws.uniform(3, -TURN, TURN)
    for axis in range(3):
        a, b = (each for each in range(3) if each != axis)
        turn = np.tile(np.eye(3, dtype=np.float32), (number, 1, 1))
        cosine, sine = np.cos(angles[:, axis]), np.sin(angles[:, axis])
        turn[:, a, a], turn[:, b, b] = cosine, cosine
        turn[:, a, b], turn[:, b, a] = -sine, sine
        symmetry = turn @ symmetry
    return symmetry


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.002, weight_decay=0.01, fused=True)


# ---- data

_Facts = Mapping[str, NDArray[Any]]
_Split = tuple[NDArray[Any], NDArray[np.int64], _Facts, NDArray[np.int64], NDArray[np.int64]]


def _lidc() -> _Split:
    """Shapes that the readers found benign or malignant on average."""
    shapes = load_lidc_shapes()
    kept = np.flatnonzero(shapes.malignancy != 3.0)
    label = (shapes.malignancy > 3.0).astype(np.int64)
    train, valid = split_by_patient(shapes.patient[kept])
    facts: _Facts = {"label": label, "patient": shapes.patient}
    return shapes.volumes, label, facts, kept[train], kept[valid]


def _own(path: Path) -> _Split:
    """Volumes from disk: split as the file says, or a fifth for validation."""
    volumes = load_volumes(path)
    label = two_classes(volumes.facts, path)
    facts = volumes.facts | {"label": label, "group": np.array(volumes.group)}
    if volumes.split is not None:
        said = np.array(volumes.split)
        train, valid = np.flatnonzero(said == "train"), np.flatnonzero(said == "valid")
    else:
        train, valid = split_by_group(volumes.group, len(volumes) // 5)
    return np.asarray(volumes.cubes), label, facts, train, valid


def two_classes(facts: _Facts, path: Path) -> NDArray[np.int64]:
    """0 or 1 for every nodule: its `label`, or which of two categories it has."""
    found = facts.get("label")
    if found is not None and set(np.unique(found).tolist()) <= {0, 1}:
        return np.asarray(found).astype(np.int64)
    names = categories(facts)
    if names is None:
        raise UserError(f"{path} does not say which class a nodule has; add an array 'label'")
    known, number = np.unique(names, return_inverse=True)
    if len(known) != 2:
        raise UserError(
            f"{path} has {len(known)} classes ({', '.join(known[:5])}); give two, as a label of 0 "
            "and 1"
        )
    return number.astype(np.int64)
