"""The gradient noise scale, from gradients that a step computes anyway.

In: of each step, the squared norm of a few grains' gradients and of the whole batch's. Out: the
simple noise scale tr(S) / |G|^2 of McCandlish et al. 2018 (appendix A.1), smoothed, with an
interval: about the batch size above which a larger batch hardly saves steps. Guaranteed: the same
bits at every worker count; nothing is computed twice for it.

Only grains with an even number are looked at: their gradients are alone in `.grad` on every worker,
while autograd may add an odd one to its neighbour's at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

MEASURED = 2
"""Grains of a batch whose norm is taken: it reads all gradients once, and is to cost next to
nothing beside a step."""
WINDOW = 100
"""Steps: what is older counts for less than 1/e."""
FEWEST = 8
"""Steps before there is an interval."""
NORMAL = 1.96


def is_measured(number: int, num_grains: int) -> bool:
    """Whether a grain's norm is taken."""
    return number in _measured(num_grains)


@lru_cache(maxsize=64)
def _measured(num_grains: int) -> frozenset[int]:
    """Even numbers, spread over the batch (and so, mostly, over the workers)."""
    pairs = (num_grains + 1) // 2
    chosen = min(MEASURED, pairs) if num_grains > 1 else 0
    return frozenset(2 * (pairs * i // chosen) for i in range(chosen))


@dataclass(frozen=True)
class GrainNorms:
    """Norms of the measured grains of one batch, on average."""

    squared: float
    """|g|^2 of a grain's own mean gradient."""
    inverse_share: float
    """1 / the grain's share of the batch: how many such grains would fill it."""


def average(norms: Sequence[tuple[float, float]]) -> GrainNorms | None:
    """Average the estimates from (squared norm of the grain's gradient as it counts in the batch's,
    its share)."""
    known = [(squared / (share * share), 1.0 / share) for squared, share in norms if share > 0.0]
    if not known:
        return None
    squared, inverse = (math.fsum(values) / len(known) for values in zip(*known, strict=True))
    return GrainNorms(squared, inverse)


@dataclass(frozen=True)
class NoiseSample:
    """One step's estimates: right on average, but one alone may be far off or below zero."""

    variance: float
    """tr(S): of the gradient of one example, around the mean."""
    signal: float
    """|G|^2: of the mean gradient."""


def sample(grains: GrainNorms | None, batch_norm: float, num_examples: int) -> NoiseSample | None:
    """A small batch's norm against a large one's; None where they are the same batch, or where the
    gradient is not finite."""
    if grains is None or grains.inverse_share <= 1.0 or not math.isfinite(batch_norm):
        return None
    big = batch_norm * batch_norm
    variance = num_examples * (grains.squared - big) / (grains.inverse_share - 1.0)
    found = NoiseSample(variance, big - variance / num_examples)
    return found if math.isfinite(found.variance) and math.isfinite(found.signal) else None


@dataclass
class NoiseScale:
    """Samples, averaged over the last steps: both parts apart, and only then divided."""

    steps: float = 0.0
    """Sum of the weights of all samples; the newest has 1."""
    squares: float = 0.0
    """Sum of their squares."""
    variance: float = 0.0
    signal: float = 0.0
    """Weighted means."""
    variance_spread: float = 0.0
    signal_spread: float = 0.0
    both: float = 0.0
    """Weighted mean squared distances from the means, and of both together."""

    def add(self, sample: NoiseSample) -> None:
        fade = 1.0 - 1.0 / WINDOW
        self.steps = fade * self.steps + 1.0
        self.squares = fade * fade * self.squares + 1.0
        part = 1.0 / self.steps
        variance, signal = sample.variance - self.variance, sample.signal - self.signal
        self.variance += part * variance
        self.signal += part * signal
        rest = 1.0 - part
        self.variance_spread = rest * (self.variance_spread + part * variance * variance)
        self.signal_spread = rest * (self.signal_spread + part * signal * signal)
        self.both = rest * (self.both + part * variance * signal)

    @property
    def value(self) -> float | None:
        """tr(S) / |G|^2, in examples; None while one of them is not above zero."""
        if self.variance <= 0.0 or self.signal <= 0.0:
            return None
        return self.variance / self.signal

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Where the ratio lies with 95% (Fieller 1954). No upper end: the mean gradient cannot be
        told from zero yet. No lower end: too few steps."""
        count = self.steps * self.steps / self.squares if self.squares else 0.0
        if count < FEWEST:
            return None, None
        # Student's t for so many steps, from the normal's quantile
        reach = NORMAL + (NORMAL**3 + NORMAL) / (4.0 * (count - 1.0))
        part = reach * reach / (count - 1.0)
        above = self.variance**2 - part * self.variance_spread
        mixed = self.variance * self.signal - part * self.both
        below = self.signal**2 - part * self.signal_spread
        # the roots of below r^2 - 2 mixed r + above, the larger one divided and the smaller one not
        larger = mixed + math.sqrt(max(mixed * mixed - above * below, 0.0))
        low = above / larger if above > 0.0 and larger > 0.0 else 0.0
        return low, max(larger / below, 0.0) if below > 0.0 else None

    def fields(self) -> dict[str, float | None]:
        """Fields for a line of metrics; none before the first sample."""
        if not self.steps:
            return {}
        low, high = self.interval
        return {
            "noise_scale": self.value,
            "noise_low": low,
            "noise_high": high,
            "noise_variance": self.variance,
            "noise_signal": self.signal,
        }

    def state(self) -> dict[str, float]:
        return asdict(self)
