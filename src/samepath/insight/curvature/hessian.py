"""The loss on a sample of examples as a function of the weights: its value, and its Hessian.

In: a model, its loss, a sample cut into grains. Out: the loss at any weights; the product of the
Hessian at the model's weights with any vector. Exact products: the gradient of a gradient, which
needs nothing of a model but what double backward needs. (curvlinops differentiates forward over
reverse under vmap: an autograd Function then needs a `jvp`, which DeepDensity's have not, and a
product of the digits takes twice as long. It is the referee in our tests.)

The function is one, and deterministic: the model in evaluation mode (batch norm uses its running
statistics, dropout is off), examples without augmentation, no autocast, random state keyed by
(seed, grain). Guaranteed: the same bits at every worker count, by the plan's tree.

One worker leads and calls `loss_at` and `product`; the others `serve`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from samepath.data import GrainRequest, Source, seed_everything
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.tensors import to_device
from samepath.engine.comm.tree_sum import TreeSum
from samepath.errors import UserError, WorkerLost
from samepath.keys import key
from samepath.plan import Batch, divide, epoch_order

Loss = Callable[[nn.Module, Any], Tensor]
_STOP, _LOSS, _PRODUCT = 0, 1, 2


def choose_sample(num_examples: int, most: int, grain_size: int, seed: int) -> Batch:
    """Whole grains of a fixed choice of examples (the data itself where it is smaller than one)."""
    size = min(grain_size, num_examples)
    count = max(1, min(most, num_examples) // size)
    order = epoch_order(num_examples, key("measure", seed), 0)
    return Batch(step=0, epoch=0, examples=order[: size * count], grain_size=size)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


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
        product = torch.autograd.grad(
            [part for part, _ in curved],
            parameters,
            [vector for _, vector in curved],
            allow_unused=True,
        )
    return [
        torch.zeros_like(parameter) if part is None else part
        for part, parameter in zip(product, parameters, strict=True)
    ]


def grain_loss(model: nn.Module, loss: Loss, data: Any) -> Tensor:
    """The fused kernels of attention have no second derivative; its plain formula has."""
    with sdpa_kernel(SDPBackend.MATH):
        return loss(model, data)


class SampleLoss:
    """The mean loss of a sample. A context: leaving it lets the others go."""

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

    # ---- what the leading worker asks for

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
        """Do one's share of what the leading worker asks for, until it has all it wants."""
        while True:
            order = torch.zeros(1, dtype=torch.int64, device=self._collective.device)
            self._broadcast(order)
            if int(order) == _STOP:
                return
            vector = torch.empty_like(self.weights)
            self._broadcast(vector)
            self._loss_at(vector) if int(order) == _LOSS else self._product(vector)

    def __enter__(self) -> SampleLoss:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._collective.worker == 0:
            self._tell(_STOP)

    def _tell(self, order: int, vector: Tensor | None = None) -> None:
        if self._collective.num_workers > 1:
            device = self._collective.device
            self._broadcast(torch.tensor([order], dtype=torch.int64, device=device))
            if vector is not None:
                self._broadcast(vector)

    def _broadcast(self, tensor: Tensor) -> None:
        try:
            self._collective.broadcast(tensor)
        except RuntimeError as error:
            raise WorkerLost(f"another worker left or stopped answering ({error})") from error

    # ---- everybody's share

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
        """Of everybody's values, without an order."""
        mine = np.zeros(self._division.most_grains)
        mine[: len(values)] = values
        records = self._collective.gather(mine.view(np.uint8))
        everything = np.concatenate([record.view(np.float64) for record in records])
        return math.fsum(everything) if np.isfinite(everything).all() else float(everything.sum())
