"""What adaptive strategies look at, measured at the end of an epoch.

In: a trainer between two steps. Out: numbers by name. Guaranteed: the trainer is as it was, and the
numbers are the same bits at every worker count. All measures look at the same examples every time,
a sample that depends on the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from samepath.data import Source
from samepath.engine.run.lanczos import squared_norm, top_eigenpairs
from samepath.engine.run.trainer import Trainer
from samepath.keys import key
from samepath.plan import Batch, epoch_order
from samepath.strategies import Measure

NOISE_GRAINS = 16
CURVATURE_GRAINS = 8
MOST_PRODUCTS = 12
"""The most products of the Hessian with a vector: two gradients each, and a copy of the weights in
memory."""
CLOSE_ENOUGH = 0.02
"""An eigenvalue is good when a true one is nearer than this part of it."""
STEP = 1e-3
"""A share of the weights' norm: how far apart the gradients for a Hessian-vector product are
taken."""


def measure(trainer: Trainer, source: Source, names: Iterable[Measure]) -> dict[str, float]:
    """The named quantities at the trainer's weights, and what each cost: so many gradients, each of
    so many examples (`noise_gradients`, `noise_gradient_examples`)."""
    found: dict[str, float] = {}
    for name in names:
        found |= (noise if name == "noise" else curvature)(trainer, source)
    for parameter in trained(trainer.model):
        parameter.grad = None
    return found


def noise(trainer: Trainer, source: Source) -> dict[str, float]:
    """tr(S) and |G|^2 of the simple noise scale (McCandlish et al. 2018, equations A.2, A.3), from
    the norms of single grains' gradients and of their mean's."""
    sample = _sample(trainer, source, NOISE_GRAINS)
    size, count = sample.grain_size, len(sample.examples) // sample.grain_size
    mean = [torch.zeros_like(p) for p in trained(trainer.model)]
    small = 0.0
    for number in range(count):
        grain = Batch(
            step=sample.step, epoch=sample.epoch, examples=sample.grain(number), grain_size=size
        )
        trainer.gradient(source, grain)
        gradient = _gradient(trainer)
        small += squared_norm(gradient) / count
        torch._foreach_add_(mean, gradient, alpha=1.0 / count)
    big = squared_norm(mean)
    few, many, several = size, size * count, count > 1
    return {
        "noise_variance": (small - big) / (1.0 / few - 1.0 / many) if several else 0.0,
        "noise_signal": (many * big - few * small) / (many - few) if several else big,
        "noise_gradients": count,
        "noise_gradient_examples": size,
    }


def curvature(trainer: Trainer, source: Source) -> dict[str, float]:
    """The top eigenvalue of the Hessian (the largest in size). Products with the Hessian are
    differences of gradients: they need nothing of a model but its gradient, and count kinks
    (ReLU's) that derivatives do not see."""
    sample = _sample(trainer, source, CURVATURE_GRAINS)
    weights = trained(trainer.model)
    home = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(key("curvature", trainer.settings.seed))
    start = [torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device) for w in weights]
    far = STEP * (squared_norm(home) ** 0.5 or 1.0)
    gradients = 0

    def gradient_at(direction: list[Tensor], distance: float) -> list[Tensor]:
        nonlocal gradients
        gradients += 1
        _put(weights, torch._foreach_add(home, direction, alpha=distance))
        trainer.gradient(source, sample)
        return [gradient.clone() for gradient in _gradient(trainer)]

    def product(direction: list[Tensor]) -> list[Tensor]:
        ahead, behind = gradient_at(direction, far), gradient_at(direction, -far)
        torch._foreach_sub_(ahead, behind)
        torch._foreach_div_(ahead, 2.0 * far)
        return ahead

    try:
        found = top_eigenpairs(
            product, start, 1, relative=CLOSE_ENOUGH, most_products=MOST_PRODUCTS
        )
        value = abs(found.values[0])
    except FloatingPointError:
        value = math.nan
    finally:
        _put(weights, home)
    return {
        "curvature": value,
        "curvature_gradients": gradients,
        "curvature_gradient_examples": len(sample.examples),
    }


def choose_sample(num_examples: int, most: int, grain_size: int, seed: int) -> Batch:
    """Choose at most so many examples, in whole grains: a choice by the seed alone (all of the
    data where it is smaller than one grain)."""
    size = min(grain_size, num_examples)
    count = max(1, min(most, num_examples) // size)
    order = epoch_order(num_examples, key("measure", seed), 0)
    return Batch(step=0, epoch=0, examples=order[: size * count], grain_size=size)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _sample(trainer: Trainer, source: Source, num_grains: int) -> Batch:
    size, seed = trainer.settings.grain_size, trainer.settings.seed
    return choose_sample(len(source), num_grains * size, size, seed)


def _put(weights: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(weights), list(values))


def _gradient(trainer: Trainer) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(trainer.model)]
