"""The batch grows with the workers or not, the rate by some power of that.

strong keeps both and so keeps the path (Cunha et al. 2018). weak grows the batch alone. linear is
Goyal et al. 2017, sqrt is Krizhevsky 2014 (the variance of an average of k gradients is a k-th);
with warm-up the rate rises to that over the first epochs (Goyal et al. 2017, section 2.2).

LARS (You et al. 2017) is SGD with momentum, LAMB (You et al. 2020) is Adam, each layer's step in
proportion to the size of its weights. Both come with the scaling rule and the warm-up of their
papers. At k = 1 they are not the sequential run: the optimizer is another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Moment, OtherOptimizer


@dataclass(frozen=True, kw_only=True)
class Strong:
    """Batch B, rate eta at every k: all worker counts are one path."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice()


@dataclass(frozen=True, kw_only=True)
class Weak:
    """Batch kB, rate eta."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(batch=k)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Batch kB, rate k eta from the first step."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(batch=k, learning_rate=k)


@dataclass(frozen=True, kw_only=True)
class Sqrt:
    """Batch kB, rate sqrt(k) eta from the first step."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(batch=k, learning_rate=k**0.5)


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Batch kB, rate rising from eta to k eta in a straight line, every step."""

    epochs: float = 5.0
    """Number of epochs over which the rate rises."""
    power: ClassVar[float] = 1.0
    """Power of k that the rate rises to."""

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise UserError(f"epochs={self.epochs}: a warm-up must last longer than 0 epochs")

    def __call__(self, k: int, moment: Moment) -> Choice:
        risen = min(1.0, moment.epochs / self.epochs)
        return Choice(batch=k, learning_rate=1.0 + (k**self.power - 1.0) * risen)


@dataclass(frozen=True, kw_only=True)
class SqrtWarmup(Warmup):
    """Batch kB, rate rising from eta to sqrt(k) eta."""

    power = 0.5


@dataclass(frozen=True, kw_only=True)
class Lars(Warmup):
    """Batch kB, rate rising to k eta, optimizer LARS."""

    rate: float | None = None
    """The optimizer's rate at k = 1; the recipe's when not given. LARS wants one of its own where
    the recipe's belongs to Adam: its steps are rate / 1000 of a layer's size, so try 1 to 10."""
    optimizer: ClassVar[Literal["lars", "lamb"]] = "lars"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and not self.rate > 0:
            raise UserError(f"rate={self.rate}: a learning rate must be above 0")

    def __call__(self, k: int, moment: Moment) -> Choice:
        other = OtherOptimizer(name=self.optimizer, learning_rate=self.rate)
        return replace(super().__call__(k, moment), optimizer=other)


@dataclass(frozen=True, kw_only=True)
class Lamb(Lars):
    """Batch kB, rate rising to sqrt(k) eta, optimizer LAMB."""

    power = 0.5
    optimizer = "lamb"
