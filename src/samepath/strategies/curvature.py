"""The batch grows as the loss becomes flatter: ABS and ABSA (Yao et al. 2018, arXiv:1810.01021).

The top eigenvalue of the Hessian is measured at the end of every epoch. When it has fallen by a
factor since the batch last grew, or after so many epochs in any case, batch and rate double, up to
kB and k eta. ABSA also trains on adversarial examples in the first epochs. The paper's rule; the
defaults of the adversarial part are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from samepath.errors import UserError
from samepath.strategies.choice import Adversarial, Choice, Measure, Moment

GROWS_BY = 2.0


@dataclass(frozen=True, kw_only=True)
class CurvatureGrowth:
    """Batch and rate double when the top Hessian eigenvalue has fallen (ABS)."""

    fall: float = 2.0
    """Factor by which the eigenvalue must have fallen."""
    patience: int = 10
    """Epochs after which batch and rate double in any case."""
    measures: ClassVar[tuple[Measure, ...]] = ("curvature",)

    def __post_init__(self) -> None:
        if not self.fall > 1:
            raise UserError(f"fall={self.fall}: it must be above 1")
        if self.patience < 1:
            raise UserError(f"patience={self.patience}: it must be at least 1 epoch")

    def growth(self, k: int, moment: Moment) -> float:
        """Factor by which the batch has grown, found by going through all that was measured."""
        grown, reference, since = 1.0, None, 0
        for measured in moment.history:
            now, since = measured["curvature"], since + 1
            if not math.isfinite(now):  # nothing is known of this epoch
                continue
            reference = now if reference is None else reference
            if now <= reference / self.fall or since >= self.patience:
                grown, reference, since = grown * GROWS_BY, now, 0
        return min(grown, k, moment.most_batch)

    def __call__(self, k: int, moment: Moment) -> Choice:
        grown = self.growth(k, moment)
        return Choice(batch=grown, learning_rate=grown)


@dataclass(frozen=True, kw_only=True)
class CurvatureAdversarial(CurvatureGrowth):
    """Growth by curvature, with adversarial examples at first (ABSA)."""

    epsilon: float = 0.005
    """How far each input value of an adversarial example is moved."""
    share: float = 0.2
    """Part of the examples that is adversarial."""
    until: int = 10
    """Number of epochs with adversarial examples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon > 0 or not 0 < self.share <= 1 or self.until < 1:
            raise UserError(
                f"epsilon={self.epsilon}, share={self.share}, until={self.until}: epsilon must be "
                "above 0, share above 0 and at most 1, until at least 1"
            )

    def __call__(self, k: int, moment: Moment) -> Choice:
        grown = self.growth(k, moment)
        attack = Adversarial(epsilon=self.epsilon, share=self.share)
        on = k > 1 and moment.epoch < self.until
        return Choice(batch=grown, learning_rate=grown, adversarial=attack if on else None)
