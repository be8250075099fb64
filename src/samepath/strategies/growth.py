"""The batch grows while the run goes on: at milestones, or by what is measured.

Decay the rate, or grow the batch instead (Smith et al. 2018, "Don't decay the learning rate"): both
lower the noise of the gradient by one factor at every milestone and take the same examples; growth
takes fewer steps. k workers hold batches up to kB, and there is no batch larger than the data: once
growth has come to that, the rate decays. At k = 1, growth is decay.

ABS and ABSA (Yao et al. 2018, arXiv:1810.01021): batch and rate grow as the loss becomes flatter.
The top eigenvalue of the Hessian is measured at the end of every epoch; when it has fallen by a
factor since the batch last grew, or after so many epochs in any case, both double, up to kB and
k eta. ABSA also trains on adversarial examples in the first epochs. The paper's rule; the defaults
of the adversarial part are ours.

The batch follows the gradient noise scale (McCandlish et al. 2018, "large-batch training"): the
simple noise scale tr(S) / |G|^2 is the batch at which a gradient is half noise. Below it a larger
batch saves steps nearly in proportion, above it hardly any. Both parts are measured at the end of
every epoch and averaged apart (one estimate alone can be negative), then divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from samepath.errors import UserError
from samepath.strategies.choice import Adversarial, Choice, Measure, Moment

GROWS_BY = 2.0
"""Factor by which curvature lets batch and rate grow at once."""


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Batch B; the rate is divided at every milestone."""

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

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(learning_rate=1.0 / self.quieter(moment))


@dataclass(frozen=True, kw_only=True)
class Growth(Decay):
    """Rate eta; the batch is multiplied at every milestone, up to kB."""

    def __call__(self, k: int, moment: Moment) -> Choice:
        quieter = self.quieter(moment)
        batch = min(quieter, k, moment.most_batch)
        return Choice(batch=batch, learning_rate=batch / quieter)


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

    def __call__(self, k: int, moment: Moment) -> Choice:
        grown, reference, since = 1.0, None, 0
        for measured in moment.history:
            now, since = measured["curvature"], since + 1
            if not math.isfinite(now):  # nothing is known of this epoch
                continue
            reference = now if reference is None else reference
            if now <= reference / self.fall or since >= self.patience:
                grown, reference, since = grown * GROWS_BY, now, 0
        grown = min(grown, k, moment.most_batch)
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
        grown = super().__call__(k, moment)
        if k == 1 or moment.epoch >= self.until:
            return grown
        return replace(grown, adversarial=Adversarial(epsilon=self.epsilon, share=self.share))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Batch: the noise scale, between B and kB in whole B; rate: the root of that times eta."""

    window: int = 5
    """Number of epochs that are averaged."""
    measures: ClassVar[tuple[Measure, ...]] = ("noise",)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UserError(f"window={self.window}: it must be at least 1 epoch")

    def __call__(self, k: int, moment: Moment) -> Choice:
        measured = [
            (m["noise_variance"], m["noise_signal"]) for m in moment.history[-self.window :]
        ]
        # an epoch whose gradients overflowed says nothing
        recent = [pair for pair in measured if math.isfinite(sum(pair))]
        if not recent:
            return Choice()
        variance, signal = (math.fsum(part) for part in zip(*recent, strict=True))
        # no signal left to be seen: all noise, and the largest batch is the best
        batches = variance / signal / moment.batch_size if signal > 0 else k
        grown = max(1.0, math.floor(min(k, moment.most_batch, batches)))
        return Choice(batch=grown, learning_rate=grown**0.5)
