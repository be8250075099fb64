"""Digits with planted faults, small enough that a curation takes seconds. A recipe file."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from samepath import Recipe

WRONG = (20, 21, 22, 23)
"""Have the label of another class."""
COPY, COPIED = 400, 30
NEAR, NEARLY = 401, 31
STRANGE = 402
"""Is no digit."""
SMALL = (403, 404, 405)
"""All of the class 10."""


def planted() -> tuple[Tensor, Tensor, Tensor]:
    """Images, the labels they are given, and their own."""
    data = load_digits()
    images = torch.tensor(data.images[:406], dtype=torch.float32)[:, None] / 16
    truth = torch.tensor(data.target[:406])
    labels = truth.clone()
    labels[list(WRONG)] = (truth[list(WRONG)] + 5) % 10
    draws = np.random.default_rng(0)
    images[COPY], labels[COPY] = images[COPIED], labels[COPIED]
    images[NEAR], labels[NEAR] = images[NEARLY], labels[NEARLY]
    images[NEAR] += torch.from_numpy(draws.normal(scale=0.002, size=(1, 8, 8))).float()
    images[STRANGE] = torch.from_numpy(draws.uniform(size=(1, 8, 8))).float().round()
    images[list(SMALL)] = 1 - images[list(SMALL)]
    labels[list(SMALL)] = 10
    return images, labels, truth


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 11))


def recipe() -> Recipe:
    images, labels, _ = planted()
    return Recipe(
        model=model,
        train=(images, labels),
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        batch_size=58,
        grain_size=15,
        epochs=6,
    )
