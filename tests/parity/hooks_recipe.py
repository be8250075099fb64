"""A recipe file for tests: metrics of the loss, averaged weights, unfreezing, early stopping.

44 examples in batches of 10 are 5 steps an epoch, the last one of 4; grains of 2 allow 5 workers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samepath import Recipe

Batch = tuple[Tensor, Tensor]
UNFROZEN_AFTER = 0


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    scores = model(batch[0])
    right = (scores.argmax(1) == batch[1]).float().mean()
    return F.cross_entropy(scores, batch[1]), {"accuracy": right, "size": len(scores)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(12, 4)
        self.body.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(inputs))
        return found


def average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)


def after_step(run: Any) -> None:
    run.extra["ema"].update_parameters(run.model)


def after_epoch(run: Any) -> None:
    if run.epoch == UNFROZEN_AFTER:
        body = run.model.body
        body.requires_grad_(True)
        run.optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.003})
    run.metrics["ema_loss"] = run.evaluate(run.extra["ema"])["loss"]


def recipe() -> Recipe:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, 8, generator=made)
    labels = inputs[:, :4].argmax(1)
    return Recipe(
        model=Net,
        train=(inputs[:44], labels[:44]),
        valid=(inputs[44:], labels[44:]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        extra={"ema": average},
        after_step=after_step,
        after_epoch=after_epoch,
        batch_size=10,
        grain_size=2,
        epochs=3,
    )
