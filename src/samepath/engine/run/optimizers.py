"""The recipe's optimizer, at another rate or decay, or replaced by a strategy's own.

In: the optimizer the recipe made. Out: one over the same groups of parameters. LARS and LAMB are
pytorch-optimizer's; momentum, betas, weight decay and the direction (maximize) are the recipe's
where it has them.
"""

from __future__ import annotations

from typing import Any

import torch

from samepath.errors import UserError
from samepath.strategies import OtherOptimizer


def with_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give the first group this rate, and the others theirs in proportion."""
    first, *others = optimizer.param_groups
    before = float(first["lr"])
    if others and not before:
        raise UserError(
            "the first group of the recipe's optimizer has a rate of 0, so the others have none in "
            "proportion; give it one, or leave the learning rate to the recipe"
        )
    first["lr"] = learning_rate
    for group in others:
        group["lr"] = learning_rate * (float(group["lr"]) / before)


def with_decay(optimizer: torch.optim.Optimizer, weight_decay: float) -> None:
    """Give this weight decay to every group that has one; to all, where none has."""
    groups = optimizer.param_groups
    if not all("weight_decay" in group for group in groups):
        raise UserError(
            f"{type(optimizer).__name__} has no weight decay to be set; leave --weight-decay out"
        )
    for group in [group for group in groups if group["weight_decay"]] or groups:
        group["weight_decay"] = weight_decay


def replaced(optimizer: torch.optim.Optimizer, other: OtherOptimizer) -> torch.optim.Optimizer:
    """LARS or LAMB over the same parameters."""
    from pytorch_optimizer import LARS, Lamb

    if other.learning_rate is not None:
        with_rate(optimizer, other.learning_rate)
    kept = {"lars": ("momentum", "dampening", "nesterov"), "lamb": ("betas",)}[other.name]
    directions = {bool(group.get("maximize", False)) for group in optimizer.param_groups}
    if len(directions) > 1:
        raise UserError(
            f"{other.name.upper()} minimises or maximises all of its groups alike, and the "
            "recipe's optimizer has maximize on in some only; use another strategy"
        )
    groups: list[dict[str, Any]] = [
        {
            "params": group["params"],
            "lr": float(group["lr"]),
            "weight_decay": float(group.get("weight_decay", 0.0)),
            **{name: group[name] for name in kept if name in group},
        }
        for group in optimizer.param_groups
    ]
    made: torch.optim.Optimizer = (LARS if other.name == "lars" else Lamb)(
        groups, maximize=True in directions
    )
    return made
