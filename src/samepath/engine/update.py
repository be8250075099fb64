"""From the batch's gradient to new weights: clipping, optimizer, schedule. All workers alike."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samepath.engine.settings import Pace
from samepath.errors import UserError


def clip_gradient(model: nn.Module, max_norm: float | None) -> float:
    """Clip the gradient if asked to; its norm before."""
    if max_norm is not None:
        return float(nn.utils.clip_grad_norm_(model.parameters(), max_norm))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return float(nn.utils.get_total_norm(gradients))


def update(optimizer: torch.optim.Optimizer, by_step: LRScheduler | None, pace: Pace) -> float:
    """Update, and advance a schedule that goes by steps; the learning rate that was used."""
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    if pace.learning_rate != 1.0:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * pace.learning_rate
    used = float(groups[0]["lr"])
    optimizer.step()
    if pace.learning_rate != 1.0:  # the schedule goes on from its own
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
    if by_step is not None:
        for _ in range(pace.schedule_steps):
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
