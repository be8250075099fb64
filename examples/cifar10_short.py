"""CIFAR-10 for an afternoon on a laptop: the recipe of docs/curation.md.

A ResNet-18 of an eighth of the width, five epochs, a rate that falls at the end. Point it at the
data with --data: a folder, or the last batch of those to use.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.optim.lr_scheduler import MultiStepLR

from samepath import Recipe
from samepath.recipes.cifar10 import cifar10_small


def recipe(data: Path | None = None) -> Recipe:
    return replace(
        cifar10_small(data),
        schedule=lambda optimizer: MultiStepLR(optimizer, [3, 4], gamma=0.2),
        epochs=5,
    )
