"""The update: from the batch's gradient to new weights, by clipping, optimizer and schedule."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samepath.engine.step.scaling import LossScaling, has_gradient
from samepath.errors import UserError
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
    scaling: LossScaling | None = None,
) -> float:
    """Update, and advance a schedule that goes by steps; the learning rate that was used. Without
    any gradient (a batch that counts for nothing) the optimizer is left alone. The schedule does
    not advance where `scaling` leaves the update out."""
    groups = optimizer.param_groups
    rates = [group.get("lr", math.nan) for group in groups]
    if choice.learning_rate != 1.0:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * choice.learning_rate
    used = float(groups[0].get("lr", math.nan))
    if has_gradient(optimizer):
        if scaling is None:
            optimizer.step()
        else:
            scaling.step(optimizer)
    if choice.learning_rate != 1.0:  # the schedule goes on from its own
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
    if by_step is not None and not (scaling is not None and scaling.skipped):
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
