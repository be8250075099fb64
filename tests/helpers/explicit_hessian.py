"""The Hessian of a small model as a whole matrix, by torch's own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def explicit_hessian(model: nn.Module, loss: Callable[[Any], Tensor]) -> Tensor:
    """The second derivatives of a loss, which calls the model it is given: a row for every
    parameter."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}

    def at(weights: Tensor) -> Tensor:
        parts = weights.split([p.numel() for p in parameters.values()])
        named = zip(parameters.items(), parts, strict=True)
        values = {name: part.view(p.shape) for (name, p), part in named}
        return loss(lambda *given: torch.func.functional_call(model, values, given))

    flat = torch.cat([p.detach().reshape(-1) for p in parameters.values()])
    found: Tensor = torch.autograd.functional.hessian(at, flat)
    return found
