"""The batch follows the gradient noise scale (McCandlish et al. 2018, "large-batch training").

The simple noise scale tr(S) / |G|^2 is the batch at which a gradient is half noise: below it a
larger batch saves steps nearly in proportion, above it hardly any. Both parts are measured at the
end of every epoch and averaged apart (one estimate alone can be negative), then divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from samepath.errors import UserError
from samepath.strategies.choice import Choice, Measure, Moment


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
        # an epoch whose gradients overflowed says nothing
        recent = [
            measured
            for measured in moment.history[-self.window :]
            if math.isfinite(measured["noise_variance"] + measured["noise_signal"])
        ]
        if not recent:
            return Choice()
        variance = math.fsum(measured["noise_variance"] for measured in recent)
        signal = math.fsum(measured["noise_signal"] for measured in recent)
        # no signal left to be seen: all noise, and the largest batch is the best
        batches = variance / signal / moment.batch_size if signal > 0 else k
        grown = max(1.0, math.floor(min(k, moment.most_batch, batches)))
        return Choice(batch=grown, learning_rate=grown**0.5)
