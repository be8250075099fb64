"""Examples moved in the direction that raises their loss (Goodfellow et al. 2015, equation 3).

In: a grain and the model's loss. Out: the grain with the first part of its examples moved.
Guaranteed: the model is as it was (it is asked in evaluation mode), and the result depends on the
grain alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from samepath.errors import UserError
from samepath.strategies import Adversarial


def moved(
    attack: Adversarial, data: Any, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor]
) -> Any:
    """The grain, its first examples changed by epsilon times the sign of the loss's gradient."""
    inputs = data if isinstance(data, Tensor) else data[0] if isinstance(data, (tuple, list)) else 0
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = inputs.dtype if isinstance(inputs, Tensor) else type(data).__name__
        raise UserError(
            f"adversarial training moves inputs by small amounts, but a batch of this recipe is "
            f"{kind}; make it a tensor of floats, or a tuple that begins with one, or use the "
            "strategy 'curvature', which is the same without adversarial examples"
        )

    def put(values: Tensor) -> Any:
        if isinstance(data, Tensor):
            return values
        parts = [values, *data[1:]]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        asked = inputs.detach().clone().requires_grad_()
        (uphill,) = torch.autograd.grad(loss(model, put(asked)), asked)
    finally:
        for module, training in modes:
            module.training = training
    number = math.ceil(attack.share * len(inputs))
    changed = inputs.detach().clone()
    changed[:number] += attack.epsilon * uphill[:number].sign()
    return put(changed)
