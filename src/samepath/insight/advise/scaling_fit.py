"""The paper's law of strong scaling, fitted to times at several numbers of workers.

In: numbers of workers and a time at each. Out: a ScalingFit: the three parts of

    T(n) = T_S + T_P / n + c log2(n)          (Cunha et al. 2018, section IV)

and what they say of any number of workers. Guaranteed: no part is negative; errors count relative
to each time, so that the short times of many workers count as much as the long one of one. The
paper leaves the base of the logarithm open: with 2, c is what each doubling adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from samepath.errors import UserError

LEAST_GAIN = 0.2
"""Of the time, that doubling the workers must save to be worth it; 0.5 would be perfect."""
MOST_WORKERS = 1 << 20
"""Where the search for a knee ends."""


@dataclass(frozen=True, kw_only=True)
class ScalingFit:
    """Times at any number of workers, modelled."""

    serial_seconds: float
    """T_S: what no worker can take off another."""
    parallel_seconds: float
    """T_P: what n workers share."""
    doubling_seconds: float
    """c: what communication costs with each doubling."""
    workers: tuple[int, ...]
    """What it was fitted to."""
    seconds: tuple[float, ...]
    how: Literal["modelled"] = "modelled"

    def predict(self, workers: int) -> float:
        """Seconds with so many workers."""
        return (
            self.serial_seconds
            + self.parallel_seconds / workers
            + self.doubling_seconds * math.log2(workers)
        )

    def efficiency(self, workers: int) -> float:
        """T(1) / (n T(n)) of the fit."""
        return self.predict(1) / (workers * self.predict(workers))

    @property
    def errors(self) -> tuple[float, ...]:
        """Of each time it was fitted to: predicted / given - 1."""
        both = zip(self.workers, self.seconds, strict=True)
        return tuple(self.predict(n) / seconds - 1.0 for n, seconds in both)

    def knee(self, least_gain: float = LEAST_GAIN) -> int | None:
        """The smallest number of workers that is no longer worth doubling: twice as many would
        save less than this part of the time. None: doubling pays as far as anybody can count.

        T(2n) - (1 - gain) T(n) only rises with n, so the first such number is found by halving."""
        if not 0.0 < least_gain < 0.5:
            raise UserError(
                f"a gain of {least_gain:g}: doubling saves at most half; give a part between 0 "
                f"and 0.5, such as {LEAST_GAIN:g}"
            )
        return _first(
            lambda n: self.predict(2 * n) > (1.0 - least_gain) * self.predict(n), MOST_WORKERS
        )

    def largest_above(self, floor: float) -> int | None:
        """The largest number of workers at which the efficiency is at least `floor`; None: there
        is no limit. (n T(n) only grows, so the efficiency only falls.)"""
        if not 0.0 < floor <= 1.0:
            raise UserError(f"an efficiency of {floor:g}: give a part of 1, such as 0.8")
        below = _first(lambda n: self.efficiency(n) < floor - 1e-12, MOST_WORKERS)
        return None if below is None else below - 1


def _first(is_past: Callable[[int], bool], most: int) -> int | None:
    """The smallest number for which it is true, of something that stays true once it is."""
    if not is_past(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_past(middle) else (middle, high)
    return high


def fit_scaling(workers: Sequence[int], seconds: Sequence[float]) -> ScalingFit:
    """The law through these times; at least three different numbers of workers."""
    if len(set(workers)) < 3:
        raise UserError(
            f"times at {len(set(workers))} different numbers of workers: the law has three parts; "
            "give times at three numbers or more"
        )
    if min(workers) < 1 or not all(0.0 < time < math.inf for time in seconds):
        raise UserError("numbers of workers are at least 1, and times are above 0 and finite")
    n = np.array(workers, np.float64)
    times = np.array(seconds, np.float64)
    parts = np.stack([np.ones_like(n), 1.0 / n, np.log2(n)], axis=1)
    (serial, parallel, doubling), _ = nnls(parts / times[:, None], np.ones_like(times))
    return ScalingFit(
        serial_seconds=float(serial),
        parallel_seconds=float(parallel),
        doubling_seconds=float(doubling),
        workers=tuple(workers),
        seconds=tuple(seconds),
    )


def seconds_of_efficiencies(workers: Sequence[int], efficiencies: Sequence[float]) -> list[float]:
    """Times in units of one worker's, from T1 / (n Tn)."""
    return [1.0 / (n * part) for n, part in zip(workers, efficiencies, strict=True)]
