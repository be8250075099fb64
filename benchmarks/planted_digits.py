"""Digits with planted errors: 5% of the labels wrong, 2% of the images of something else.

PLANTED_SEED chooses which. `train_facts["planted"]` says so: training does not see it.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from samepath import Recipe
from samepath.recipes.digits import digits

FLIPPED, REPLACED = 0.05, 0.02


def planted(images: Tensor, labels: Tensor, others: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
    """Some labels moved to another class, some images replaced by the first of `others`."""
    draw = np.random.default_rng(int(os.environ.get("PLANTED_SEED", "0")))
    number = len(labels)
    order = draw.permutation(number)
    num_flipped, num_replaced = int(FLIPPED * number), int(REPLACED * number)
    flipped = order[:num_flipped]
    replaced = order[num_flipped : num_flipped + num_replaced]
    images, labels = images.clone(), labels.clone()
    labels[flipped] = (labels[flipped] + torch.from_numpy(draw.integers(1, 10, num_flipped))) % 10
    images[replaced] = others[draw.choice(len(others), num_replaced, replace=False)]
    wrong = np.zeros(number, dtype=np.int64)
    wrong[order[: num_flipped + num_replaced]] = 1
    return images, labels, wrong


def photographs() -> Tensor:
    """Pieces of two photographs, grey, 8 x 8 (scikit-learn's samples)."""
    pieces = []
    for name in ("china.jpg", "flower.jpg"):
        grey = torch.from_numpy(load_sample_image(name).copy()).float().mean(2) / 255.0
        small = torch.nn.functional.avg_pool2d(grey[None, None], 4)[0, 0]
        tiles = small.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 1, 8, 8)
        pieces.append(tiles)
    return torch.cat(pieces)


def recipe() -> Recipe:
    made = digits()
    images, labels = made.train  # type: ignore[misc]
    images, labels, wrong = planted(images, labels, photographs())
    return replace(made, train=(images, labels), train_facts={"planted": wrong})
