"""Gradients that are applied some updates after the weights they were computed with.

Batch and rate are strong's, so that the lag is all that differs from it. With one worker there is
none. Stale-synchronous: a gradient is added in the background and applied some steps later; all
workers have the same weights at every step.

Asynchronous, as a rule for studies: a parameter server with k workers. Every worker takes the
newest weights, computes the gradient of a batch B of its own and sends it; the server applies it at
once. With k workers of one speed, k - 1 other updates are made in between: that is the lag here,
the same every time, so that a study has one answer. At the start, the first k gradients are all of
the first weights. (`samepath train --strategy asynchronous -n k` runs the real one, whose staleness
is measured and bounded, and whose path is not the same twice.)
"""

from __future__ import annotations

from dataclasses import dataclass

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Moment, Synchronisation


@dataclass(frozen=True, kw_only=True)
class Stale:
    """Batch B, rate eta; every gradient waits `lag` steps."""

    lag: int = 1
    """Steps between a gradient and its update; 0 is synchronous, bit for bit."""

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise UserError(f"lag={self.lag}: it must be at least 0")

    def __call__(self, k: int, moment: Moment) -> Choice:
        if k == 1 or not self.lag:
            return Choice()
        return Choice(synchronisation=Synchronisation(kind="stale", lag=self.lag))


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Batch B, rate eta, k updates while a gradient is computed."""

    bound: int | None = None
    """The highest staleness allowed; k - 1 (what workers of one speed have) when not given."""

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise UserError(f"bound={self.bound}: it must be at least 0")

    def __call__(self, k: int, moment: Moment) -> Choice:
        lag = k - 1 if self.bound is None else min(k - 1, self.bound)
        if not lag:
            return Choice()
        return Choice(synchronisation=Synchronisation(kind="asynchronous", lag=lag))
