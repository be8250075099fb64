"""The update: from the batch's gradient to new weights, by clipping, optimizer and schedule."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samepath.data import seed_everything
from samepath.errors import UserError
from samepath.keys import key
from samepath.strategies import Choice


def clip_gradient(model: nn.Module, max_norm: float | None) -> float:
    """Clip the gradient if asked to; its norm before."""
    if max_norm is not None:
        return float(nn.utils.clip_grad_norm_(model.parameters(), max_norm))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return float(nn.utils.get_total_norm(gradients))


def update(
    optimizer: torch.optim.Optimizer,
    by_step: LRScheduler | None,
    choice: Choice,
    *,
    seed: int,
    step: int,
) -> float:
    """Update, and advance a schedule that goes by steps; the learning rate that was used. Random
    numbers (Langevin dynamics) are those of this step. Without any gradient (a batch that counts
    for nothing) the optimizer is left alone."""
    groups = optimizer.param_groups
    seed_everything(key("update", seed, step))
    rates = [group.get("lr", math.nan) for group in groups]
    if choice.learning_rate != 1.0:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * choice.learning_rate
    used = float(groups[0].get("lr", math.nan))
    if any(parameter.grad is not None for group in groups for parameter in group["params"]):
        optimizer.step()
    if choice.learning_rate != 1.0:  # the schedule goes on from its own
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
    if by_step is not None:
        for _ in range(choice.schedule_steps):
            by_step.step()
    return used


def advance_epoch(schedule: LRScheduler, valid_loss: float | None) -> None:
    """Advance a schedule that goes by epochs."""
    if not isinstance(schedule, ReduceLROnPlateau):
        schedule.step()
    elif valid_loss is None:
        raise UserError("ReduceLROnPlateau needs validation data; give the recipe `valid`")
    else:
        schedule.step(valid_loss)
