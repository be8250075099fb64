"""A recipe file for tests of compiled grains: batch norm, dropout, dense layers.

46 examples in batches of 18 and grains of 4: every batch ends with a short grain, every epoch with
a short batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import Recipe

Batch = tuple[Tensor, Tensor]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 60), nn.BatchNorm1d(60), nn.Tanh(), nn.Dropout(0.3), nn.Linear(60, 4)
    )


def recipe() -> Recipe:
    inputs = torch.randn(54, 8, generator=torch.Generator().manual_seed(1))
    labels = inputs[:, :4].argmax(1)
    return Recipe(
        model=model,
        train=(inputs[:46], labels[:46]),
        valid=(inputs[46:], labels[46:]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        batch_size=18,
        grain_size=4,
        epochs=2,
    )
