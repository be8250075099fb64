"""A linear model on twenty examples: a recipe for tests of what is around a training."""

from __future__ import annotations

import torch
from torch import nn

from samepath import Recipe


def recipe() -> Recipe:
    inputs = torch.arange(40.0).reshape(20, 2) / 40
    return Recipe(
        model=lambda: nn.Linear(2, 1),
        train=(inputs, inputs.sum(1, keepdim=True)),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8,
        epochs=2,
    )
