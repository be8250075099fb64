"""Stale-synchronous updates: a gradient is added in the background and applied some steps later.

Batch and rate are strong's, so that the staleness is all that differs from it. With one worker
there is nothing to add in the background, and no lag. Not to be confused with asynchronous updates:
here all workers have the same weights at every step, and the path is the same on any number.
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
        lag = self.lag if k > 1 else 0
        return Choice(synchronisation=Synchronisation(kind="stale", lag=lag)) if lag else Choice()
