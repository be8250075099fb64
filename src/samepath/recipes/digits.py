"""Handwritten digits: small, quick, and with everything on purpose that usually breaks bits.

scikit-learn's 1797 images of 8 x 8 (E. Alpaydin and C. Kaynak, UCI 1998), the last 360 held out; a
CNN with batch norm, dropout and augmentation; a last batch that is short.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from samepath.data import Draws
from samepath.recipe import Recipe
from samepath.recipes.classification import Batch, evaluate, loss


class DigitsNet(nn.Sequential):
    """Three convolutions and a dense layer, 58,000 parameters."""

    def __init__(self, width: int = 32) -> None:
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(8 * width, 10),
        )


def shift(batch: Batch, draws: Draws) -> Batch:
    """Move each image by up to one pixel, and change its brightness by up to 20%."""
    images, labels = batch
    offsets = torch.from_numpy(draws.integers(0, 3, 2)).to(images.device)
    gains = torch.from_numpy(draws.uniform(1, 0.8, 1.2)).to(images.device)
    padded = F.pad(images[:, 0], (1, 1, 1, 1))
    window = torch.arange(8, device=images.device)
    rows = (offsets[:, :1] + window)[:, :, None]
    columns = (offsets[:, 1:] + window)[:, None, :]
    example = torch.arange(len(images), device=images.device)[:, None, None]
    moved = padded[example, rows, columns] * gains[:, :, None]
    return moved[:, None], labels


def _read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Read scikit-learn's file without the second that importing scikit-learn takes."""
    found = find_spec("sklearn")
    assert found is not None
    assert found.submodule_search_locations is not None
    (folder,) = found.submodule_search_locations
    file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16.0, rows[:, 64].to(torch.int64)


def digits() -> Recipe:
    """The recipe: batches of 256 in grains of 32."""
    images, labels = _read_digits()
    return Recipe(
        model=DigitsNet,
        train=(images[:-360], labels[:-360]),
        valid=(images[-360:], labels[-360:]),
        loss=loss,
        evaluate=evaluate,
        augment=shift,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5),
        batch_size=256,
        grain_size=32,
        epochs=20,
    )
