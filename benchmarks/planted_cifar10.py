"""4000 CIFAR-10 images with planted errors: 5% of the labels wrong, 2% digits instead of images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from planted_digits import planted
from samepath import Recipe
from samepath.recipes.cifar10 import cifar10_small

DATA = Path(__file__).parents[2] / "shared" / "data" / "cifar-10-batches-bin" / "data_batch_2.bin"
NUMBER, NUM_VALID = 4000, 1000


def digit_pictures() -> Tensor:
    """Digits, 32 x 32, in grey."""
    grey = torch.from_numpy(load_digits().images * (255.0 / 16.0)).to(torch.uint8)
    large = grey.repeat_interleave(4, 1).repeat_interleave(4, 2)
    return large[:, None].expand(-1, 3, -1, -1).contiguous()


def recipe() -> Recipe:
    made = cifar10_small(DATA)
    images, labels = made.train  # type: ignore[misc]
    images, labels, wrong = planted(images[:NUMBER], labels[:NUMBER], digit_pictures())
    valid = tuple(part[:NUM_VALID] for part in made.valid)  # type: ignore[union-attr]
    return replace(made, train=(images, labels), valid=valid, train_facts={"planted": wrong})
