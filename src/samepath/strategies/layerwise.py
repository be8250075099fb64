"""Optimizers for large batches, with a rate of its own for every layer; from pytorch-optimizer.

LARS (You et al. 2017) is SGD with momentum, LAMB (You et al. 2020) is Adam, each layer's step in
proportion to the size of its weights. Both come with the scaling rule and the warm-up of their
papers. At k = 1 they are not the sequential run: the optimizer is another.
"""

from __future__ import annotations

from dataclasses import dataclass

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Moment, OtherOptimizer
from samepath.strategies.warmup import rising


@dataclass(frozen=True, kw_only=True)
class _Layerwise:
    epochs: float = 5.0
    """Number of epochs over which the rate rises."""
    rate: float | None = None
    """The optimizer's rate at k = 1; the recipe's when not given. LARS wants one of its own where
    the recipe's belongs to Adam: its steps are rate / 1000 of a layer's size, so try 1 to 10."""

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise UserError(f"epochs={self.epochs}: a warm-up must last longer than 0 epochs")
        if self.rate is not None and not self.rate > 0:
            raise UserError(f"rate={self.rate}: a learning rate must be above 0")


@dataclass(frozen=True, kw_only=True)
class Lars(_Layerwise):
    """Batch kB, rate rising to k eta, optimizer LARS."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(
            batch=k,
            learning_rate=rising(k, moment, self.epochs),
            optimizer=OtherOptimizer(name="lars", learning_rate=self.rate),
        )


@dataclass(frozen=True, kw_only=True)
class Lamb(_Layerwise):
    """Batch kB, rate rising to sqrt(k) eta, optimizer LAMB."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(
            batch=k,
            learning_rate=rising(k**0.5, moment, self.epochs),
            optimizer=OtherOptimizer(name="lamb", learning_rate=self.rate),
        )
