"""The loss on a sample of examples as a function of the weights: its value, and its Hessian.

In: a model, its loss, a sample cut into grains. Out: the loss at any weights; the product of the
Hessian at the model's weights with any vector, and the Hessian's trace. Exact products: the
gradient of a gradient, which needs nothing of a model but what double backward needs. (torch.func
differentiates forward over reverse under vmap: an autograd Function then needs a `jvp`, which
DeepDensity's have not.) A layer that cannot be differentiated twice is found and named.

The function is one, and deterministic: the model in evaluation mode (batch norm uses its running
statistics, dropout is off), examples without augmentation, no autocast, random state keyed by
(seed, grain). Guaranteed: the same bits at every worker count, by the plan's tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from samepath.data import GrainRequest, Source, seed_everything
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.tensors import to_device
from samepath.engine.comm.tree_sum import TreeSum
from samepath.engine.run.measure import trained
from samepath.engine.step.loss_metrics import loss_alone
from samepath.engine.step.record import exact_sum
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Batch, divide
from samepath.recipe import Loss

_STOP, _LOSS, _PRODUCT = 0, 1, 2
TRACE_VECTORS = 20


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One vector, in memory of its own."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the given shapes and types, each in memory of its own: kernels choose by
    alignment, and a piece of a vector may lie anywhere."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [
        part.reshape(tensor.shape).to(tensor.dtype, copy=True)
        for part, tensor in zip(parts, like, strict=True)
    ]


def grain_loss(model: nn.Module, loss: Loss, data: Any) -> Tensor:
    """A grain's loss by attention's plain formula: its fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        found: Tensor = loss_alone(loss(model, data))
        return found


class SampleLoss:
    """The mean loss of a sample, on all workers: the first one calls `loss_at`, `product` and at
    last `dismiss`, the others `serve`."""

    def __init__(
        self,
        collective: Collective,
        model: nn.Module,
        loss: Loss,
        source: Source,
        sample: Batch,
        *,
        weight: Callable[[Any], float] | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model.eval()
        self.num_examples = len(sample.examples)
        self._collective = collective
        self._loss = loss
        self._seed = seed
        self._parameters = trained(model)
        self._division = divide(sample, collective.num_workers, exact=True)
        mine = self._division.grains(collective.worker)
        loaded = source.load(GrainRequest(-1, examples) for examples in mine.values())
        grains = [to_device(data, collective.device) for data in loaded]
        counts = [
            len(examples) if weight is None else float(weight(data))
            for examples, data in zip(mine.values(), grains, strict=True)
        ]
        total = self._sum(counts)
        if not (math.isfinite(total) and total > 0 and min(counts, default=0.0) >= 0):
            raise UserError(
                f"the weights of the sample's grains sum to {total}; weights must be finite, at "
                "least 0 and not all 0: take more --examples"
            )
        self._grains = list(zip(mine, grains, (count / total for count in counts), strict=True))
        """Number, examples and share of each of this worker's grains."""
        self._tree = TreeSum(collective, self._parameters, exact=True)
        self.weights = flatten(self._parameters)
        """Where the model is: the point at which the Hessian is taken."""

    def loss_at(self, weights: Tensor) -> float:
        """The mean loss with other weights (infinite or NaN where it is that); the model keeps
        its own."""
        self._tell(_LOSS, weights)
        return self._loss_at(weights)

    def product(self, vector: Tensor) -> Tensor:
        """The Hessian times a vector."""
        self._tell(_PRODUCT, vector)
        return self._product(vector)

    def dismiss(self) -> None:
        """End the other workers' `serve`."""
        self._tell(_STOP, self.weights)

    def serve(self) -> None:
        """Compute this worker's grains of what the first worker asks for, until it dismisses."""
        order = torch.zeros(1, dtype=torch.int64, device=self._collective.device)
        vector = torch.empty_like(self.weights)
        while True:
            self._collective.broadcast(order)
            self._collective.broadcast(vector)
            if int(order) == _STOP:
                return
            self._loss_at(vector) if int(order) == _LOSS else self._product(vector)

    def _tell(self, order: int, vector: Tensor) -> None:
        self._collective.broadcast(torch.tensor([order], device=self._collective.device))
        self._collective.broadcast(vector)

    def _loss_at(self, weights: Tensor) -> float:
        self._put(weights)
        try:
            with torch.no_grad():
                values = [
                    share * float(self._grain_loss(number, data))
                    for number, data, share in self._grains
                    if share
                ]
        finally:
            self._put(self.weights)
        return self._sum(values)

    def _product(self, vector: Tensor) -> Tensor:
        vectors = unflatten(vector, self._parameters)
        self._tree.begin(self._division.reduction)
        for number, data, share in self._grains:
            self._tree.add([*self._grain_product(number, data, share, vectors)])
        self._tree.launch()
        totals = [total for total in self._tree.finish() if total is not None]
        return flatten(totals).to(self.weights.dtype)

    def _grain_product(
        self, number: int, data: Any, share: float, vectors: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """A grain's share of the Hessian times a vector, given and returned by parameter."""
        curved = []
        if share:  # else there may be no loss to speak of (0 / 0)
            value = self._grain_loss(number, data)
            gradient = torch.autograd.grad(
                value,
                self._parameters,
                torch.full_like(value, share),
                create_graph=True,
                materialize_grads=True,
            )
            pairs = zip(gradient, vectors, strict=True)
            curved = [pair for pair in pairs if pair[0].requires_grad]  # it is linear in the others
        if not curved:
            return [torch.zeros_like(parameter) for parameter in self._parameters]
        parts, along = zip(*curved, strict=True)
        return torch.autograd.grad(parts, self._parameters, along, materialize_grads=True)

    def _grain_loss(self, number: int, data: Any) -> Tensor:
        seed_everything(key("curvature", self._seed, number))
        return grain_loss(self.model, self._loss, data)

    def _put(self, weights: Tensor) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self._parameters), unflatten(weights, self._parameters))

    def _sum(self, values: Sequence[float]) -> float:
        """The exact sum of all workers' values: it has no order."""
        mine = np.zeros(self._division.most_grains)
        mine[: len(values)] = values
        return exact_sum(self._collective.gather_rows(mine).ravel())


def estimate_trace(
    product: Callable[[Tensor], Tensor],
    values: Sequence[float],
    vectors: Tensor,
    *,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda done, expected: None,
) -> tuple[float, float, int]:
    """Estimate the sum of all eigenvalues without bias, from some eigenpairs that are known (a
    vector in each row): the estimate, its standard error, how many products it took.

    tr H = tr Q'HQ + E[z'PHPz] with P = 1 - QQ', for random signs z. The known eigenpairs' part of
    the trace is certain, so only what is left is sampled (as in Hutch++, Meyer et al. 2021, with
    Lanczos' vectors in place of a sketch's), by Hutchinson's vectors of random signs: the error is
    that of the small eigenvalues alone."""
    certain = math.fsum(values)
    if len(vectors) == vectors.shape[1]:  # all eigenvalues there are
        return certain, 0.0, 0
    found = []
    for number in range(TRACE_VECTORS):
        generator = torch.Generator().manual_seed(key("trace", seed, number))
        signs = torch.randint(0, 2, (vectors.shape[1],), generator=generator)
        vector = (2 * signs - 1).to(vectors)
        vector = vector - (vectors @ vector) @ vectors
        found.append(float(vector.double() @ product(vector).double()))
        tell(number + 1, TRACE_VECTORS)
    mean, error = mean_and_error(found)
    return certain + mean, error, TRACE_VECTORS


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    mean = exact_sum(values) / len(values)
    variance = exact_sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


# ---- layers that cannot be differentiated twice


def refuse_undifferentiable(model: nn.Module, loss: Loss, data: Any, name: str) -> None:
    """An error that names the layer, unless the Hessian of this grain's loss can be had.

    A backward() that has no derivative of its own either raises, or, worse, is silently taken for a
    constant: then products are wrong. So second derivatives are asked of everything in the graph,
    and must be symmetric, as those of any function are. Every module is tried alone, on what it
    meets in the model; of those that fail, one whose parts do not fail is to blame; if none fails,
    the loss itself is."""
    cause = _fault([grain_loss(model, loss, data)], trained(model))
    if cause is None:
        return
    failed: dict[str, str] = {}
    for path, call in _calls(model, loss, data):
        found = _fault_alone(*call)
        if found is not None:
            failed.setdefault(path, found)
    where = "the recipe's loss(), outside the model's layers,"
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
        first = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
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
    first: Sequence[Tensor], leaves: Sequence[Tensor], number: int
) -> tuple[list[Tensor], list[Tensor]]:
    """A random vector, and the second derivatives times it."""
    generator = torch.Generator().manual_seed(key("fault", number))
    vector = [torch.randn(leaf.shape, generator=generator).to(leaf) for leaf in leaves]
    curved = [(g, v) for g, v in zip(first, vector, strict=True) if g.requires_grad]
    if curved:  # by backward(): autograd.grad passes over @once_differentiable
        torch.autograd.backward([g for g, _ in curved], [v for _, v in curved], retain_graph=True)
    found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return vector, found


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    pairs = zip(left, right, strict=True)
    return sum(float((a.double() * b.double()).sum()) for a, b in pairs)


def _calls(model: nn.Module, loss: Loss, data: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Every module that is called: its path, and (itself, its arguments, its named arguments)."""
    found: list[tuple[str, tuple[Any, ...]]] = []

    def note(path: str, *call: Any) -> None:
        found.append((path, call))

    handles = [
        module.register_forward_pre_hook(partial(note, path), with_kwargs=True)
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
    if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad:
        yield value
    elif isinstance(value, (dict, tuple, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
