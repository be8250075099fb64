"""The vertical axis of loss curves.

In: runs. Out: an axis that shows all of them, but for what blows up: that leaves at the top.
Guaranteed: NaN and infinity do not move it; it is logarithmic if all losses are positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from samepath.report.study_style import log_values, margins
from samepath.study.results import Epoch, RunRecord

_BLOWN_UP = 5.0
"""Times the highest loss of a run that does not diverge."""


@dataclass(frozen=True, kw_only=True)
class LossScale:
    low: float
    high: float
    log: bool
    ceiling: float
    """Losses above it are not shown."""

    def apply(self, axes: Axes) -> None:
        if self.log:
            log_values(axes, self.low, self.high)
        else:
            axes.set_ylim(self.low, self.high)


def last_finite(run: RunRecord) -> tuple[Epoch, float] | None:
    """The last epoch with a finite validation loss, and the loss."""
    for epoch in reversed(run.curve):
        if epoch.valid_loss is not None and math.isfinite(epoch.valid_loss):
            return epoch, epoch.valid_loss
    return None


def loss_scale(
    runs: Sequence[RunRecord],
    others: Sequence[RunRecord],
    also: float = math.nan,
    until: float = math.inf,
) -> LossScale:
    """For the losses of `runs` up to an epoch, and `also` one more value.

    `others` say what a loss is like where none of `runs` is in good health.
    """
    healthy = _losses([run for run in runs if run.ended != "diverged"], until)
    healthy = healthy or _losses([run for run in others if run.ended != "diverged"], until)
    extra = [also] if math.isfinite(also) else []
    everything = [*_losses(runs, until), *extra] or [1.0]
    ceiling = max([_BLOWN_UP * max(healthy, default=math.inf), *extra])
    if max(healthy, default=0.0) < 0.0:
        ceiling = math.inf  # a multiple of a negative loss is no limit
    shown = [loss for loss in everything if loss <= ceiling] or everything
    if min(shown) > 0.0:
        low, high = margins(shown)
        return LossScale(low=low, high=high, log=True, ceiling=ceiling)
    edge = 0.06 * (max(shown) - min(shown)) or 1.0
    low, high = min(shown) - edge, max(shown) + edge
    return LossScale(low=low, high=high, log=False, ceiling=ceiling)


def _losses(runs: Sequence[RunRecord], until: float) -> list[float]:
    epochs = [epoch for run in runs for epoch in run.curve if epoch.epoch <= until]
    both = [loss for e in epochs for loss in (e.train_loss, e.valid_loss)]
    return [loss for loss in both if loss is not None and math.isfinite(loss)]
