"""Broken on purpose: a module that draws its noise from the process id.

Every worker is a process of its own, so every worker trains a slightly different model, and the
result depends on how many there are. `samepath verify` finds the module:

    samepath verify examples/broken_recipe.py -n 1,2 --steps 3

The repair is the line in the comment below: torch's own generator, which samepath keys by seed,
step and grain.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import Recipe


class ProcessNoise(nn.Module):
    """Adds a little noise, as a regulariser. What is wrong with it: where the noise comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(os.getpid())

    def forward(self, images: Tensor) -> Tensor:
        noise = torch.randn(images.shape, generator=self.generator)
        # noise = torch.randn_like(images)
        return images + 0.1 * noise


class SmallNet(nn.Module):
    """Two convolutions with the noise between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.noise = ProcessNoise()
        self.second = nn.Conv2d(4, 8, 3)
        self.head = nn.Linear(8 * 16, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.noise(self.first(images).relu())
        scores: Tensor = self.head(self.second(hidden).relu().flatten(1))
        return scores


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def recipe() -> Recipe:
    """Synthetic images whose class is the quarter that is bright."""
    made = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (96,), generator=made)
    images = 0.5 * torch.randn(96, 1, 8, 8, generator=made)
    for quarter in range(4):
        row, column = 4 * (quarter // 2), 4 * (quarter % 2)
        images[labels == quarter, :, row : row + 4, column : column + 4] += 1.0
    return Recipe(
        model=SmallNet,
        train=(images, labels),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch_size=24,
        grain_size=4,
        epochs=5,
    )
