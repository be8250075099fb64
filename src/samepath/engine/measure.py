"""What adaptive strategies look at, measured at the end of an epoch.

In: a trainer between two steps. Out: numbers by name. Guaranteed: the trainer is as it was, and the
numbers are the same bits at every worker count. All measures look at the same examples every time,
a sample that depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from samepath.data import Source
from samepath.engine.trainer import Trainer
from samepath.keys import key
from samepath.plan import Batch, epoch_order
from samepath.strategies import Measure

NOISE_GRAINS = 16
CURVATURE_GRAINS = 8
MOST_ITERATIONS = 20
CLOSE_ENOUGH = 0.01
"""Power iteration ends when the eigenvalue changes by less than this part of itself."""
STEP = 1e-3
"""Of the weights' norm: how far apart the gradients for a Hessian-vector product are taken."""


def measure(trainer: Trainer, source: Source, names: Iterable[Measure]) -> dict[str, float]:
    """The named quantities, at the trainer's weights."""
    found: dict[str, float] = {}
    for name in names:
        found |= noise(trainer, source) if name == "noise" else curvature(trainer, source)
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
        return {"noise_variance": 0.0, "noise_signal": big}
    few, many = size, size * count
    return {
        "noise_variance": (small - big) / (1.0 / few - 1.0 / many),
        "noise_signal": (many * big - few * small) / (many - few),
    }


def curvature(trainer: Trainer, source: Source) -> dict[str, float]:
    """The top eigenvalue of the Hessian (the largest in size) by power iteration. Hessian-vector
    products are differences of gradients: they need nothing of a model but its gradient."""
    sample = _sample(trainer, source, CURVATURE_GRAINS)
    weights = _trained(trainer)
    home = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(key("curvature", trainer.settings.seed))
    direction = [
        torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device) for w in weights
    ]
    far = STEP * _squared_norm(home) ** 0.5
    value = previous = 0.0
    try:
        for _ in range(MOST_ITERATIONS):
            norm = _squared_norm(direction) ** 0.5
            if not norm > 0:
                break
            torch._foreach_div_(direction, norm)
            ahead = _gradient_at(trainer, source, sample, home, direction, far)
            behind = _gradient_at(trainer, source, sample, home, direction, -far)
            product = torch._foreach_sub(ahead, behind)
            torch._foreach_div_(product, 2.0 * far)
            previous, value = value, _dot(direction, product)
            direction = list(product)
            if abs(value - previous) <= CLOSE_ENOUGH * abs(value):
                break
    finally:
        _put(weights, home)
    return {"curvature": abs(value)}


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
