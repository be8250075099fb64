"""Decay the rate, or grow the batch instead (Smith et al. 2018, "Don't decay the learning rate").

Both lower the noise of the gradient by one factor at every milestone and take the same examples;
growth takes fewer steps. k workers hold batches up to kB, and there is no batch larger than the
data: once growth has come to that, the rate decays. At k = 1, growth is decay.
"""

from __future__ import annotations

from dataclasses import dataclass

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Moment


@dataclass(frozen=True, kw_only=True)
class _Milestones:
    milestones: tuple[int, ...] = (10, 20)
    """Numbers of epochs after which the noise is lowered."""
    factor: float = 5.0
    """Factor by which the noise is lowered at each milestone."""

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise UserError(f"factor={self.factor}: it must be above 1")
        if not self.milestones or min(self.milestones) < 1:
            raise UserError(f"milestones={self.milestones}: give epochs, at least 1, as 10+20")

    def quieter(self, moment: Moment) -> float:
        """Factor by which the noise is to be lower than at the start."""
        return self.factor ** sum(moment.epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, kw_only=True)
class Decay(_Milestones):
    """Batch B; the rate is divided at every milestone."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(learning_rate=1.0 / self.quieter(moment))


@dataclass(frozen=True, kw_only=True)
class Growth(_Milestones):
    """Rate eta; the batch is multiplied at every milestone, up to kB."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        quieter = self.quieter(moment)
        batch = min(quieter, k, moment.most_batch)
        return Choice(batch=batch, learning_rate=batch / quieter)
