"""Fixed rules: the batch grows with the workers or not, the rate by some power of that.

strong keeps both and so keeps the path (Cunha et al. 2018). weak grows the batch alone. linear is
Goyal et al. 2017, sqrt is Krizhevsky 2014 (the variance of an average of k gradients is a k-th).
"""

from __future__ import annotations

from dataclasses import dataclass

from samepath.strategies.choice import Choice, Moment


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
