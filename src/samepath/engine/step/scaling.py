"""float16 autocast: the loss is scaled so that small gradients are not lost, as
`torch.amp.GradScaler` does it.

In: grains' backward passes begin with the scale. Out: the batch's gradient without it, and an
update unless some number of it is infinite or NaN. Guaranteed: one scale for all workers, because
each sees the whole batch's gradient; with one grain per batch, the bits of a plain loop with a
GradScaler.
"""

from __future__ import annotations

from typing import Any

import torch

from samepath.errors import Diverged, UserError
from samepath.strategies import Choice

LEAST = 2.0**-24
"""A scale below this: no step has been taken for long, and none will be."""


class LossScaling:
    """The scale of a training's loss."""

    def __init__(self, device: torch.device) -> None:
        self.scaler = torch.amp.GradScaler(device.type)
        self.scaler.scale(torch.zeros((), device=device))  # which makes its tensors
        self.skipped = False
        """The last update was left out: its gradient was not finite."""

    @property
    def value(self) -> float:
        return float(self.scaler.get_scale())

    def refuse(self, step: int, choice: Choice) -> None:
        """Raise where this step cannot be taken."""
        if choice.lag:
            raise UserError(
                "float16 scales each batch's loss by what became of the batch before it, which a "
                "lag leaves open; use torch.bfloat16, or a strategy without a lag"
            )
        if self.value < LEAST:
            raise Diverged(step, "scale of the loss", self.value)

    def unscale(self, optimizer: torch.optim.Optimizer) -> float:
        """Take the scale, which is returned, out of the batch's gradient, which is in `.grad`."""
        self.skipped = False
        if has_gradient(optimizer):
            self.scaler.unscale_(optimizer)
        return self.value

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update, unless the gradient is not finite; then find the next scale."""
        before = self.value
        self.scaler.step(optimizer)
        self.scaler.update()
        self.skipped = self.value < before

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state)


def has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Whether there is anything to update from."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
