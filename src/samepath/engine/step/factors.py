"""Weight gradients of dense layers as factors: the rows of X and dY, of which dW = dYᵀX.

In: a model, and for each grain its forward and backward pass. Out: for each grain the rows of X and
dY that its dense layers met; of the whole batch's rows, in grain order, the weights' gradients.
Guaranteed: one product of one shape for the whole batch, so its bits depend neither on the worker
count nor on how the batch is cut into grains; whatever else touches a weight (a penalty on it, the
same weight in another layer) reaches its `.grad` as it always does.

Whether a call of a layer goes this way is decided by its shapes, the grain's examples and the
batch's: nothing else, so that every worker count decides alike. Layers that cannot (a subclass, a
hook on the weight, compiled or transformed code) are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath.engine.checks.refuse import OwnHook
from samepath.engine.comm.factor_sums import FactorKey, GrainRows, Rows

LEAST_GAIN = 2.0
"""Factors are used where they are smaller than the matrix by at least this."""


class Factors:
    """The dense layers of a model whose weight gradients may go as factors."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], use: str, most: int
    ) -> None:
        """`most` is the largest batch; a layer that would not gain with it is not looked at."""
        self._gain = {"auto": LEAST_GAIN, "always": 0.0, "never": float("inf")}[use]
        numbers = {id(p): number for number, p in enumerate(parameters.values())}
        compiled = [module for module in model.modules() if _is_compiled(module)]
        inside = {id(module) for outer in compiled for module in outer.modules()}
        self._layers = [
            (module, numbers[id(weight)])
            for module in model.modules()
            if type(module) is nn.Linear and id(module) not in inside
            for weight in [module._parameters.get("weight")]
            if weight is not None and weight.requires_grad and id(weight) in numbers
            if self._gains(weight, rows=most)
        ]
        self.weights = sorted({number for _, number in self._layers})
        """Numbers of the parameters whose gradient may go as factors."""
        self._weights = {number: module.weight for module, number in self._layers}
        self._examples = self._of = 0
        self._collects = False
        self._found: GrainRows = {}

    def _gains(self, weight: Tensor, rows: float) -> bool:
        outputs, inputs = weight.shape
        return self._gain * rows * (inputs + outputs) <= inputs * outputs

    @contextmanager
    def of_grain(self, examples: int, of: int) -> Iterator[None]:
        """Look at the layers during the forward and backward pass of a grain of so many examples
        of the batch's."""
        self._examples, self._of = examples, of
        self._found = {}
        handles = []
        for module, number in self._layers:
            if self._weights[number].requires_grad:
                exchange = _Exchange(self, number)
                handles.append(module.register_forward_pre_hook(exchange.before))
                handles.append(module.register_forward_hook(exchange.after, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Around the grain's own backward pass: those that a loss makes inside of itself get the
        gradients they ask for."""
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    def takes(self, number: int) -> bool:
        """Whether a backward pass hands over a weight's rows now: not one inside of the loss, nor
        where a hook of the user's wants the gradient (it may come after the forward pass)."""
        hooks = (self._weights[number]._backward_hooks or {}).values()
        own = all(isinstance(hook, OwnHook) for hook in hooks)
        return self._collects and own and not torch.is_grad_enabled()

    def wants(self, number: int, inputs: Any) -> bool:
        """Whether a call with these inputs goes as factors."""
        if (
            not isinstance(inputs, Tensor)
            or inputs.dim() < 2
            or not torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch._C._functorch.maybe_current_level() is not None
            or torch.autograd.forward_ad._current_level >= 0
        ):
            return False
        weight = self._weights[number]
        if inputs.shape[-1] != weight.shape[1] or not inputs.numel():
            return False
        rows = inputs.numel() // inputs.shape[-1]
        return self._gains(weight, rows * self._of / self._examples)

    def take(self, number: int, inputs: Tensor, outputs: Tensor) -> None:
        """Take the rows of one call, in its backward pass."""
        rows = Rows(inputs.reshape(-1, inputs.shape[-1]), outputs.reshape(-1, outputs.shape[-1]))
        call = sum(key.weight == number for key in self._found)
        # in memory of their own: what a loss does to its tensors afterwards does not matter
        kept = Rows(*(part.clone(memory_format=torch.contiguous_format) for part in rows))
        self._found[FactorKey(number, call, str(inputs.dtype).removeprefix("torch."))] = kept

    def grain(self, correction: float) -> GrainRows:
        """What the grain's layers met, in order of the weights. `correction` is what its gradients
        are multiplied by."""
        found, self._found = dict(sorted(self._found.items())), {}
        if correction != 1.0:
            for rows in found.values():
                rows.outputs.mul_(correction)
        return found


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or hasattr(module, "_orig_mod")


class _Exchange:
    """Gives a layer, for the time of a call, a weight that turns `F.linear` into `_Dense`."""

    def __init__(self, factors: Factors, number: int) -> None:
        self._factors = factors
        self._number = number
        self._kept: nn.Parameter | None = None

    def before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        weight = module._parameters["weight"]
        if (
            weight is self._factors._weights[self._number]
            and len(inputs) == 1
            and self._factors.wants(self._number, inputs[0])
        ):
            self._kept = weight
            stand_in = weight.detach().as_subclass(_StandIn)
            stand_in.of = (self._factors, self._number, weight)
            module._parameters["weight"] = stand_in  # type: ignore[assignment]

    def after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._kept is not None:
            module._parameters["weight"] = self._kept
            self._kept = None


class _StandIn(Tensor):
    """A weight as a dense layer sees it during one call."""

    of: tuple[Factors, int, nn.Parameter]

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        real: list[Any] = [
            argument.of[2] if isinstance(argument, cls) else argument for argument in args
        ]
        if func is F.linear and isinstance(args[1], cls) and not kwargs:
            inputs, _, bias = (*real, None)[:3]
            factors, number, _ = args[1].of
            weight = real[1]
            device = inputs.device.type
            if torch.is_autocast_enabled(device):  # as it would cast them for F.linear
                dtype = torch.get_autocast_dtype(device)
                inputs, weight = inputs.to(dtype), weight.to(dtype)
                bias = None if bias is None else bias.to(dtype)
            return _Dense.apply(inputs, weight, bias, factors, number)  # type: ignore[no-untyped-call]
        return func(*real, **(kwargs or {}))


class _Dense(torch.autograd.Function):
    """`F.linear`, whose backward pass hands over rows in place of the weight's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factors: Factors,
        number: int,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.factors, ctx.number = factors, number
        found = F.linear(inputs, weight, bias)
        # a view made in here could not be changed in place, as people do with what a layer returns
        return torch.ops.aten._unsafe_view(found, found.shape) if found._is_view() else found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        needs_inputs, _, needs_bias, *_ = ctx.needs_input_grad
        outputs = gradients[0].reshape(-1, weight.shape[0])
        of_inputs = of_weight = of_bias = None
        if needs_inputs:
            of_inputs = outputs.mm(weight).view(inputs.shape)
        if needs_bias:
            of_bias = outputs.sum(0)
        if ctx.factors.takes(ctx.number):
            ctx.factors.take(ctx.number, inputs.detach(), outputs)
        else:
            of_weight = outputs.t().mm(inputs.reshape(-1, inputs.shape[-1]))
        return of_inputs, of_weight, of_bias, None, None
