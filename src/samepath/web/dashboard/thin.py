"""Curves of any length as few points, for a screen.

In: steps, times and values. Out: lists of at most `NUM_POINTS`, ready for JSON. Guaranteed: a curve
that is short enough is given as it is; of a longer one every point stands for a stretch of steps
with its mean, lowest and highest value, so that no peak is lost. What is no number is a gap (None).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_POINTS = 400
Floats = NDArray[np.float64]


def thin(
    steps: Floats,
    times: Floats,
    values: Floats,
    interval: tuple[Floats, Floats] | None = None,
    most: int = NUM_POINTS,
) -> dict[str, Any]:
    """The curve; `interval` is what each value is known to lie in, where that is known."""
    number = len(values)
    values = np.where(np.isfinite(values), values, np.nan)
    low, high = interval or (values, values)
    if number <= most:
        curve = {"step": plain(steps), "time": plain(times), "value": plain(values)}
        return curve | ({"low": plain(low), "high": plain(high)} if interval else {})
    starts = np.linspace(0, number, most, endpoint=False).astype(int)
    ends = np.append(starts[1:], number)
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    means = np.divide(sums, counts, out=np.full(most, np.nan), where=counts > 0)
    unbounded = np.logical_or.reduceat(known & ~np.isfinite(high), starts)
    highest = np.where(unbounded if interval else False, np.nan, np.fmax.reduceat(high, starts))
    return {
        "step": plain(steps[ends - 1]),
        "time": plain(times[ends - 1]),
        "value": plain(means),
        "low": plain(np.fmin.reduceat(low, starts)),
        "high": plain(highest),
    }


def plain(values: Floats) -> list[float | None]:
    """For JSON, with as many digits as a reader can use."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
