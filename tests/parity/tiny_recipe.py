"""A recipe file for tests: batch norm, dropout, augmentation, a schedule, a short last batch.

44 examples in batches of 10 are 5 steps an epoch, the last one of 4; grains of 2 allow 5 workers.
Weight gradients of both dense layers go as factors, those of the other parameters over the tree.
The environment variable SLOW_SECONDS makes a grain take longer without changing it.
"""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import Draws, Recipe

Batch = tuple[Tensor, Tensor]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    time.sleep(float(os.environ.get("SLOW_SECONDS", "0")))
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    scores = model(batch[0])
    right = (scores.argmax(1) == batch[1]).float().mean()
    return {"loss": F.cross_entropy(scores, batch[1]), "accuracy": right}


def noise(batch: Batch, draws: Draws) -> Batch:
    return batch[0] + 0.1 * torch.from_numpy(draws.normal(8)), batch[1]


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4)
    )


def recipe() -> Recipe:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, 8, generator=made)
    labels = inputs[:, :4].argmax(1)
    return Recipe(
        model=model,
        train=(inputs[:44], labels[:44]),
        valid=(inputs[44:], labels[44:]),
        loss=loss,
        evaluate=evaluate,
        augment=noise,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9),
        batch_size=10,
        grain_size=2,
        epochs=2,
        factors="always",
    )
