"""The Hessian of a small model as a whole matrix, in two ways that share no code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def hessian_by_double_backward(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """Gradient of each entry of the gradient: a row for every parameter."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(loss(), parameters, create_graph=True)
    flat = torch.cat([part.reshape(-1) for part in gradient])
    rows = [
        torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)
        for entry in flat
    ]
    return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


def hessian_forward_over_reverse(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """torch.func's Hessian, for models without randomness (its vmap takes none)."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return loss()

    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    sizes = [p.numel() for p in trained.values()]

    def at(weights: Tensor) -> Tensor:
        parts = zip(trained.items(), weights.split(sizes), strict=True)
        values = {f"model.{name}": part.view(p.shape) for (name, p), part in parts}
        found: Tensor = torch.func.functional_call(Loss(), values, ())
        return found

    flat = torch.cat([p.detach().reshape(-1) for p in trained.values()])
    found: Tensor = torch.func.hessian(at)(flat)
    return found
