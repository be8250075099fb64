"""The loss on a sample of examples as a function of the weights: its value, and its Hessian.

In: a model, its loss, a sample cut into grains. Out: the loss at any weights; the product of the
Hessian at the model's weights with any vector. Exact products: the gradient of a gradient, which
needs nothing of a model but what double backward needs. (torch.func differentiates forward over
reverse under vmap: an autograd Function then needs a `jvp`, which DeepDensity's have not.)

The function is one, and deterministic: the model in evaluation mode (batch norm uses its running
statistics, dropout is off), examples without augmentation, no autocast, random state keyed by
(seed, grain). Guaranteed: the same bits at every worker count, by the plan's tree.

The first worker calls `loss_at`, `product` and at last `dismiss`; the others `serve`. The trace of
the Hessian is estimated from such products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from samepath.data import GrainRequest, Source, seed_everything
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.tensors import to_device
from samepath.engine.comm.tree_sum import TreeSum
from samepath.engine.run.lanczos import Eigenpairs
from samepath.engine.run.measure import trained
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Batch, divide

Loss = Callable[[nn.Module, Any], Tensor]
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


def put(model: nn.Module, weights: Tensor) -> None:
    """Give the model these weights, as one vector."""
    parameters = trained(model)
    with torch.no_grad():
        torch._foreach_copy_(list(parameters), unflatten(weights, parameters))


def grain_product(
    model: nn.Module, loss: Loss, data: Any, vectors: Sequence[Tensor], scale: float = 1.0
) -> list[Tensor]:
    """`scale` times one grain's Hessian times a vector, given and returned by parameter."""
    parameters = trained(model)
    value = grain_loss(model, loss, data)
    gradient = torch.autograd.grad(
        value, parameters, torch.full_like(value, scale), create_graph=True, allow_unused=True
    )
    curved = [  # the loss is linear in the others
        (part, vector)
        for part, vector in zip(gradient, vectors, strict=True)
        if part is not None and part.requires_grad
    ]
    product: Sequence[Tensor | None] = [None] * len(parameters)
    if curved:
        parts, along = zip(*curved, strict=True)
        product = torch.autograd.grad(parts, parameters, along, allow_unused=True)
    return [
        torch.zeros_like(parameter) if part is None else part
        for part, parameter in zip(product, parameters, strict=True)
    ]


def grain_loss(model: nn.Module, loss: Loss, data: Any) -> Tensor:
    """A grain's loss by attention's plain formula: its fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return loss(model, data)


class SampleLoss:
    """The mean loss of a sample, on all workers: the first asks, the others `serve`."""

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
        self._grains = dict(
            zip(mine, (to_device(d, collective.device) for d in loaded), strict=True)
        )
        counts = [
            len(mine[number]) if weight is None else float(weight(data))
            for number, data in self._grains.items()
        ]
        total = self._fsum(counts)
        if not (math.isfinite(total) and total > 0 and min(counts, default=0.0) >= 0):
            raise UserError(
                f"the weights of the sample's grains sum to {total}; weights must be finite, at "
                "least 0 and not all 0: take more --examples"
            )
        self._scales = dict(zip(self._grains, (count / total for count in counts), strict=True))
        self._tree = TreeSum(collective, self._parameters, exact=True)
        self.weights = flatten(self._parameters)
        """Where the model is: the point at which the Hessian is taken."""

    # ---- what the first worker asks for

    def loss_at(self, weights: Tensor) -> float:
        """The mean loss with other weights (infinite or NaN where it is that); the model keeps
        its own."""
        self._tell(_LOSS, weights)
        return self._loss_at(weights)

    def product(self, vector: Tensor) -> Tensor:
        """The Hessian times a vector."""
        self._tell(_PRODUCT, vector)
        return self._product(vector)

    def serve(self) -> None:
        """Compute this worker's grains of what the first worker asks for, until it dismisses."""
        while True:
            order = torch.zeros(1, dtype=torch.int64, device=self._collective.device)
            self._collective.broadcast(order)
            if int(order) == _STOP:
                return
            vector = torch.empty_like(self.weights)
            self._collective.broadcast(vector)
            self._loss_at(vector) if int(order) == _LOSS else self._product(vector)

    def dismiss(self) -> None:
        """End the other workers' `serve`."""
        self._tell(_STOP)

    def _tell(self, order: int, vector: Tensor | None = None) -> None:
        if self._collective.num_workers > 1:
            device = self._collective.device
            self._collective.broadcast(torch.tensor([order], dtype=torch.int64, device=device))
            if vector is not None:
                self._collective.broadcast(vector)

    # ---- what every worker computes

    def _loss_at(self, weights: Tensor) -> float:
        put(self.model, weights)
        try:
            with torch.no_grad():
                values = [
                    self._scales[number] * float(self._of_grain(number, data))
                    for number, data in self._grains.items()
                    if self._scales[number]
                ]
        finally:
            put(self.model, self.weights)
        return self._fsum(values)

    def _of_grain(self, number: int, data: Any) -> Tensor:
        seed_everything(key("curvature", self._seed, number))
        return grain_loss(self.model, self._loss, data)

    def _product(self, vector: Tensor) -> Tensor:
        vectors = unflatten(vector, self._parameters)
        tree = self._tree
        tree.begin(self._division.reduction)
        for number, data in self._grains.items():
            seed_everything(key("curvature", self._seed, number))
            scale = self._scales[number]
            sums: list[Tensor | None] = (
                [*grain_product(self.model, self._loss, data, vectors, scale)]
                if scale
                else [torch.zeros_like(parameter) for parameter in self._parameters]
            )
            if tree.buckets and tree.on_last_grain:
                tree.write_early_sums()
                for index, part in enumerate(sums):
                    tree.write_last(index, part)
            else:
                tree.push(sums)
        tree.launch_rest()
        totals = [total for total in tree.finish() if total is not None]
        return flatten(totals).to(self.weights.dtype)

    def _fsum(self, values: Sequence[float]) -> float:
        """The exact sum of all workers' values: it has no order."""
        mine = np.zeros(self._division.most_grains)
        mine[: len(values)] = values
        everything = self._collective.gather_rows(mine).ravel()
        return math.fsum(everything) if np.isfinite(everything).all() else float(everything.sum())


# ---- its trace


@dataclass(frozen=True, kw_only=True)
class HessianTrace:
    """The sum of all eigenvalues."""

    value: float
    standard_error: float
    num_products: int


def estimate_trace(
    product: Callable[[Tensor], Tensor],
    known: Eigenpairs,
    *,
    seed: int = 0,
    num_vectors: int = TRACE_VECTORS,
    tell: Callable[[int, int], None] = lambda done, expected: None,
) -> HessianTrace:
    """An estimate without bias; the same bits for the same products.

    tr H = tr Q'HQ + E[z'PHPz] with P = 1 - QQ', for random signs z. The known eigenpairs' part of
    the trace is certain, so only what is left is sampled (as in Hutch++, Meyer et al. 2021, with
    Lanczos' vectors in place of a sketch's), by Hutchinson's vectors of random signs: the error is
    that of the small eigenvalues alone."""
    certain = math.fsum(known.values)
    vectors = known.vectors
    if len(vectors) == vectors.shape[1]:  # all eigenvalues there are
        return HessianTrace(value=certain, standard_error=0.0, num_products=0)
    found = []
    for number in range(num_vectors):
        generator = torch.Generator().manual_seed(key("trace", seed, number))
        signs = torch.randint(0, 2, (vectors.shape[1],), generator=generator)
        vector = (2 * signs - 1).to(vectors)
        vector = vector - (vectors @ vector) @ vectors
        found.append(float(vector.double() @ product(vector).double()))
        tell(number + 1, num_vectors)
    mean = math.fsum(found) / num_vectors
    variance = math.fsum((value - mean) ** 2 for value in found) / (num_vectors - 1)
    return HessianTrace(
        value=certain + mean,
        standard_error=math.sqrt(variance / num_vectors),
        num_products=num_vectors,
    )
