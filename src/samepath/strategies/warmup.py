"""Rules whose rate rises to its value over the first epochs (Goyal et al. 2017, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Moment


def rising(factor: float, moment: Moment, epochs: float) -> float:
    """A factor that rises from 1 to `factor` in a straight line over so many epochs, every step."""
    return 1.0 + (factor - 1.0) * min(1.0, moment.epochs / epochs)


@dataclass(frozen=True, kw_only=True)
class _Rising:
    epochs: float = 5.0
    """Number of epochs over which the rate rises."""

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise UserError(f"epochs={self.epochs}: a warm-up must last longer than 0 epochs")


@dataclass(frozen=True, kw_only=True)
class Warmup(_Rising):
    """Batch kB, rate rising from eta to k eta."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(batch=k, learning_rate=rising(k, moment, self.epochs))


@dataclass(frozen=True, kw_only=True)
class SqrtWarmup(_Rising):
    """Batch kB, rate rising from eta to sqrt(k) eta."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(batch=k, learning_rate=rising(k**0.5, moment, self.epochs))
