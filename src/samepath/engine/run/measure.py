"""What adaptive strategies look at, measured at the end of an epoch.

In: a trainer between two steps. Out: numbers by name. Guaranteed: the trainer is as it was, and the
numbers are the same bits at every worker count. All measures look at the same examples every time,
a sample that depends on the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from samepath.data import Source
from samepath.engine.run.trainer import Trainer
from samepath.keys import key
from samepath.plan import Batch, epoch_order
from samepath.strategies import Measure

NOISE_GRAINS = 16
CURVATURE_GRAINS = 8
MOST_PRODUCTS = 12
"""Of the Hessian with a vector: two gradients each, and a copy of the weights in memory."""
CLOSE_ENOUGH = 0.02
"""An eigenvalue is good when a true one is nearer than this part of it."""
STEP = 1e-3
"""Of the weights' norm: how far apart the gradients for a Hessian-vector product are taken."""


def measure(trainer: Trainer, source: Source, names: Iterable[Measure]) -> dict[str, float]:
    """The named quantities at the trainer's weights, and what each cost: so many gradients, each of
    so many examples (`noise_gradients`, `noise_gradient_examples`)."""
    found: dict[str, float] = {}
    for name in names:
        values = noise(trainer, source) if name == "noise" else curvature(trainer, source)
        for cost in ("gradients", "gradient_examples"):
            values[f"{name}_{cost}"] = values.pop(cost)
        found |= values
    _clear(trainer)
    return found


def noise(trainer: Trainer, source: Source) -> dict[str, float]:
    """tr(S) and |G|^2 of the simple noise scale (McCandlish et al. 2018, equations A.2, A.3), from
    the norms of single grains' gradients and of their mean's."""
    sample = _sample(trainer, source, NOISE_GRAINS)
    size, count = sample.grain_size, len(sample.examples) // sample.grain_size
    mean = [torch.zeros_like(p) for p in _trained(trainer)]
    small = 0.0
    for number in range(count):
        grain = Batch(
            step=sample.step, epoch=sample.epoch, examples=sample.grain(number), grain_size=size
        )
        trainer.gradient(source, grain)
        gradient = _gradient(trainer)
        small += _squared_norm(gradient) / count
        torch._foreach_add_(mean, gradient, alpha=1.0 / count)
    big = _squared_norm(mean)
    if count == 1:
        return {
            "gradients": 1,
            "gradient_examples": size,
            "noise_variance": 0.0,
            "noise_signal": big,
        }
    few, many = size, size * count
    return {
        "gradients": count,
        "gradient_examples": size,
        "noise_variance": (small - big) / (1.0 / few - 1.0 / many),
        "noise_signal": (many * big - few * small) / (many - few),
    }


def curvature(trainer: Trainer, source: Source) -> dict[str, float]:
    """The top eigenvalue of the Hessian (the largest in size) by Lanczos iteration, which is far
    ahead of power iteration after as many products and can tell how close it is. Products with the
    Hessian are differences of gradients: they need nothing of a model but its gradient, and count
    kinks (ReLU's) that derivatives do not see."""
    sample = _sample(trainer, source, CURVATURE_GRAINS)
    weights = _trained(trainer)
    home = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(key("curvature", trainer.settings.seed))
    direction = [
        torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device) for w in weights
    ]
    torch._foreach_div_(direction, _squared_norm(direction) ** 0.5)
    far = STEP * (_squared_norm(home) ** 0.5 or 1.0)
    basis: list[list[Tensor]] = []
    diagonal: list[float] = []
    beside: list[float] = []
    value = 0.0
    try:
        for _ in range(MOST_PRODUCTS):
            product = _gradient_at(trainer, source, sample, home, direction, far)
            behind = _gradient_at(trainer, source, sample, home, direction, -far)
            torch._foreach_sub_(product, behind)
            torch._foreach_div_(product, 2.0 * far)
            diagonal.append(_dot(direction, product))
            basis.append(direction)
            for known in basis:  # three would do if products were exact
                torch._foreach_add_(product, known, alpha=-_dot(known, product))
            beside.append(_squared_norm(product) ** 0.5)
            if not math.isfinite(diagonal[-1] + beside[-1]):
                value = math.nan
                break
            value, distance = _top(diagonal, beside)
            if distance <= CLOSE_ENOUGH * value:
                break
            direction = list(torch._foreach_div(product, beside[-1]))
    finally:
        _put(weights, home)
    return {
        "gradients": 2 * len(diagonal),
        "gradient_examples": len(sample.examples),
        "curvature": value,
    }


def _top(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """Of the symmetric matrix with these on and beside its diagonal: the eigenvalue largest in
    size, and how far from it one of the Hessian's is at most."""
    inner = np.array(beside[:-1])
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(inner, 1) + np.diag(inner, -1))
    top = int(np.argmax(np.abs(values)))
    return abs(float(values[top])), beside[-1] * abs(float(vectors[-1, top]))


def _sample(trainer: Trainer, source: Source, num_grains: int) -> Batch:
    """Whole grains of a fixed choice of examples (the data itself where it is smaller than one)."""
    size = min(trainer.settings.grain_size, len(source))
    count = max(1, min(num_grains, len(source) // size))
    order = epoch_order(len(source), key("measure", trainer.settings.seed), 0)
    return Batch(step=0, epoch=0, examples=order[: size * count], grain_size=size)


def _gradient_at(
    trainer: Trainer,
    source: Source,
    sample: Batch,
    home: list[Tensor],
    direction: list[Tensor],
    far: float,
) -> list[Tensor]:
    _put(_trained(trainer), torch._foreach_add(home, direction, alpha=far))
    trainer.gradient(source, sample)
    return [gradient.clone() for gradient in _gradient(trainer)]


def _put(weights: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(weights), list(values))


def _trained(trainer: Trainer) -> list[nn.Parameter]:
    return [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]


def _gradient(trainer: Trainer) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in _trained(trainer)]


def _clear(trainer: Trainer) -> None:
    for parameter in _trained(trainer):
        parameter.grad = None


def _squared_norm(tensors: Iterable[Tensor]) -> float:
    return float(nn.utils.get_total_norm(tensors)) ** 2


def _dot(left: list[Tensor], right: Iterable[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))
