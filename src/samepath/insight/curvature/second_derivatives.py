"""Finding the layer that cannot be differentiated twice.

In: a model and a grain. Out: nothing, or one line that names the module at fault. A backward() that
has no derivative of its own either raises, or, worse, is silently taken for a constant: then
products are wrong. So second derivatives are asked of everything in the graph (autograd.grad passes
over @once_differentiable), and must be symmetric, as those of any function are.

Every module is tried alone, on what it meets in the model; of those that fail, one whose parts do
not fail is to blame; if none fails, the loss itself is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samepath.engine.run.measure import trained
from samepath.errors import UserError
from samepath.insight.curvature.hessian import Loss, grain_loss
from samepath.keys import key

Call = tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module's path, the module, and what it was called with."""


def refuse_undifferentiable(model: nn.Module, loss: Loss, data: Any, name: str) -> None:
    """An error that names the layer, unless the Hessian of this grain's loss can be had."""
    fault = _fault([grain_loss(model, loss, data)], trained(model))
    if fault is None:
        return
    where, cause = "the recipe's loss(), outside the model's layers,", fault
    failed: dict[str, str] = {}
    for path, module, arguments, named in _calls(model, loss, data):
        found = _fault_alone(module, arguments, named)
        if found is not None:
            failed.setdefault(path, found)
    for path in failed:
        inside = f"{path}." if path else ""
        if not any(other != path and other.startswith(inside) for other in failed):
            kind = type(model.get_submodule(path)).__name__
            where = f"the layer {path} ({kind})" if path else f"the model itself ({kind})"
            cause = failed[path]
            break
    raise UserError(
        f"{name}: the Hessian needs second derivatives, and {where} has none ({cause}); write its "
        "backward() with operations that can be differentiated"
    )


def _fault(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> str | None:
    """What is wrong with the second derivatives of outputs.

    What flows back into them depends on themselves and on a weight behind them: a backward() that
    only ever meets constants need not be differentiated, and shows nothing."""
    behind = torch.ones((), device=outputs[0].device, requires_grad=True)
    value = torch.stack([(behind * output).square().sum() for output in outputs]).sum()
    leaves = [*inputs, behind]
    try:
        first = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
        one, other = (_times_second(first, leaves, number) for number in range(2))
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    there, back = _dot(one[0], other[1]), _dot(other[0], one[1])
    size = math.sqrt(_dot(one[0], one[0]) * _dot(other[1], other[1]))
    rounding = 1e-4 * size / math.sqrt(sum(leaf.numel() for leaf in leaves))
    if abs(there - back) > max(0.02 * max(abs(there), abs(back)), rounding):
        return "second derivatives are not symmetric: a backward() has none of its own"
    return None


def _times_second(
    first: Sequence[Tensor | None], leaves: Sequence[Tensor], number: int
) -> tuple[list[Tensor], list[Tensor]]:
    """A random vector, and the second derivatives times it."""
    generator = torch.Generator().manual_seed(key("fault", number))
    vector = [torch.randn(leaf.shape, generator=generator).to(leaf) for leaf in leaves]
    curved = [(g, v) for g, v in zip(first, vector, strict=True) if g is not None]
    curved = [(g, v) for g, v in curved if g.requires_grad]
    if curved:
        torch.autograd.backward([g for g, _ in curved], [v for _, v in curved], retain_graph=True)
    found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return vector, found


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    pairs = zip(left, right, strict=True)
    return sum(float((a.double() * b.double()).sum()) for a, b in pairs)


def _calls(model: nn.Module, loss: Loss, data: Any) -> list[Call]:
    """Every module that is called, and with what."""
    found: list[Call] = []

    def hook(path: str) -> Any:
        def note(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            found.append((path, module, arguments, named))

        return note

    handles = [
        module.register_forward_pre_hook(hook(path), with_kwargs=True)
        for path, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            grain_loss(model, loss, data)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _fault_alone(
    module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> str | None:
    """What is wrong with the second derivatives of one module."""
    inputs: list[Tensor] = []

    def fresh(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            inputs.append(value.detach().clone().requires_grad_())
            return inputs[-1].clone()  # a layer may work in place
        if type(value) in (tuple, list):
            return type(value)(fresh(part) for part in value)
        return value

    arguments = fresh(arguments)
    named = {name: fresh(value) for name, value in named.items()}
    outputs = list(_tensors(module(*arguments, **named)))
    return _fault(outputs, [*inputs, *trained(module)]) if outputs else None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors of an output that can be differentiated."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.requires_grad:
            yield value
    elif isinstance(value, dict):
        yield from (tensor for part in value.values() for tensor in _tensors(part))
    elif isinstance(value, (tuple, list)):
        yield from (tensor for part in value for tensor in _tensors(part))
