"""An exponential moving average of the weights; `before/ema.py` is the same in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samepath import Recipe

made = torch.Generator().manual_seed(1)
inputs = torch.randn(300, 8, generator=made)
targets = inputs.square().sum(1, keepdim=True) + torch.randn(300, 1, generator=made)


def loss(model, batch):
    inputs, targets = batch
    return F.mse_loss(model(inputs), targets)


def after_step(run):
    run.extra["ema"].update_parameters(run.model)


def after_epoch(run):
    run.metrics["ema_loss"] = run.evaluate(run.extra["ema"])["loss"]


def recipe():
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)),
        train=(inputs[:250], targets[:250]),
        valid=(inputs[250:], targets[250:]),
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02),
        extra={"ema": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))},
        after_step=after_step,
        after_epoch=after_epoch,
        batch_size=50,
        max_workers=5,
        epochs=4,
    )
