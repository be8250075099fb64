"""The critical batch from the gradient noise scale, and whether a larger batch pays.

In: the noise scale along a run, with its interval. Out: a CriticalBatch. With batches of B examples
training needs

    S = S_min (1 + B_crit / B) steps and E = S B = E_min (1 + B / B_crit) examples

(McCandlish et al. 2018, section 2.4), so k workers with a batch B each use their examples with an
efficiency of E(B) / E(kB) = (1 + c) / (k + c), c = B_crit / B: the counterpart of the time's. There
is room if two workers keep it above the floor at the low end of the interval, none if they do not
at the high end; between the two nobody can tell. The noise scale grows as the loss falls, so a
short run can find that there is room, but not that there will be none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from samepath.insight.advise.advice import CriticalBatch, NoisePoint, Room

PUBLISHED = {"MNIST": (200, 900), "SVHN": (500, 4000), "CIFAR-10": (900, 2000)}
"""Critical batches and simple noise scales, averages of whole runs (McCandlish et al. 2018, table
in appendix A): how far the one lies below the other."""
RATIOS = sorted(critical / simple for critical, simple in PUBLISHED.values())
MOST_POINTS = 300
ENOUGH = 0.25
"""Of the training: a run as long says that a larger batch has no room, a shorter one does not."""


def noise_points(lines: Iterable[Mapping[str, Any]]) -> list[NoisePoint]:
    """Of the lines of a run's metrics those that have an interval."""
    return [
        NoisePoint(
            step=line["step"],
            scale=_or_infinite(line["noise_scale"]),
            low=float(line["noise_low"]),
            high=_or_infinite(line["noise_high"]),
        )
        for line in lines
        if line.get("noise_low") is not None
    ]


def _or_infinite(value: float | None) -> float:
    """The engine has none where the mean gradient cannot be told from zero."""
    return math.inf if value is None else float(value)


def thinned(points: Sequence[NoisePoint]) -> tuple[NoisePoint, ...]:
    """At most so many, the last among them."""
    every = -(-len(points) // MOST_POINTS) or 1
    return tuple(points[::-1][::every][::-1])


def example_efficiency(critical: float, batch_size: int, workers: float) -> float:
    """Of examples, with so many workers that have a batch each."""
    c = critical / batch_size
    return 1.0 if math.isinf(c) else (1.0 + c) / (workers + c)


def weak_workers(critical: float, batch_size: int, floor: float) -> int | None:
    """The most workers with a batch each that keep the floor; None: there is no limit."""
    if math.isinf(critical) or floor <= 0.0:
        return None
    c = critical / batch_size
    return max(int((1.0 + c) / floor - c + 1e-9), 1)


def critical_batch(
    points: Sequence[NoisePoint],
    *,
    batch_size: int,
    floor: float,
    steps: int,
    part: float,
    grain_size: int,
    note: str = "",
) -> CriticalBatch:
    """What the end of the run says."""
    last = points[-1] if points else None
    low = high = None
    room: Room = "unknown"
    if last is not None:
        low, high = last.low * RATIOS[0], last.high * RATIOS[-1]
        if example_efficiency(low, batch_size, 2) >= floor:
            room = "yes"
        elif example_efficiency(high, batch_size, 2) < floor and part >= ENOUGH:
            room = "no"
        after = "less than 1%" if part < 0.01 else f"{part:.0%}"
        early = f"after {after} of the training; it grows as the loss falls"
        note = "; ".join(filter(None, [note, early if part < ENOUGH else ""]))
    return CriticalBatch(
        steps=steps,
        part=part,
        grain_size=grain_size,
        points=thinned(points),
        noise_scale=None if last is None else last.scale,
        noise_low=None if last is None else last.low,
        noise_high=None if last is None else last.high,
        critical_low=low,
        critical_high=high,
        room=room,
        weak_workers_low=None if low is None else weak_workers(low, batch_size, floor),
        weak_workers_high=None if high is None else weak_workers(high, batch_size, floor),
        note=note,
    )
